"""Settings of a namespace, one table: GET, POST (or PUT) and DELETE `/admin/v2/namespaces/{tenant}/{ns}/{setting}`.

A setting that is not set answers 204, so that clients see "the broker decides". One that this broker would not obey can
be asked for, and is refused when set: a limit that is stored and ignored is worse than none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from anabranch.broker.admin.errors import RestError
from anabranch.broker.admin.params import BrokerDep, NamespaceDep, body, body_of
from anabranch.broker.policies import (
    AutoSubscriptionCreation,
    AutoTopicCreation,
    BacklogQuota,
    DelayedDelivery,
    InactiveTopics,
    Persistence,
    Policies,
    Retention,
)

router = APIRouter()

Count = Annotated[int, msgspec.Meta(ge=0)]


Strategy = Literal[
    "UNDEFINED",
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
]


@dataclass(frozen=True, slots=True)
class Setting:
    path: str
    field: str
    kind: Any
    is_obeyed: bool = True


SETTINGS = (
    Setting("retention", "retention_policies", Retention),
    Setting("messageTTL", "message_ttl_in_seconds", int),
    Setting("compactionThreshold", "compaction_threshold", Count),
    Setting("deduplication", "deduplication_enabled", bool),
    Setting("autoTopicCreation", "auto_topic_creation", AutoTopicCreation),
    # Kept because tools insist on it; it speaks of replicas, and our log has none to speak of.
    Setting("persistence", "persistence", Persistence),
    Setting("isAllowAutoUpdateSchema", "is_allow_auto_update_schema", bool),
    Setting("schemaCompatibilityStrategy", "schema_compatibility_strategy", Strategy),
    Setting("schemaValidationEnforced", "schema_validation_enforced", bool),
    Setting("properties", "properties", dict[str, str]),
    Setting("subscriptionAuthMode", "subscription_auth_mode", Literal["None", "Prefix"]),
    Setting("subscriptionExpirationTime", "subscription_expiration_time_minutes", Count, is_obeyed=False),
    Setting(
        "autoSubscriptionCreation", "auto_subscription_creation", AutoSubscriptionCreation, is_obeyed=False
    ),
    Setting("delayedDelivery", "delayed_delivery_policies", DelayedDelivery, is_obeyed=False),
    Setting("inactiveTopicPolicies", "inactive_topic_policies", InactiveTopics, is_obeyed=False),
    Setting("maxProducersPerTopic", "max_producers_per_topic", Count, is_obeyed=False),
    Setting("maxConsumersPerTopic", "max_consumers_per_topic", Count, is_obeyed=False),
    Setting("maxConsumersPerSubscription", "max_consumers_per_subscription", Count, is_obeyed=False),
    Setting("maxUnackedMessagesPerConsumer", "max_unacked_messages_per_consumer", Count, is_obeyed=False),
    Setting(
        "maxUnackedMessagesPerSubscription", "max_unacked_messages_per_subscription", Count, is_obeyed=False
    ),
    Setting("maxSubscriptionsPerTopic", "max_subscriptions_per_topic", Count, is_obeyed=False),
    Setting("maxTopicsPerNamespace", "max_topics_per_namespace", Count, is_obeyed=False),
    Setting("encryptionRequired", "encryption_required", bool, is_obeyed=False),
)

_UNSET = Policies()


def _routes(setting: Setting) -> None:
    async def show(broker: BrokerDep, namespace: NamespaceDep) -> Response:
        value = getattr(await broker.resources.policies(namespace), setting.field)
        return Response(status_code=204) if value is None else JSONResponse(msgspec.to_builtins(value))

    async def change(broker: BrokerDep, namespace: NamespaceDep, request: Request) -> None:
        value = await body_of(request, setting.kind)
        if not setting.is_obeyed:
            raise RestError(501, f"{setting.path} is not supported yet: it would be stored and not obeyed")
        await broker.resources.update_policies(
            namespace, lambda policies: msgspec.structs.replace(policies, **{setting.field: value})
        )

    async def unset(broker: BrokerDep, namespace: NamespaceDep) -> None:
        value = getattr(_UNSET, setting.field)
        await broker.resources.update_policies(
            namespace, lambda policies: msgspec.structs.replace(policies, **{setting.field: value})
        )

    path = f"/{{tenant}}/{{namespace}}/{setting.path}"
    handlers: tuple[tuple[str, Callable[..., Awaitable[Any]], int], ...] = (
        ("GET", show, 200),
        ("POST", change, 204),
        ("PUT", change, 204),
        ("DELETE", unset, 204),
    )
    for method, handler, status in handlers:
        name = f"{handler.__name__}_{setting.path}"
        router.add_api_route(
            path, handler, methods=[method], status_code=status, name=name, response_model=None
        )


for _setting in SETTINGS:
    _routes(_setting)


# -- backlog quotas: a map of two kinds, changed one at a time; kept and shown, but they hold no publisher back yet

QuotaKind = Literal["destination_storage", "message_age"]


@router.get("/{tenant}/{namespace}/backlogQuotaMap")
async def backlog_quotas(broker: BrokerDep, namespace: NamespaceDep) -> dict[str, Any]:
    policies = await broker.resources.policies(namespace)
    shown: dict[str, Any] = msgspec.to_builtins(policies.backlog_quota_map)
    return shown


@router.post("/{tenant}/{namespace}/backlogQuota", status_code=204)
async def set_backlog_quota(
    broker: BrokerDep,
    namespace: NamespaceDep,
    request: Request,
    backlogQuotaType: QuotaKind = "destination_storage",
) -> None:
    quota = await body(request, BacklogQuota)

    def change(policies: Policies) -> Policies:
        retention = policies.retention_policies
        if retention and retention.megabytes > 0 and 0 <= quota.bytes_max <= retention.megabytes << 20:
            raise RestError(412, "Backlog Quota exceeds configured retention quota for namespace")
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
