"""Settings of one topic, over those of its namespace: `/admin/v2/persistent/{tenant}/{ns}/{topic}/{setting}`, and the
same below `/admin/v2/scalable` and `/admin/v2/topic` for scalable topics.

Partitions and segments share those of their topic, also segments that later splits make. With `applied=true` a GET
answers the value in force, from any level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from anabranch.broker.admin.http.answer import HttpAnswer
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.parameters import SubscriptionName
from anabranch.broker.admin.http.request import HttpRequest, body
from anabranch.broker.admin.http.routes import scalable_routes, topic_routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.admin.settings.routes import (
    TOPIC_SETTINGS,
    Setting,
    Unserved,
    add_refusals,
    add_routes,
    changed,
    shown,
    shown_quotas,
)
from anabranch.broker.policy.namespace import (
    BacklogQuota,
    QuotaKind,
)
from anabranch.broker.policy.rate_json import DispatchRate
from anabranch.broker.policy.topic import TopicPolicies
from anabranch.model.names import Domain, TopicName

routes = topic_routes(Domain.PERSISTENT)
scalable, by_java = scalable_routes()

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

# Settings that act on classic topics only.
UNSERVED_SCALABLE = (
    *UNSERVED,
    Unserved("inactiveTopicPolicies", "scalable topics are not deleted for being unused"),
    Unserved("compactionThreshold", "scalable topics are not compacted"),
)

_UNSET = TopicPolicies()


async def _existing(services: AdminServices, topic: TopicName) -> None:
    """404 unless there is such a topic, partitioned or not, or scalable if its name says so."""
    await services.resources.policies(topic.namespace)
    if topic.domain is Domain.TOPIC:
        if not await services.has_scalable(topic):
            raise RestError(404, f"Topic {topic} not found: there is no scalable topic of that name")
        return
    is_partitioned = not topic.is_partition and await services.resources.partitions(topic)
    if not is_partitioned and not await services.resources.topic_exists(topic):
        raise RestError(404, f"Topic {topic} not found")


def _check(services: AdminServices, value: Mapping[str, Any]) -> None:
    """Checks that only this broker can make."""
    if (value.get("max_message_size") or 0) > (most := services.config.max_message_size):
        raise RestError(412, f"maxMessageSize of a topic must not be over the broker's, {most}")
    clusters = value.get("replication_clusters")
    if clusters is not None and set(clusters) != {services.resources.cluster}:
        raise RestError(
            412,
            f"there is no geo-replication here: the only cluster of a topic is {services.resources.cluster}",
        )


_NOT_SCALABLE = frozenset(one.path for one in UNSERVED_SCALABLE)


def _routes(setting: Setting) -> None:
    async def show(services: AdminServices, topic: TopicName, applied: bool = False) -> HttpAnswer:
        await _existing(services, topic)
        if not applied:
            return shown(setting.value(services.topic_policies.of(topic)))
        return shown(getattr(await services.policies(topic), setting.field))

    async def change(services: AdminServices, topic: TopicName, request: HttpRequest) -> None:
        value = await changed(request, setting, services.resources.cluster, _UNSET)
        _check(services, value)
        await _existing(services, topic)
        await services.topic_policies.change(topic, lambda p: msgspec.structs.replace(p, **value))

    async def unset(services: AdminServices, topic: TopicName) -> None:
        await _existing(services, topic)
        value = setting.removed(_UNSET)
        await services.topic_policies.change(topic, lambda p: msgspec.structs.replace(p, **value))

    add_routes(routes, "/" + setting.path, setting, show, change, unset)
    if setting.path not in _NOT_SCALABLE:
        for table in (scalable, by_java):
            add_routes(table, "/" + setting.path, setting, show, change, unset)


async def _check_exists(request: HttpRequest) -> None:
    await _existing(request.services, request.names.topic)


for _setting in TOPIC_SETTINGS:
    _routes(_setting)
add_refusals(routes, "/", UNSERVED, _check_exists)
for _table in (scalable, by_java):
    add_refusals(_table, "/", UNSERVED_SCALABLE, _check_exists)


@routes.delete("/policies", status=204)
async def forget(services: AdminServices, topic: TopicName) -> None:
    """Removes all policies of the topic: from now on it has its namespace's only."""
    await _existing(services, topic)
    await services.topic_policies.forget(topic)


# -- backlog quotas: a map of two kinds, changed one at a time


@routes.get("/backlogQuotaMap")
async def backlog_quotas(services: AdminServices, topic: TopicName, applied: bool = False) -> dict[str, Any]:
    await _existing(services, topic)
    if not applied:
        return shown_quotas(services.topic_policies.of(topic).backlog_quota_map)
    return shown_quotas((await services.policies(topic)).backlog_quota_map)


@routes.post("/backlogQuota", status=204, body=BacklogQuota)
async def set_backlog_quota(
    services: AdminServices,
    topic: TopicName,
    request: HttpRequest,
    backlogQuotaType: QuotaKind = "destination_storage",
) -> None:
    quota = await body(request, BacklogQuota)
    await _existing(services, topic)
    await services.topic_policies.change(
        topic,
        lambda p: msgspec.structs.replace(
            p, backlog_quota_map={**p.backlog_quota_map, backlogQuotaType: quota}
        ),
    )


@routes.delete("/backlogQuota", status=204)
async def remove_backlog_quota(
    services: AdminServices, topic: TopicName, backlogQuotaType: QuotaKind = "destination_storage"
) -> None:
    await _existing(services, topic)

    def change(policies: TopicPolicies) -> TopicPolicies:
        kept = {k: quota for k, quota in policies.backlog_quota_map.items() if k != backlogQuotaType}
        return msgspec.structs.replace(policies, backlog_quota_map=kept)

    await services.topic_policies.change(topic, change)


# -- the rate of one subscription, over that of all


@routes.get("/{subscription}/dispatchRate")
async def subscription_rate(
    services: AdminServices, topic: TopicName, subscription: SubscriptionName, applied: bool = False
) -> HttpAnswer:
    await _existing(services, topic)
    found = services.topic_policies.of(topic).rates_of_subscriptions.get(subscription)
    if found is None and applied:
        found = (await services.policies(topic)).subscription_dispatch_rate
    return shown(found)


@routes.post("/{subscription}/dispatchRate", status=204, body=DispatchRate)
async def set_subscription_rate(
    services: AdminServices, topic: TopicName, subscription: SubscriptionName, request: HttpRequest
) -> None:
    rate = await body(request, DispatchRate)
    rate.check()
    await _existing(services, topic)
    await _change_rates(services, topic, lambda rates: {**rates, subscription: rate})


@routes.delete("/{subscription}/dispatchRate", status=204)
async def remove_subscription_rate(
    services: AdminServices, topic: TopicName, subscription: SubscriptionName
) -> None:
    await _existing(services, topic)
    await _change_rates(
        services, topic, lambda rates: {name: rate for name, rate in rates.items() if name != subscription}
    )


async def _change_rates(
    services: AdminServices,
    topic: TopicName,
    change: Callable[[dict[str, DispatchRate]], dict[str, DispatchRate]],
) -> None:
    await services.topic_policies.change(
        topic,
        lambda p: msgspec.structs.replace(p, rates_of_subscriptions=change(p.rates_of_subscriptions)),
    )


for _table in (scalable, by_java):
    _table.delete("/policies", status=204)(forget)
    _table.get("/backlogQuotaMap")(backlog_quotas)
    _table.post("/backlogQuota", status=204, body=BacklogQuota)(set_backlog_quota)
    _table.delete("/backlogQuota", status=204)(remove_backlog_quota)
    _table.get("/{subscription}/dispatchRate")(subscription_rate)
    _table.post("/{subscription}/dispatchRate", status=204, body=DispatchRate)(set_subscription_rate)
    _table.delete("/{subscription}/dispatchRate", status=204)(remove_subscription_rate)
