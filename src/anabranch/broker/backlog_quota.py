"""What becomes of a topic whose slowest durable subscription has fallen too far behind, in bytes or in time.

The verdict is a pure function of figures. It is asked for in two places: when a producer wants to attach, and every
`backlogQuotaCheckIntervalInSeconds` for each open topic. In between, a backlog may grow beyond its quota, as in Pulsar.
Producers that are held or refused are closed; their clients come back and are told which of the two it is. Eviction
gives up the oldest unacknowledged entries, down to nine tenths of the quota, so that it does not run at each check.
The age of the oldest message is looked at in every check, quota or not: operators watch it.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anabranch.broker.config import BrokerConfig
from anabranch.broker.errors import BrokerError, QuotaExceededError, QuotaHoldError
from anabranch.broker.policies import Policies, QuotaAction, QuotaKind
from anabranch.model.position import Position
from anabranch.storage.port import LogError

if TYPE_CHECKING:
    from anabranch.broker.topic import Topic

log = logging.getLogger(__name__)

EVICT_TO = 0.9


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit, in bytes or in seconds by its kind, and what happens beyond it."""

    kind: QuotaKind
    limit: int
    action: QuotaAction

    def is_exceeded(self, backlog_bytes: int, oldest_age_s: float) -> bool:
        if self.kind == "destination_storage":
            return backlog_bytes >= self.limit and backlog_bytes > 0
        return oldest_age_s > self.limit


def quotas_of(config: BrokerConfig, policies: Policies) -> tuple[Quota, ...]:
    """The quotas in force; none for most topics."""
    if not config.backlog_quota_check_enabled:
        return ()
    action = config.backlog_quota_default_retention_policy
    by_size, by_age = (
        policies.backlog_quota_map.get("destination_storage"),
        policies.backlog_quota_map.get("message_age"),
    )
    size = Quota(
        "destination_storage",
        config.backlog_quota_default_limit_bytes if by_size is None else by_size.bytes_max,
        action if by_size is None else by_size.policy,
    )
    age = Quota(
        "message_age",
        config.backlog_quota_default_limit_second if by_age is None else by_age.limit_time,
        action if by_age is None else by_age.policy,
    )
    return tuple(quota for quota in (size, age) if quota.limit >= 0)


class BacklogQuotas:
    """The quotas of one topic."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._quotas: tuple[Quota, ...] = ()
        # How often messages were given up.
        self.evictions: Counter[QuotaKind] = Counter()
        # Where the oldest message that is not acknowledged was found, and when it was published.
        self._oldest: tuple[Position, int] | None = None

    def set(self, quotas: tuple[Quota, ...]) -> None:
        self._quotas = quotas

    @property
    def is_set(self) -> bool:
        return bool(self._quotas)

    def limit(self, kind: QuotaKind) -> int:
        """The one in force, in bytes or in seconds; -1 for none."""
        return next((quota.limit for quota in self._quotas if quota.kind == kind), -1)

    @property
    def backlog_age_s(self) -> int:
        """How old the oldest message is that is not acknowledged, as of the last look; -1 if there is none."""
        if self._oldest is None or not any(s.backlog() for s in self._topic.subscribing.durable()):
            return -1
        return max(0, self._topic.broker.now_ms() - self._oldest[1]) // 1000

    async def admit_producer(self) -> None:
        """Raises if producers are held or refused at present."""
        is_timed = any(quota.kind == "message_age" for quota in self._quotas)
        for quota in self._exceeded(await self._oldest_age_s() if is_timed else 0.0):
            if (error := _refusal(str(self._topic.name), quota)) is not None:
                raise error

    async def check(self) -> None:
        """Closes producers, or evicts, if a quota is exceeded."""
        if self._topic.is_closed or not self._topic.broker.config.backlog_quota_check_enabled:
            return
        for quota in self._exceeded(await self._oldest_age_s()):
            log.info(
                "%s: %s quota of %d exceeded: %s", self._topic.name, quota.kind, quota.limit, quota.action
            )
            if quota.action == "consumer_backlog_eviction":
                self.evictions[quota.kind] += 1
            if quota.action != "consumer_backlog_eviction":
                self._topic.attached.close_all()
            elif quota.kind == "destination_storage":
                await self._evict_to_size(quota.limit)
            else:
                await self._evict_older(quota.limit)

    def _exceeded(self, age_s: float) -> list[Quota]:
        if not self._quotas or self._topic.is_closed:
            return []
        size = backlog_bytes(self._topic)
        return [quota for quota in self._quotas if quota.is_exceeded(size, age_s)]

    async def _oldest_age_s(self) -> float:
        durable = [s for s in self._topic.subscribing.durable() if s.backlog()]
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
            # Producers are not to be refused for an entry that nobody can read.
            log.warning("%s: the age of the oldest message is not known: %s", self._topic.name, error)
            return 0.0
        return (self._topic.broker.now_ms() - self._oldest[1]) / 1000 if self._oldest is not None else 0.0

    async def _evict_to_size(self, limit: int) -> None:
        topic_log = self._topic.log
        kept = int(topic_log.entries * limit * EVICT_TO / max(topic_log.size_bytes, 1))
        below = topic_log.position_at(max(0, topic_log.entries - kept))
        for subscription in self._topic.subscribing.durable():
            if subscription.next < below:
                await subscription.give_up_below(below)

    async def _evict_older(self, seconds: int) -> None:
        before_ms = self._topic.broker.now_ms() - seconds * 1000
        for subscription in self._topic.subscribing.durable():
            await subscription.expire_before(before_ms)


def backlog_bytes(topic: Topic) -> int:
    """What the slowest durable subscription has not acknowledged; entries count with their mean size."""
    topic_log = topic.log
    entries = topic_log.entries
    slowest = min((s.next for s in topic.subscribing.durable()), default=topic_log.end)
    return topic_log.size_bytes * topic_log.count(slowest, topic_log.end) // entries if entries else 0


def _refusal(topic: str, quota: Quota) -> BrokerError | None:
    what = "bytes" if quota.kind == "destination_storage" else "seconds"
    text = (
        f"Cannot create producer on topic with backlog quota exceeded: {topic} has a backlog of {quota.limit} {what} "
        "or more; its consumers must catch up first"
    )
    if quota.action == "producer_request_hold":
        return QuotaHoldError(text)
    return QuotaExceededError(text) if quota.action == "producer_exception" else None
