"""`/admin/v2/namespaces/{tenant}/{ns}/{bundle}/unload` and `…/split`: bundles that an operator moves or splits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.request import HttpRequest, body
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.namespaces.bundles import named_bundle, owned_bundle
from anabranch.broker.admin.namespaces.namespaces import unload_topics
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.catalog.registry import BrokerRegistration
from anabranch.broker.config.choices import BUNDLES_MAX
from anabranch.broker.errors import NotAllowedError
from anabranch.broker.policy.namespace import Bundles, NamespacePolicies
from anabranch.model.bundles import BundleName
from anabranch.model.names import NamespaceName

routes = Routes("/admin/v2/namespaces", tag="namespaces", needs=Needs.SUPER_USER)

_PATH = "/{tenant}/{namespace}/{bundle}"
# Pulsar's names of how a bundle is cut.
RANGE = "range_equally_divide"
POSITIONS = "specified_positions_divide"
ALGORITHMS = (RANGE, POSITIONS)


# -- moves


@routes.put(_PATH + "/unload", status=204)
async def unload(
    services: AdminServices, namespace: NamespaceName, bundle: str, destinationBroker: str = ""
) -> None:
    """Closes the bundle's open topics; clients reconnect and open them again. With `destinationBroker`, that broker
    owns the bundle from now on, and its topics are opened there."""
    if destinationBroker:
        await move(services, await named_bundle(services, namespace, bundle), destinationBroker)
    elif services.balancer is not None:
        found = await named_bundle(services, namespace, bundle)
        await services.balancer.requests.unload(found, "an operator unloads it")
    else:
        owned = await owned_bundle(services, namespace, bundle)
        await unload_topics(services, owned.holds)


async def move(services: AdminServices, bundle: BundleName, text: str) -> None:
    """Moves the bundle to the broker of that name. 412 if there is none, or if it cannot have the bundle."""
    target = destination(services, bundle, text)
    if services.shared is None:
        await unload_topics(services, bundle.holds)
        return
    try:
        if services.balancer is not None:
            await services.balancer.requests.transfer(bundle, target.id, "an operator moves it")
        elif services.hashed is not None:
            # Each broker hears of it and closes the topics that it has.
            await services.hashed.assign(bundle, target.id)
    except NotAllowedError as error:
        raise RestError(412, f"Cannot move {bundle}: {error}") from None


def destination(services: AdminServices, bundle: BundleName, text: str) -> BrokerRegistration:
    """The living broker of that name, by its id or by its web address, as Pulsar names brokers."""
    target = services.registry.named(text.removeprefix("https://").removeprefix("http://"))
    if target is None:
        raise RestError(
            412, f"Cannot move {bundle}: there is no living broker {text}; see the list of brokers"
        )
    if target.is_draining:
        raise RestError(412, f"Cannot move {bundle}: broker {text} is about to end")
    return target


# -- splits


@routes.put(_PATH + "/split", status=204, body=list[int])
async def split_bundle(
    services: AdminServices,
    namespace: NamespaceName,
    bundle: str,
    request: HttpRequest,
    splitAlgorithmName: str = "",
    unload: bool = False,
) -> None:
    """Splits the bundle. Its parts stay with its owner, or go to other brokers with `unload`. The body has the hashes
    at which it is cut, for `specified_positions_divide`."""
    at = await body(request, list[int], [])
    await split(services, namespace, bundle, splitAlgorithmName, at, unloads=unload)


async def split(
    services: AdminServices,
    namespace: NamespaceName,
    bundle: str,
    algorithm: str = "",
    positions: Sequence[int] = (),
    *,
    unloads: bool = False,
) -> None:
    if algorithm and algorithm not in ALGORITHMS:
        raise RestError(
            412, f"Unsupported namespace bundle split algorithm, supported algorithms are {list(ALGORITHMS)}"
        )
    if algorithm == POSITIONS and not positions:
        raise RestError(
            412, "With specified_positions_divide split algorithm, splitBoundaries must not be empty"
        )
    if services.balancer is None:
        whole = await named_bundle(services, namespace, bundle)
        await _split_hashed(services, whole, _cuts(whole, algorithm, positions))
        return
    whole = await owned_bundle(services, namespace, bundle)
    try:
        edges = _cuts(whole, algorithm, positions)
        await services.balancer.requests.split(whole, edges, "an operator splits it", unloads=unloads)
    except NotAllowedError as error:
        raise RestError(412, f"Split bundle failed: {error}") from None


def _cuts(bundle: BundleName, algorithm: str, positions: Sequence[int]) -> list[int]:
    """Where the bundle is cut. 412 if it cannot be."""
    first, last = bundle.edges
    if algorithm == POSITIONS:
        found = sorted({at for at in positions if first < at < last})
        if not found:
            raise RestError(412, f"No position lies within {bundle.range}")
        return found
    if last - first < 2:
        raise RestError(412, f"{bundle.range} cannot be split further")
    return [first + (last - first) // 2]


async def _split_hashed(services: AdminServices, whole: BundleName, cuts: Sequence[int]) -> None:
    first, last = whole.edges

    def cut(policies: NamespacePolicies) -> NamespacePolicies:
        edges = sorted({*(int(edge, 16) for edge in policies.bundles.boundaries), *cuts})
        if not 2 <= len(edges) - 1 <= BUNDLES_MAX:
            raise RestError(412, f"{whole.range} cannot be split further")
        boundaries = tuple(f"0x{edge:08x}" for edge in edges)
        return msgspec.structs.replace(policies, bundles=Bundles(boundaries=boundaries, count=len(edges) - 1))

    owner = None if services.hashed is None else services.hashed.owner_of(whole)
    if owner is not None and services.hashed is not None:
        # Before the split: afterwards the hash would give each part to any broker.
        ends = [first, *cuts, last]
        for low, high in pairwise(ends):
            part = BundleName(whole.namespace, f"0x{low:08x}_0x{high:08x}")
            await services.hashed.assign(part, owner.id)
    await services.resources.update_policies(whole.namespace, cut)
