"""Settings of a namespace, one table: GET, POST (or PUT) and DELETE `/admin/v2/namespaces/{tenant}/{ns}/{setting}`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from anabranch.broker.admin.http.answer import NO_CONTENT, HttpAnswer, text_answer
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.names import decoded
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.request import HttpRequest, body, body_of
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.admin.settings.routes import (
    NAMESPACE_SETTINGS,
    Setting,
    Unserved,
    add_refusals,
    add_routes,
    changed,
    shown,
    shown_quotas,
)
from anabranch.broker.config.choices import Strategy
from anabranch.broker.policy.namespace import (
    BacklogQuota,
    NamespacePolicies,
    QuotaKind,
)
from anabranch.model.names import NamespaceName

routes = Routes("/admin/v2/namespaces", tag="namespaces", needs=Needs.TENANT_ADMIN)

_PATH = "/{tenant}/{namespace}/"

_NO_REPLICAS = "there is no geo-replication here"
_NO_TIERS = "there is no tiered storage to offload to"
UNSERVED = (
    Unserved("replicatorDispatchRate", _NO_REPLICAS),
    Unserved("offloadPolicies", _NO_TIERS),
    Unserved("offloadThreshold", _NO_TIERS, unset=-1),
    Unserved("offloadThresholdInSeconds", _NO_TIERS, unset=-1),
    Unserved("offloadDeletionLagMs", _NO_TIERS),
    Unserved("removeOffloadPolicies", _NO_TIERS),
    Unserved("entryFilters", "brokers run no code of their users; filter in the consumer"),
    Unserved("resourcegroup", "there are no resource groups; limit a namespace by its rates"),
    Unserved("persistence/bookieAffinity", "there are no bookies: the broker writes its own log"),
    Unserved(
        "dispatcherPauseOnAckStatePersistent",
        "acknowledgements are written before they are answered",
        unset=False,
    ),
    Unserved("migration", _NO_REPLICAS),
    Unserved("allowedTopicPropertyKeysForMetrics", "metrics carry no topic properties"),
)

_UNSET = NamespacePolicies()


def _routes(setting: Setting) -> None:
    async def show(services: AdminServices, namespace: NamespaceName) -> HttpAnswer:
        return shown(setting.value(await services.resources.policies(namespace)))

    async def change(services: AdminServices, namespace: NamespaceName, request: HttpRequest) -> None:
        value = await changed(request, setting, services.resources.cluster, _UNSET)
        await services.resources.update_policies(namespace, lambda p: msgspec.structs.replace(p, **value))

    async def unset(services: AdminServices, namespace: NamespaceName) -> None:
        value = setting.removed(_UNSET)
        await services.resources.update_policies(namespace, lambda p: msgspec.structs.replace(p, **value))

    add_routes(routes, _PATH + setting.path, setting, show, change, unset)


async def _check_exists(request: HttpRequest) -> None:
    await request.services.resources.policies(request.names.namespace)


for _setting in NAMESPACE_SETTINGS:
    _routes(_setting)
add_refusals(routes, _PATH, UNSERVED, _check_exists)


# -- backlog quotas: a map of two kinds, changed one at a time


@routes.get("/{tenant}/{namespace}/backlogQuotaMap")
async def backlog_quotas(services: AdminServices, namespace: NamespaceName) -> dict[str, Any]:
    return shown_quotas((await services.resources.policies(namespace)).backlog_quota_map)


@routes.post("/{tenant}/{namespace}/backlogQuota", status=204, body=BacklogQuota)
async def set_backlog_quota(
    services: AdminServices,
    namespace: NamespaceName,
    request: HttpRequest,
    backlogQuotaType: QuotaKind = "destination_storage",
) -> None:
    quota = await body(request, BacklogQuota)

    def change(policies: NamespacePolicies) -> NamespacePolicies:
        quotas = {**policies.backlog_quota_map, backlogQuotaType: quota}
        return msgspec.structs.replace(policies, backlog_quota_map=quotas)

    await services.resources.update_policies(namespace, change)


@routes.delete("/{tenant}/{namespace}/backlogQuota", status=204)
async def remove_backlog_quota(
    services: AdminServices, namespace: NamespaceName, backlogQuotaType: QuotaKind = "destination_storage"
) -> None:
    def change(policies: NamespacePolicies) -> NamespacePolicies:
        quotas = {
            kind: quota for kind, quota in policies.backlog_quota_map.items() if kind != backlogQuotaType
        }
        return msgspec.structs.replace(policies, backlog_quota_map=quotas)

    await services.resources.update_policies(namespace, change)


# -- properties, which users give the namespace: all or one at a time


@routes.get("/{tenant}/{namespace}/properties")
async def properties(services: AdminServices, namespace: NamespaceName) -> dict[str, str]:
    return (await services.resources.policies(namespace)).properties


@routes.put("/{tenant}/{namespace}/properties", status=204, body=dict[str, str])
@routes.post("/{tenant}/{namespace}/properties", status=204, body=dict[str, str])
async def add_properties(services: AdminServices, namespace: NamespaceName, request: HttpRequest) -> None:
    """Sets the properties in the body; others stay."""
    sent_properties = await body(request, dict[str, str], {})
    await services.resources.update_policies(
        namespace, lambda p: msgspec.structs.replace(p, properties={**p.properties, **sent_properties})
    )


@routes.delete("/{tenant}/{namespace}/properties", status=204)
async def clear_properties(services: AdminServices, namespace: NamespaceName) -> None:
    await services.resources.update_policies(namespace, lambda p: msgspec.structs.replace(p, properties={}))


@routes.get("/{tenant}/{namespace}/property/{key}")
async def one_property(services: AdminServices, namespace: NamespaceName, key: str) -> HttpAnswer:
    return _plain((await services.resources.policies(namespace)).properties.get(decoded(key)))


def _plain(text: str | None) -> HttpAnswer:
    """Answers plain text instead of JSON: Pulsar's client uses the answer as it is."""
    return NO_CONTENT if text is None else text_answer(text)


@routes.put("/{tenant}/{namespace}/property/{key}/{value}", status=204)
async def set_property(services: AdminServices, namespace: NamespaceName, key: str, value: str) -> None:
    one = {decoded(key): decoded(value)}
    await services.resources.update_policies(
        namespace, lambda p: msgspec.structs.replace(p, properties={**p.properties, **one})
    )


@routes.delete("/{tenant}/{namespace}/property/{key}")
async def remove_property(services: AdminServices, namespace: NamespaceName, key: str) -> HttpAnswer:
    """Removes the property; answers its former value."""
    name = decoded(key)
    before = (await services.resources.policies(namespace)).properties.get(name)
    await services.resources.update_policies(
        namespace,
        lambda p: msgspec.structs.replace(p, properties={k: v for k, v in p.properties.items() if k != name}),
    )
    return _plain(before)


# -- clusters: this one


@routes.get("/{tenant}/{namespace}/replication")
@routes.get("/{tenant}/{namespace}/allowedClusters")
async def clusters(services: AdminServices, namespace: NamespaceName) -> list[str]:
    return list((await services.resources.policies(namespace)).replication_clusters)


@routes.post("/{tenant}/{namespace}/replication", status=204, body=tuple[str, ...])
@routes.post("/{tenant}/{namespace}/allowedClusters", status=204, body=tuple[str, ...])
async def set_clusters(services: AdminServices, namespace: NamespaceName, request: HttpRequest) -> None:
    wanted = await body(request, tuple[str, ...])
    await services.resources.policies(namespace)
    if not wanted:
        raise RestError(
            412, f"Clusters are missing: the only one of a namespace is {services.resources.cluster}"
        )
    if set(wanted) != {services.resources.cluster}:
        raise RestError(
            403, f"{_NO_REPLICAS}: the only cluster of a namespace is {services.resources.cluster}"
        )


# -- resource groups: there are none


@routes.post("/{tenant}/{namespace}/resourcegroup/{group}", status=412)
async def join_resource_group(services: AdminServices, namespace: NamespaceName, group: str) -> None:
    await services.resources.policies(namespace)
    raise RestError(412, f"ResourceGroup {group} does not exist; limit a namespace by its rates")


# -- the older name of the compatibility strategy

_OLD_STRATEGIES: dict[str, Strategy] = {
    "AutoUpdateDisabled": "ALWAYS_INCOMPATIBLE",
    "Backward": "BACKWARD",
    "Forward": "FORWARD",
    "Full": "FULL",
    "AlwaysCompatible": "ALWAYS_COMPATIBLE",
    "BackwardTransitive": "BACKWARD_TRANSITIVE",
    "ForwardTransitive": "FORWARD_TRANSITIVE",
    "FullTransitive": "FULL_TRANSITIVE",
}
_OldStrategy = Literal[
    "AutoUpdateDisabled",
    "Backward",
    "Forward",
    "Full",
    "AlwaysCompatible",
    "BackwardTransitive",
    "ForwardTransitive",
    "FullTransitive",
]


@routes.get("/{tenant}/{namespace}/schemaAutoUpdateCompatibilityStrategy")
async def old_strategy(services: AdminServices, namespace: NamespaceName) -> HttpAnswer:
    strategy = (await services.resources.policies(namespace)).schema_compatibility_strategy
    return shown(next((old for old, new in _OLD_STRATEGIES.items() if new == strategy), None))


@routes.put(
    "/{tenant}/{namespace}/schemaAutoUpdateCompatibilityStrategy",
    status=204,
    body=_OldStrategy,
)
async def set_old_strategy(services: AdminServices, namespace: NamespaceName, request: HttpRequest) -> None:
    strategy = _OLD_STRATEGIES[await body_of(request, _OldStrategy)]
    await services.resources.update_policies(
        namespace, lambda p: msgspec.structs.replace(p, schema_compatibility_strategy=strategy)
    )
