"""What is set on one topic, over what its namespace sets: stored per topic, kept at hand, told to whoever listens.

    /admin/topic-policies/{tenant}/{ns}/{domain}/{topic}        TopicPolicies; partitions share their topic's

All of them are in memory from the start, so that opening a topic asks the store for nothing; there are few.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from anabranch.broker.policies import (
    AutoSubscriptionCreation,
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
from anabranch.broker.policy_json import Count, Count64, Int32, InvalidValue, Json
from anabranch.broker.rates import DispatchRate, PublishRate, SubscribeRate
from anabranch.broker.resources import refused
from anabranch.metadata.errors import AlreadyExists, VersionConflict
from anabranch.metadata.port import MetadataStore, Watch
from anabranch.model.names import InvalidName, TopicName

log = logging.getLogger(__name__)

TOPIC_POLICIES = "/admin/topic-policies"


class TopicPolicies(Json, frozen=True, omit_defaults=True):
    """Each field has the name of the namespace's policy that it takes the place of; None leaves that in force."""

    backlog_quota_map: dict[QuotaKind, BacklogQuota] = msgspec.field(default_factory=dict)
    persistence: Persistence | None = None
    retention_policies: Retention | None = None
    message_ttl_in_seconds: Int32 | None = None
    subscription_expiration_time_minutes: Count | None = None
    deduplication_enabled: bool | None = None
    deduplication_snapshot_interval: Count | None = None
    auto_subscription_creation: AutoSubscriptionCreation | None = None
    delayed_delivery_policies: DelayedDelivery | None = None
    inactive_topic_policies: InactiveTopics | None = None
    max_producers_per_topic: Count | None = None
    max_consumers_per_topic: Count | None = None
    max_consumers_per_subscription: Count | None = None
    max_unacked_messages_per_consumer: Count | None = None
    max_unacked_messages_per_subscription: Count | None = None
    max_subscriptions_per_topic: Count | None = None
    schema_compatibility_strategy: Strategy | None = None
    schema_validation_enforced: bool | None = None
    subscription_types_enabled: tuple[SubscriptionType, ...] | None = None
    publish_rate: dict[str, PublishRate] = msgspec.field(default_factory=dict)
    dispatch_rate: dict[str, DispatchRate] = msgspec.field(default_factory=dict)
    subscription_dispatch_rate: dict[str, DispatchRate] = msgspec.field(default_factory=dict)
    compaction_threshold: Count64 | None = None
    # By subscription, over `subscription_dispatch_rate`.
    rates_of_subscriptions: dict[str, DispatchRate] = msgspec.field(default_factory=dict)
    subscribe_rate: dict[str, SubscribeRate] = msgspec.field(default_factory=dict)
    max_message_size: Count | None = None
    replication_clusters: tuple[str, ...] | None = None

    def over(self, policies: Policies) -> Policies:
        """The namespace's policies as they are for this topic."""
        changes: dict[str, Any] = {}
        for field in _SHARED:
            value = getattr(self, field)
            if isinstance(value, dict):
                # Kinds of quota that the topic does not set are still the namespace's.
                value = {**getattr(policies, field), **value} if value else None
            if value is not None and not (field == "schema_compatibility_strategy" and value == "UNDEFINED"):
                changes[field] = value
        return msgspec.structs.replace(policies, **changes) if changes else policies


_SHARED = frozenset(TopicPolicies.__struct_fields__) & frozenset(Policies.__struct_fields__)
_NOTHING = TopicPolicies()

Listener = Callable[[TopicName], None]


class TopicPolicyStore:
    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._known: dict[TopicName, TopicPolicies] = {}
        self._listeners: list[Listener] = []
        self._watch: Watch | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        # Watched first: what is changed while it is read is read again.
        self._watch = self._metadata.watch(TOPIC_POLICIES)
        await self._read_all()
        self._watching = asyncio.create_task(self._follow(self._watch))  # Awaited by `close`.

    async def close(self) -> None:
        if self._watch is not None and self._watching is not None:
            self._watch.close()
            await self._watching

    def of(self, topic: TopicName) -> TopicPolicies:
        return self._known.get(topic.base, _NOTHING)

    def over(self, policies: Policies, topic: TopicName) -> Policies:
        """The namespace's policies as they are for this topic, or for its partitions."""
        found = self._known.get(topic.base)
        return policies if found is None else found.over(policies)

    def on_change(self, listener: Listener) -> None:
        self._listeners.append(listener)

    async def change(self, topic: TopicName, change: Callable[[TopicPolicies], TopicPolicies]) -> None:
        """Stores `change(policies)`; `change` runs again whenever somebody else was faster."""
        path = _path(topic)
        while True:
            found = await self._metadata.get(path)
            before = TopicPolicies.decode(found.value) if found is not None and found.value else _NOTHING
            after = change(before)
            try:
                after.over(Policies()).checked()
                if found is None:
                    await self._metadata.create(path, msgspec.json.encode(after))
                else:
                    await self._metadata.put(path, msgspec.json.encode(after), if_version=found.version)
            except InvalidValue as error:
                raise refused(error) from None
            except (AlreadyExists, VersionConflict):
                continue
            self._learn(topic.base, after)
            return

    async def forget(self, topic: TopicName) -> None:
        """The topic is deleted, or is to have its namespace's policies only."""
        if await self._metadata.delete(_path(topic)):
            self._learn(topic.base, _NOTHING)

    # -- what others change

    async def _follow(self, watch: Watch) -> None:
        async for changes in watch:
            try:
                if changes.everything:
                    await self._read_all()
                    continue
                for path in changes.paths:
                    await self._read(path)
            except Exception:
                # A store that did not answer announces everything again once it does.
                log.exception("policies of topics could not be read again; the old ones stay in force")

    async def _read_all(self) -> None:
        found = dict(await self._metadata.scan(TOPIC_POLICIES))
        gone = [topic for topic in self._known if _path(topic) not in found]
        for path in [*found, *map(_path, gone)]:
            await self._read(path)

    async def _read(self, path: str) -> None:
        try:
            topic = TopicName.from_storage_path(path.removeprefix(TOPIC_POLICIES + "/"))
        except InvalidName:
            return  # A folder.
        found = await self._metadata.get(path)
        is_set = found is not None and found.value
        self._learn(topic, TopicPolicies.decode(found.value) if found and is_set else _NOTHING)

    def _learn(self, topic: TopicName, policies: TopicPolicies) -> None:
        if self._known.get(topic, _NOTHING) == policies:
            return
        if policies == _NOTHING:
            del self._known[topic]
        else:
            self._known[topic] = policies
        for listener in self._listeners:
            listener(topic)


def _path(topic: TopicName) -> str:
    return f"{TOPIC_POLICIES}/{topic.base.storage_path}"
