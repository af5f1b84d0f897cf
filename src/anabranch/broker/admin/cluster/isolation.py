"""`/admin/v2/clusters/{cluster}/namespaceIsolationPolicies`: which brokers own the bundles of which namespaces."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import unquote

import msgspec

from anabranch.balance.core.isolation import (
    BadIsolation,
    IsolationPolicy,
    broker_isolation,
)
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.names import decoded
from anabranch.broker.admin.http.request import HttpRequest, body
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.catalog.resources import NotFound
from anabranch.broker.policy.bounded_patterns import bounded_pattern, matches
from anabranch.model.names import InvalidName

log = logging.getLogger(__name__)

routes = Routes("/admin/v2/clusters/{cluster}/namespaceIsolationPolicies", tag="clusters")

NO_BALANCER = (
    "loadManagerClassName is {name} here: with it every broker may own every bundle, and {what} would not be obeyed; "
    "set it to balanced"
)


async def known_cluster(services: AdminServices, cluster: str, *, missing: int = 412) -> str:
    """The name, decoded. `missing` is the status if there is no such cluster."""
    name = unquote(cluster)
    try:
        await services.resources.cluster_data(name)
    except NotFound:
        raise RestError(missing, f"Cluster {name} does not exist.") from None
    return name


def check_obeyed(services: AdminServices, what: str) -> None:
    """405 if brokers would not obey it: they say so instead of storing it."""
    if services.balancer is None:
        name = services.config.load_manager_class_name
        raise RestError(405, NO_BALANCER.format(name=name, what=what))


async def _policies(services: AdminServices, cluster: str) -> dict[str, IsolationPolicy]:
    found = await services.isolation.policies_of(cluster)
    if found is None:
        raise RestError(404, f"NamespaceIsolationPolicies for cluster {cluster} does not exist")
    return found


@routes.get("")
async def list_policies(services: AdminServices, cluster: str) -> dict[str, Any]:
    """All isolation policies of the cluster by name; 404 if none was ever set."""
    found = await _policies(services, await known_cluster(services, cluster, missing=404))
    return {name: found[name].to_json() for name in sorted(found)}


@routes.get("/brokers")
async def brokers(services: AdminServices, cluster: str) -> list[dict[str, Any]]:
    """What the living brokers are in these policies, each under the name that `brokers` lists."""
    found = await _policies(services, await known_cluster(services, cluster))
    living = sorted(services.registry.living().values(), key=lambda one: one.address.web_id)
    return [
        broker_isolation(one.address.web_id, found, matches, names=(one.id, *one.web_names)) for one in living
    ]


@routes.get("/brokers/{broker}")
async def broker(services: AdminServices, cluster: str, broker: str) -> dict[str, Any]:
    """What one broker is in these policies, whether or not it lives."""
    found = await _policies(services, await known_cluster(services, cluster))
    name = decoded(broker)
    known = services.registry.named(name)
    names = () if known is None else (known.id, *known.web_names)
    return broker_isolation(name, found, matches, names=names)


@routes.get("/{policy}")
async def get_policy(services: AdminServices, cluster: str, policy: str) -> dict[str, Any]:
    where, name = await known_cluster(services, cluster), decoded(policy)
    found = (await _policies(services, where)).get(name)
    if found is None:
        raise RestError(404, f"Cannot find NamespaceIsolationPolicy {name} for cluster {where}")
    return found.to_json()


@routes.post("/{policy}", status=204, body=dict[str, Any])
async def set_policy(services: AdminServices, cluster: str, policy: str, request: HttpRequest) -> None:
    """Sets the policy, and moves the bundles that it unloads to their brokers."""
    where, name = await known_cluster(services, cluster), decoded(policy)
    check_obeyed(services, "isolation policies")
    sent = await body(request, dict[str, Any])
    try:
        new = IsolationPolicy.from_json(sent)
        for pattern in new.patterns:
            bounded_pattern(pattern)
    except (BadIsolation, InvalidName) as error:
        data = msgspec.json.encode(sent).decode()
        raise RestError(
            400, f"Invalid format of input policy data. policy: {name}; data: {data:.500}: {error}"
        ) from None
    old = await services.isolation.set_policy(where, name, new)
    log.info("the isolation policy %s of %s was set: %s", name, where, new)
    if services.balancer is None or where != services.resources.cluster:
        return
    if stayed := await services.balancer.isolating.policy_set(name, new, old):
        raise RestError(
            503,
            f"The policy is set, but {len(stayed)} bundles are not at its brokers yet, {stayed[0]} for one; "
            "set it again with unload_scope all_matching, or see the broker's log",
        )


@routes.delete("/{policy}", status=204)
async def delete_policy(services: AdminServices, cluster: str, policy: str) -> None:
    """Deletes the policy, if there is one. As in Pulsar, bundles stay where they are until they move."""
    where, name = await known_cluster(services, cluster), decoded(policy)
    await services.isolation.delete_policy(where, name)
    log.info("the isolation policy %s of %s was deleted", name, where)
