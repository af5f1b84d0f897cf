"""Settings of a namespace, one table: GET, POST (or PUT) and DELETE `/admin/v2/namespaces/{tenant}/{ns}/{setting}`.

A setting that is not set answers 204, so that clients see "the broker decides".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from anabranch.broker.admin.errors import RestError
from anabranch.broker.admin.params import BrokerDep, NamespaceDep, body
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


@dataclass(frozen=True, slots=True)
class Setting:
    path: str
    field: str
    kind: Any


SETTINGS = (
    Setting("retention", "retention_policies", Retention),
    Setting("messageTTL", "message_ttl_in_seconds", int),
    Setting("subscriptionExpirationTime", "subscription_expiration_time_minutes", Count),
    Setting("deduplication", "deduplication_enabled", bool),
    Setting("autoTopicCreation", "auto_topic_creation", AutoTopicCreation),
    Setting("autoSubscriptionCreation", "auto_subscription_creation", AutoSubscriptionCreation),
    Setting("persistence", "persistence", Persistence),
    Setting("delayedDelivery", "delayed_delivery_policies", DelayedDelivery),
    Setting("inactiveTopicPolicies", "inactive_topic_policies", InactiveTopics),
    Setting("maxProducersPerTopic", "max_producers_per_topic", Count),
    Setting("maxConsumersPerTopic", "max_consumers_per_topic", Count),
    Setting("maxConsumersPerSubscription", "max_consumers_per_subscription", Count),
    Setting("maxUnackedMessagesPerConsumer", "max_unacked_messages_per_consumer", Count),
    Setting("maxUnackedMessagesPerSubscription", "max_unacked_messages_per_subscription", Count),
    Setting("maxSubscriptionsPerTopic", "max_subscriptions_per_topic", Count),
    Setting("maxTopicsPerNamespace", "max_topics_per_namespace", Count),
    Setting("isAllowAutoUpdateSchema", "is_allow_auto_update_schema", bool),
    Setting("schemaCompatibilityStrategy", "schema_compatibility_strategy", str),
    Setting("schemaValidationEnforced", "schema_validation_enforced", bool),
    Setting("properties", "properties", dict[str, str]),
)

_UNSET = Policies()


def _routes(setting: Setting) -> None:
    async def show(broker: BrokerDep, namespace: NamespaceDep) -> Response:
        value = getattr(await broker.resources.policies(namespace), setting.field)
        return Response(status_code=204) if value is None else JSONResponse(msgspec.to_builtins(value))

    async def change(broker: BrokerDep, namespace: NamespaceDep, request: Request) -> None:
        value = await body(request, setting.kind)
        await broker.resources.update_policies(
            namespace, lambda policies: msgspec.structs.replace(policies, **{setting.field: value})
        )

    async def unset(broker: BrokerDep, namespace: NamespaceDep) -> None:
        value = getattr(_UNSET, setting.field)
        await broker.resources.update_policies(
            namespace, lambda policies: msgspec.structs.replace(policies, **{setting.field: value})
        )

    path = f"/{{tenant}}/{{namespace}}/{setting.path}"
    handlers: tuple[tuple[list[str], Callable[..., Awaitable[Any]], int], ...] = (
        (["GET"], show, 200),
        (["POST", "PUT"], change, 204),
        (["DELETE"], unset, 204),
    )
    for methods, handler, status in handlers:
        name = f"{handler.__name__}_{setting.path}"
        router.add_api_route(
            path, handler, methods=methods, status_code=status, name=name, response_model=None
        )


for _setting in SETTINGS:
    _routes(_setting)


# -- backlog quotas: a map of two kinds, changed one at a time

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
