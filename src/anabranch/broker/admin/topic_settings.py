"""Settings of one topic, over those of its namespace: `/admin/v2/persistent/{tenant}/{ns}/{topic}/{setting}`.

Partitions share those of their topic. With `applied=true` a GET answers what is in force, whoever set it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from anabranch.broker.admin.errors import RestError
from anabranch.broker.admin.in_force import configured, configured_quotas
from anabranch.broker.admin.openapi import takes
from anabranch.broker.admin.params import BrokerDep, SubscriptionDep, TopicDep, body
from anabranch.broker.admin.setting import (
    Setting,
    Unserved,
    add_refusals,
    add_routes,
    changed,
    shown,
    shown_quotas,
)
from anabranch.broker.broker import Broker
from anabranch.broker.policies import (
    AutoSubscriptionCreation,
    BacklogQuota,
    DelayedDelivery,
    InactiveTopics,
    Persistence,
    QuotaKind,
    Retention,
    Strategy,
    SubscriptionType,
)
from anabranch.broker.policy_json import Count, Count64, Int32
from anabranch.broker.rates import DispatchRate, PublishRate, SubscribeRate
from anabranch.broker.topic_policies import TopicPolicies
from anabranch.model.names import TopicName

router = APIRouter()

SETTINGS = (
    Setting("retention", "retention_policies", Retention),
    Setting("messageTTL", "message_ttl_in_seconds", Int32, parameter="messageTTL"),
    Setting("deduplicationEnabled", "deduplication_enabled", bool),
    Setting("deduplicationSnapshotInterval", "deduplication_snapshot_interval", Count),
    Setting("compactionThreshold", "compaction_threshold", Count64),
    Setting("persistence", "persistence", Persistence),
    Setting("autoSubscriptionCreation", "auto_subscription_creation", AutoSubscriptionCreation),
    Setting("schemaCompatibilityStrategy", "schema_compatibility_strategy", Strategy),
    Setting("schemaValidationEnforced", "schema_validation_enforced", bool, unset=False),
    Setting(
        "subscriptionExpirationTime",
        "subscription_expiration_time_minutes",
        Count,
        parameter="subscriptionExpirationTime",
        fault="Invalid value for subscription expiration time",
    ),
    Setting("subscriptionTypesEnabled", "subscription_types_enabled", tuple[SubscriptionType, ...], unset=()),
    Setting("delayedDelivery", "delayed_delivery_policies", DelayedDelivery),
    Setting("inactiveTopicPolicies", "inactive_topic_policies", InactiveTopics),
    Setting("maxProducers", "max_producers_per_topic", Count),
    Setting("maxConsumers", "max_consumers_per_topic", Count),
    Setting("maxConsumersPerSubscription", "max_consumers_per_subscription", Count),
    Setting("maxSubscriptionsPerTopic", "max_subscriptions_per_topic", Count),
    Setting("maxUnackedMessagesOnConsumer", "max_unacked_messages_per_consumer", Count),
    Setting("maxUnackedMessagesOnSubscription", "max_unacked_messages_per_subscription", Count),
    Setting("publishRate", "publish_rate", PublishRate, is_per_cluster=True),
    Setting("dispatchRate", "dispatch_rate", DispatchRate, is_per_cluster=True),
    Setting("subscriptionDispatchRate", "subscription_dispatch_rate", DispatchRate, is_per_cluster=True),
    Setting("subscribeRate", "subscribe_rate", SubscribeRate, is_per_cluster=True),
    Setting("maxMessageSize", "max_message_size", Count),
    Setting("replication", "replication_clusters", tuple[str, ...]),
)

UNSERVED = (
    Unserved("replicatorDispatchRate", "there is no geo-replication here"),
    Unserved("shadowTopics", "there are no shadow topics; read the topic itself"),
    Unserved("offloadPolicies", "there is no tiered storage to offload to"),
    Unserved(
        "entryFilters",
        "brokers run no code of their users; filter in the consumer",
        applied={"entryFilterNames": ""},
    ),
    Unserved(
        "dispatcherPauseOnAckStatePersistent",
        "acknowledgements are written before they are answered",
        unset=False,
    ),
)

_UNSET = TopicPolicies()


async def _existing(broker: Broker, topic: TopicName) -> None:
    """404 unless there is such a topic, partitioned or not."""
    await broker.resources.policies(topic.namespace)
    is_partitioned = not topic.is_partition and await broker.resources.partitions(topic)
    if not is_partitioned and not await broker.resources.topic_exists(topic):
        raise RestError(404, f"Topic {topic} not found")


def _check(broker: Broker, value: Mapping[str, Any]) -> None:
    """What only this broker can judge."""
    if (value.get("max_message_size") or 0) > (most := broker.config.max_message_size):
        raise RestError(412, f"maxMessageSize of a topic must not be over the broker's, {most}")
    clusters = value.get("replication_clusters")
    if clusters is not None and set(clusters) != {broker.resources.cluster}:
        raise RestError(
            412,
            f"there is no geo-replication here: the only cluster of a topic is {broker.resources.cluster}",
        )


def _routes(setting: Setting) -> None:
    async def show(broker: BrokerDep, topic: TopicDep, applied: bool = False) -> Response:
        await _existing(broker, topic)
        if not applied:
            return shown(setting.value(broker.topic_policies.of(topic)))
        value = setting.value(await broker.policies(topic))
        return shown(configured(broker.config).get(setting.field) if value is None else value)

    async def change(broker: BrokerDep, topic: TopicDep, request: Request) -> None:
        value = await changed(request, setting, broker.resources.cluster, _UNSET)
        _check(broker, value)
        await _existing(broker, topic)
        await broker.topic_policies.change(topic, lambda p: msgspec.structs.replace(p, **value))

    async def unset(broker: BrokerDep, topic: TopicDep) -> None:
        await _existing(broker, topic)
        value = setting.removed(_UNSET)
        await broker.topic_policies.change(topic, lambda p: msgspec.structs.replace(p, **value))

    add_routes(router, "/" + setting.path, setting, show, change, unset)


async def _never_set(broker: BrokerDep, topic: TopicDep) -> Response:
    await _existing(broker, topic)
    return Response(status_code=204)


for _setting in SETTINGS:
    _routes(_setting)
for _unserved in UNSERVED:
    add_refusals(router, "/" + _unserved.path, _unserved, _never_set)


@router.delete("/policies", status_code=204)
async def forget(broker: BrokerDep, topic: TopicDep) -> None:
    """From now on the topic has its namespace's policies only."""
    await _existing(broker, topic)
    await broker.topic_policies.forget(topic)


# -- backlog quotas: a map of two kinds, changed one at a time


@router.get("/backlogQuotaMap")
async def backlog_quotas(broker: BrokerDep, topic: TopicDep, applied: bool = False) -> dict[str, Any]:
    await _existing(broker, topic)
    if not applied:
        return shown_quotas(broker.topic_policies.of(topic).backlog_quota_map)
    found = (await broker.policies(topic)).backlog_quota_map
    return shown_quotas({**configured_quotas(broker.config), **found})


@router.post("/backlogQuota", status_code=204, openapi_extra=takes(BacklogQuota))
async def set_backlog_quota(
    broker: BrokerDep,
    topic: TopicDep,
    request: Request,
    backlogQuotaType: QuotaKind = "destination_storage",
) -> None:
    quota = await body(request, BacklogQuota)
    await _existing(broker, topic)
    await broker.topic_policies.change(
        topic,
        lambda p: msgspec.structs.replace(
            p, backlog_quota_map={**p.backlog_quota_map, backlogQuotaType: quota}
        ),
    )


@router.delete("/backlogQuota", status_code=204)
async def remove_backlog_quota(
    broker: BrokerDep, topic: TopicDep, backlogQuotaType: QuotaKind = "destination_storage"
) -> None:
    await _existing(broker, topic)

    def change(policies: TopicPolicies) -> TopicPolicies:
        kept = {k: quota for k, quota in policies.backlog_quota_map.items() if k != backlogQuotaType}
        return msgspec.structs.replace(policies, backlog_quota_map=kept)

    await broker.topic_policies.change(topic, change)


# -- the rate of one subscription, over that of all


@router.get("/{subscription}/dispatchRate")
async def subscription_rate(
    broker: BrokerDep, topic: TopicDep, subscription: SubscriptionDep, applied: bool = False
) -> Response:
    await _existing(broker, topic)
    found = broker.topic_policies.of(topic).rates_of_subscriptions.get(subscription)
    if found is None and applied:
        rates = (await broker.policies(topic)).subscription_dispatch_rate.values()
        return shown(next(iter(rates), configured(broker.config)["subscription_dispatch_rate"]))
    return shown(found)


@router.post("/{subscription}/dispatchRate", status_code=204, openapi_extra=takes(DispatchRate))
async def set_subscription_rate(
    broker: BrokerDep, topic: TopicDep, subscription: SubscriptionDep, request: Request
) -> None:
    rate = await body(request, DispatchRate)
    rate.check()
    await _existing(broker, topic)
    await _change_rates(broker, topic, lambda rates: {**rates, subscription: rate})


@router.delete("/{subscription}/dispatchRate", status_code=204)
async def remove_subscription_rate(broker: BrokerDep, topic: TopicDep, subscription: SubscriptionDep) -> None:
    await _existing(broker, topic)
    await _change_rates(
        broker, topic, lambda rates: {name: rate for name, rate in rates.items() if name != subscription}
    )


async def _change_rates(
    broker: Broker,
    topic: TopicName,
    change: Callable[[dict[str, DispatchRate]], dict[str, DispatchRate]],
) -> None:
    await broker.topic_policies.change(
        topic,
        lambda p: msgspec.structs.replace(p, rates_of_subscriptions=change(p.rates_of_subscriptions)),
    )
