"""`/admin/v2/namespaces/{tenant}/{ns}/{bundle}/unload` and `…/split`: bundles that an operator moves or splits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from anabranch.balance.core.settings import BalanceSettings, SplitAlgorithm
from anabranch.balance.core.split_points import NoPoints, TopicTraffic, split_points
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.request import HttpRequest, body
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.namespaces.bundles import named_bundle, owned_bundle
from anabranch.broker.admin.namespaces.chosen_bundles import range_of
from anabranch.broker.admin.namespaces.namespaces import logged_topics, unload_topics
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.balance.balancer import Balancer
from anabranch.broker.balance.choosing import owners_with
from anabranch.broker.catalog.registry import BrokerRegistration
from anabranch.broker.config.balancer import balance_settings
from anabranch.broker.config.choices import BUNDLES_MAX
from anabranch.broker.errors import NotAllowedError
from anabranch.broker.policy.namespace import Bundles, NamespacePolicies
from anabranch.model.bundles import BundleName
from anabranch.model.names import NamespaceName

routes = Routes("/admin/v2/namespaces", tag="namespaces", needs=Needs.SUPER_USER)

_PATH = "/{tenant}/{namespace}/{bundle}"
# As Pulsar answers for a destination that is not there: a conflict.
NO_DESTINATION = 409


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
    """Moves the bundle to the broker of that name. 409 if there is none, 412 if it cannot have the bundle."""
    target = destination(services, bundle, text)
    if services.shared is None:
        await unload_topics(services, bundle.holds)
        return
    try:
        if services.balancer is not None:
            if _too_close(services, services.balancer, bundle, target.id) is not None:
                # The group may be another one by now.
                await services.balancer.owners.bundles.learn(bundle.namespace)
                if (why := _too_close(services, services.balancer, bundle, target.id)) is not None:
                    raise RestError(412, f"Cannot move {bundle}: {why}")
            if (owner := services.balancer.owners.owner_of(bundle)) is not None and owner.id == target.id:
                raise RestError(412, f"Cannot move {bundle}: {text} has it already")
            await services.balancer.requests.transfer(bundle, target.id, "an operator moves it")
        elif services.hashed is not None:
            # Each broker hears of it and closes the topics that it has.
            await services.hashed.assign(bundle, target.id)
    except NotAllowedError as error:
        raise RestError(412, f"Cannot move: {error}") from None


def _too_close(services: AdminServices, balancer: Balancer, bundle: BundleName, broker: str) -> str | None:
    """Why the anti-affinity group of its namespace keeps the bundle from that broker; None if nothing does."""
    now = balancer.owners.state(bundle)
    if services.placement is None or (now is not None and now.to is not None and now.to.broker == broker):
        return None
    return services.placement.too_close(bundle, broker, owners_with(balancer.states.fold, {}))


def destination(services: AdminServices, bundle: BundleName, text: str) -> BrokerRegistration:
    """The living broker of that name, by its id or by its web address, as Pulsar names brokers."""
    target = services.registry.named(text.removeprefix("https://").removeprefix("http://"))
    why = ""
    if target is None:
        why = f"there is no living broker {text}; see the list of brokers"
    elif target.is_draining:
        why = f"broker {text} is about to end"
    if target is None or why:
        # Its first words are Pulsar's, which scripts look for.
        raise RestError(
            NO_DESTINATION,
            f"Not allowed unload namespace bundle to inactive destination broker: {bundle} cannot move, {why}",
        )
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
    at which it is cut, for `specified_positions_divide`. Instead of a range, `LARGEST` means the bundle with the most
    topics, and `HOT` the one with the most bytes a second."""
    at = await body(request, list[int], [])
    bundle = await range_of(services, namespace, bundle)
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
    settings = balance_settings(services.current_config())
    if algorithm and algorithm not in settings.split_algorithms:
        supported = [one.value for one in settings.split_algorithms]
        raise RestError(
            412, f"Unsupported namespace bundle split algorithm, supported algorithms are {supported}"
        )
    if algorithm == SplitAlgorithm.POSITIONS and not positions:
        raise RestError(
            412, "With specified_positions_divide split algorithm, splitBoundaries must not be empty"
        )
    if services.balancer is None:
        whole = await named_bundle(services, namespace, bundle)
        await _split_hashed(services, whole, await _cuts(services, whole, algorithm, positions, settings))
        return
    whole = await owned_bundle(services, namespace, bundle)
    try:
        edges = await _cuts(services, whole, algorithm, positions, settings)
        await services.balancer.requests.split(whole, edges, "an operator splits it", unloads=unloads)
    except NotAllowedError as error:
        raise RestError(412, f"Split bundle failed: {error}") from None


async def _cuts(
    services: AdminServices,
    bundle: BundleName,
    algorithm: str,
    positions: Sequence[int],
    settings: BalanceSettings,
) -> Sequence[int]:
    """Where the bundle is cut: by that algorithm, or by the configured one. 412 if it cannot be."""
    chosen = SplitAlgorithm(algorithm) if algorithm else settings.split_algorithm
    if chosen is SplitAlgorithm.POSITIONS and not positions:
        chosen = SplitAlgorithm.RANGE  # As configured for splits that name no positions.
    traffic = {name: TopicTraffic.of(name) for name in await logged_topics(services, bundle.namespace)}
    for topic in services.loaded().values():
        if bundle.holds(topic.name):
            traffic[topic.name] = TopicTraffic.of(topic.name, *topic.rates_in)
    found = split_points(bundle, chosen, traffic.values(), settings, positions=positions, is_forced=True)
    if isinstance(found, NoPoints):
        raise RestError(412, f"Split bundle failed: {found.because}")
    return found.points


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
