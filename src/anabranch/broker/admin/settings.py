"""Settings of a namespace, one table: GET, POST (or PUT) and DELETE `/admin/v2/namespaces/{tenant}/{ns}/{setting}`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from anabranch.broker.admin.errors import RestError
from anabranch.broker.admin.needs import Needs, needs
from anabranch.broker.admin.openapi import takes
from anabranch.broker.admin.params import BrokerDep, NamespaceDep, body, body_of, decoded
from anabranch.broker.admin.setting import (
    Setting,
    Unserved,
    add_refusals,
    add_routes,
    changed,
    shown,
    shown_quotas,
)
from anabranch.broker.policies import (
    AutoSubscriptionCreation,
    AutoTopicCreation,
    BacklogQuota,
    DelayedDelivery,
    InactiveTopics,
    Persistence,
    Policies,
    QuotaKind,
    Retention,
    Strategy,
    SubscriptionType,
)
from anabranch.broker.policy_json import Count, Count64, Int32
from anabranch.broker.rates import DispatchRate, PublishRate, SubscribeRate

router = APIRouter()

_PATH = "/{tenant}/{namespace}/"

SETTINGS = (
    Setting("retention", "retention_policies", Retention),
    Setting("messageTTL", "message_ttl_in_seconds", Int32),
    Setting("compactionThreshold", "compaction_threshold", Count64),
    Setting("deduplication", "deduplication_enabled", bool),
    # Ours is stored with every commit of the log, so any interval is kept.
    Setting(
        "deduplicationSnapshotInterval", "deduplication_snapshot_interval", Count, is_removed_by_nothing=True
    ),
    Setting("autoTopicCreation", "auto_topic_creation", AutoTopicCreation),
    Setting("autoSubscriptionCreation", "auto_subscription_creation", AutoSubscriptionCreation),
    # Kept because tools insist on it; it speaks of replicas, and our log has none to speak of.
    Setting("persistence", "persistence", Persistence),
    Setting("isAllowAutoUpdateSchema", "is_allow_auto_update_schema", bool, unset=True),
    Setting("schemaCompatibilityStrategy", "schema_compatibility_strategy", Strategy),
    Setting("schemaValidationEnforced", "schema_validation_enforced", bool),
    Setting("subscriptionAuthMode", "subscription_auth_mode", Literal["None", "Prefix"]),
    Setting(
        "subscriptionExpirationTime",
        "subscription_expiration_time_minutes",
        Count,
        fault="Invalid value for subscription expiration time",
    ),
    Setting("subscriptionTypesEnabled", "subscription_types_enabled", tuple[SubscriptionType, ...]),
    Setting("delayedDelivery", "delayed_delivery_policies", DelayedDelivery),
    Setting("inactiveTopicPolicies", "inactive_topic_policies", InactiveTopics),
    Setting("maxProducersPerTopic", "max_producers_per_topic", Count),
    Setting("maxConsumersPerTopic", "max_consumers_per_topic", Count),
    Setting("maxConsumersPerSubscription", "max_consumers_per_subscription", Count),
    Setting("maxUnackedMessagesPerConsumer", "max_unacked_messages_per_consumer", Count),
    Setting("maxUnackedMessagesPerSubscription", "max_unacked_messages_per_subscription", Count),
    Setting("maxSubscriptionsPerTopic", "max_subscriptions_per_topic", Count),
    Setting("maxTopicsPerNamespace", "max_topics_per_namespace", Count, unset=0),
    Setting("encryptionRequired", "encryption_required", bool),
    Setting("publishRate", "publish_rate", PublishRate, is_per_cluster=True),
    Setting("dispatchRate", "dispatch_rate", DispatchRate, is_per_cluster=True),
    Setting("subscriptionDispatchRate", "subscription_dispatch_rate", DispatchRate, is_per_cluster=True),
    Setting("subscribeRate", "subscribe_rate", SubscribeRate, is_per_cluster=True),
)

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
    Unserved("antiAffinity", "namespaces are not spread over failure domains"),
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

_UNSET = Policies()


def _routes(setting: Setting) -> None:
    async def show(broker: BrokerDep, namespace: NamespaceDep) -> Response:
        return shown(setting.value(await broker.resources.policies(namespace)))

    async def change(broker: BrokerDep, namespace: NamespaceDep, request: Request) -> None:
        value = await changed(request, setting, broker.resources.cluster, _UNSET)
        await broker.resources.update_policies(namespace, lambda p: msgspec.structs.replace(p, **value))

    async def unset(broker: BrokerDep, namespace: NamespaceDep) -> None:
        value = setting.removed(_UNSET)
        await broker.resources.update_policies(namespace, lambda p: msgspec.structs.replace(p, **value))

    add_routes(router, _PATH + setting.path, setting, show, change, unset)


async def _never_set(broker: BrokerDep, namespace: NamespaceDep) -> Response:
    await broker.resources.policies(namespace)
    return Response(status_code=204)


for _setting in SETTINGS:
    _routes(_setting)
for _unserved in UNSERVED:
    add_refusals(router, _PATH + _unserved.path, _unserved, _never_set)


# -- backlog quotas: a map of two kinds, changed one at a time


@router.get("/{tenant}/{namespace}/backlogQuotaMap")
async def backlog_quotas(broker: BrokerDep, namespace: NamespaceDep) -> dict[str, Any]:
    return shown_quotas((await broker.resources.policies(namespace)).backlog_quota_map)


@router.post("/{tenant}/{namespace}/backlogQuota", status_code=204, openapi_extra=takes(BacklogQuota))
async def set_backlog_quota(
    broker: BrokerDep,
    namespace: NamespaceDep,
    request: Request,
    backlogQuotaType: QuotaKind = "destination_storage",
) -> None:
    quota = await body(request, BacklogQuota)

    def change(policies: Policies) -> Policies:
        quotas = {**policies.backlog_quota_map, backlogQuotaType: quota}
        return msgspec.structs.replace(policies, backlog_quota_map=quotas)

    await broker.resources.update_policies(namespace, change)


@router.delete("/{tenant}/{namespace}/backlogQuota", status_code=204)
async def remove_backlog_quota(
    broker: BrokerDep, namespace: NamespaceDep, backlogQuotaType: QuotaKind = "destination_storage"
) -> None:
    def change(policies: Policies) -> Policies:
        quotas = {
            kind: quota for kind, quota in policies.backlog_quota_map.items() if kind != backlogQuotaType
        }
        return msgspec.structs.replace(policies, backlog_quota_map=quotas)

    await broker.resources.update_policies(namespace, change)


# -- what the namespace is called by its users: properties, all or one at a time


@router.get("/{tenant}/{namespace}/properties")
async def properties(broker: BrokerDep, namespace: NamespaceDep) -> dict[str, str]:
    return (await broker.resources.policies(namespace)).properties


@router.put("/{tenant}/{namespace}/properties", status_code=204, openapi_extra=takes(dict[str, str]))
@router.post("/{tenant}/{namespace}/properties", status_code=204, openapi_extra=takes(dict[str, str]))
async def add_properties(broker: BrokerDep, namespace: NamespaceDep, request: Request) -> None:
    """Those sent are set; others stay."""
    sent_properties = await body(request, dict[str, str], {})
    await broker.resources.update_policies(
        namespace, lambda p: msgspec.structs.replace(p, properties={**p.properties, **sent_properties})
    )


@router.delete("/{tenant}/{namespace}/properties", status_code=204)
async def clear_properties(broker: BrokerDep, namespace: NamespaceDep) -> None:
    await broker.resources.update_policies(namespace, lambda p: msgspec.structs.replace(p, properties={}))


@router.get("/{tenant}/{namespace}/property/{key}")
async def one_property(broker: BrokerDep, namespace: NamespaceDep, key: str) -> Response:
    return _plain((await broker.resources.policies(namespace)).properties.get(decoded(key)))


def _plain(text: str | None) -> Response:
    """As text and not as JSON: Pulsar's client takes the answer as it is."""
    return Response(status_code=204) if text is None else PlainTextResponse(text)


@router.put("/{tenant}/{namespace}/property/{key}/{value}", status_code=204)
async def set_property(broker: BrokerDep, namespace: NamespaceDep, key: str, value: str) -> None:
    one = {decoded(key): decoded(value)}
    await broker.resources.update_policies(
        namespace, lambda p: msgspec.structs.replace(p, properties={**p.properties, **one})
    )


@router.delete("/{tenant}/{namespace}/property/{key}")
async def remove_property(broker: BrokerDep, namespace: NamespaceDep, key: str) -> Response:
    """Answers what it was."""
    name = decoded(key)
    before = (await broker.resources.policies(namespace)).properties.get(name)
    await broker.resources.update_policies(
        namespace,
        lambda p: msgspec.structs.replace(p, properties={k: v for k, v in p.properties.items() if k != name}),
    )
    return _plain(before)


# -- clusters: this one


@router.get("/{tenant}/{namespace}/replication")
@router.get("/{tenant}/{namespace}/allowedClusters")
async def clusters(broker: BrokerDep, namespace: NamespaceDep) -> list[str]:
    return list((await broker.resources.policies(namespace)).replication_clusters)


@router.post("/{tenant}/{namespace}/replication", status_code=204, openapi_extra=takes(tuple[str, ...]))
@router.post("/{tenant}/{namespace}/allowedClusters", status_code=204, openapi_extra=takes(tuple[str, ...]))
async def set_clusters(broker: BrokerDep, namespace: NamespaceDep, request: Request) -> None:
    wanted = await body(request, tuple[str, ...])
    await broker.resources.policies(namespace)
    if not wanted:
        raise RestError(
            412, f"Clusters are missing: the only one of a namespace is {broker.resources.cluster}"
        )
    if set(wanted) != {broker.resources.cluster}:
        raise RestError(403, f"{_NO_REPLICAS}: the only cluster of a namespace is {broker.resources.cluster}")


# -- groups of namespaces: there are none


@router.get("/{cluster}/antiAffinity/{group}")
@needs(Needs.SUPER_USER)
async def namespaces_of_group(cluster: str, group: str) -> list[str]:
    return []


@router.post("/{tenant}/{namespace}/resourcegroup/{group}", status_code=412)
async def join_resource_group(broker: BrokerDep, namespace: NamespaceDep, group: str) -> None:
    await broker.resources.policies(namespace)
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


@router.get("/{tenant}/{namespace}/schemaAutoUpdateCompatibilityStrategy")
async def old_strategy(broker: BrokerDep, namespace: NamespaceDep) -> Response:
    strategy = (await broker.resources.policies(namespace)).schema_compatibility_strategy
    return shown(next((old for old, new in _OLD_STRATEGIES.items() if new == strategy), None))


@router.put(
    "/{tenant}/{namespace}/schemaAutoUpdateCompatibilityStrategy",
    status_code=204,
    openapi_extra=takes(_OldStrategy),
)
async def set_old_strategy(broker: BrokerDep, namespace: NamespaceDep, request: Request) -> None:
    strategy = _OLD_STRATEGIES[await body_of(request, _OldStrategy)]
    await broker.resources.update_policies(
        namespace, lambda p: msgspec.structs.replace(p, schema_compatibility_strategy=strategy)
    )
