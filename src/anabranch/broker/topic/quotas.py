"""What happens to a topic whose slowest durable subscription has fallen too far behind, in bytes or in time.

The quotas are checked in two places: when a producer asks to attach, and every `backlogQuotaCheckIntervalInSeconds` for
each open topic. In between, a backlog may exceed its quota, as in Pulsar. Producers that are held or refused are
closed; their clients reconnect and learn which of the two applies. Eviction drops the oldest unacknowledged entries,
down to nine tenths of the quota, so that it does not run at each check. The age of the oldest message is measured in
every check, with or without a quota, because operators watch it.
"""

from __future__ import annotations

import logging
from collections import Counter

from anabranch.broker.policy.backlog_quota import Quota, quota_refusal
from anabranch.broker.policy.namespace import QuotaKind
from anabranch.broker.topic.phase import TopicLife
from anabranch.broker.topic.producers import TopicProducers
from anabranch.broker.topic.services import TopicServices
from anabranch.broker.topic.subscriptions import Subscribing
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.model.segments import spoken_name
from anabranch.storage.port import LogError
from anabranch.storage.topic.topic_log import TopicLog

log = logging.getLogger(__name__)

EVICT_TO = 0.9


class BacklogQuotas:
    """The quotas of one topic."""

    __slots__ = (
        "_life",
        "_log",
        "_name",
        "_oldest",
        "_producers",
        "_quotas",
        "_services",
        "_subscribing",
        "evictions",
    )

    def __init__(
        self,
        services: TopicServices,
        name: TopicName,
        topic_log: TopicLog,
        life: TopicLife,
        producers: TopicProducers,
        subscribing: Subscribing,
    ) -> None:
        self._services = services
        self._name = name
        self._log = topic_log
        self._life = life
        self._producers = producers
        self._subscribing = subscribing
        self._quotas: tuple[Quota, ...] = ()
        # How often messages were evicted.
        self.evictions: Counter[QuotaKind] = Counter()
        # The position of the oldest unacknowledged message, and its publish time.
        self._oldest: tuple[Position, int] | None = None

    def set(self, quotas: tuple[Quota, ...]) -> None:
        self._quotas = quotas

    @property
    def is_set(self) -> bool:
        return bool(self._quotas)

    def limit(self, kind: QuotaKind) -> int:
        """The limit in force, in bytes or in seconds; -1 for none."""
        return next((quota.limit for quota in self._quotas if quota.kind == kind), -1)

    @property
    def backlog_age_s(self) -> int:
        """The age of the oldest unacknowledged message, as of the last check; -1 if there is none."""
        if self._oldest is None or not any(s.backlog() for s in self._subscribing.durable()):
            return -1
        return max(0, self._services.now_ms() - self._oldest[1]) // 1000

    def holding(self) -> list[str]:
        """Why producers are held or refused at present, as of the last check of the oldest message's age."""
        refusals = (
            quota_refusal(spoken_name(self._name), quota)
            for quota in self._exceeded(max(0, self.backlog_age_s))
        )
        return [
            f"producers wait: {refusal}".replace(
                "Cannot create producer on topic with backlog quota exceeded: ", ""
            )
            for refusal in refusals
            if refusal is not None
        ]

    async def admit_producer(self) -> None:
        """Raises if a quota holds or refuses producers at present."""
        is_timed = any(quota.kind == "message_age" for quota in self._quotas)
        for quota in self._exceeded(await self._oldest_age_s() if is_timed else 0.0):
            if (error := quota_refusal(spoken_name(self._name), quota)) is not None:
                raise error

    async def check(self) -> None:
        """Closes producers, or evicts, if a quota is exceeded."""
        if self._life.is_closed or not self._services.config().backlog_quota_check_enabled:
            return
        for quota in self._exceeded(await self._oldest_age_s()):
            log.info("%s: %s quota of %d exceeded: %s", self._name, quota.kind, quota.limit, quota.action)
            if quota.action == "consumer_backlog_eviction":
                self.evictions[quota.kind] += 1
            if quota.action != "consumer_backlog_eviction":
                self._producers.close_all()
            elif quota.kind == "destination_storage":
                await self._evict_to_size(quota.limit)
            else:
                await self._evict_older(quota.limit)

    def _exceeded(self, age_s: float) -> list[Quota]:
        if not self._quotas or self._life.is_closed:
            return []
        size = self._backlog_bytes()
        return [quota for quota in self._quotas if quota.is_exceeded(size, age_s)]

    async def _oldest_age_s(self) -> float:
        durable = [s for s in self._subscribing.durable() if s.backlog()]
        if not durable:
            self._oldest = None
            return 0.0
        slowest = min(durable, key=lambda s: s.next)
        try:
            if self._oldest is None or self._oldest[0] != slowest.next:
                at = slowest.next
                oldest_ms = await slowest.earliest_publish_time()
                self._oldest = (at, oldest_ms) if oldest_ms else None
        except LogError as error:
            # Producers must not be refused because of an unreadable entry.
            log.warning("%s: reading the age of the oldest message failed: %s", self._name, error)
            return 0.0
        return (self._services.now_ms() - self._oldest[1]) / 1000 if self._oldest is not None else 0.0

    async def _evict_to_size(self, limit: int) -> None:
        topic_log = self._log
        kept = int(topic_log.entries * limit * EVICT_TO / max(topic_log.size_bytes, 1))
        below = topic_log.position_at(max(0, topic_log.entries - kept))
        for subscription in self._subscribing.durable():
            if not subscription.is_closed and subscription.next < below:
                await subscription.give_up_below(below)

    async def _evict_older(self, seconds: int) -> None:
        before_ms = self._services.now_ms() - seconds * 1000
        for subscription in self._subscribing.durable():
            await subscription.expire_before(before_ms)

    def _backlog_bytes(self) -> int:
        """The bytes that the slowest durable subscription has not acknowledged; every entry counts with the mean
        size."""
        topic_log, entries = self._log, self._log.entries
        slowest = min((s.next for s in self._subscribing.durable()), default=topic_log.end)
        return topic_log.size_bytes * topic_log.count(slowest, topic_log.end) // entries if entries else 0
