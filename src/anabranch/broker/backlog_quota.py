"""What becomes of a topic whose slowest durable subscription has fallen too far behind, in bytes or in time.

The verdict is a pure function of figures. It is asked for in two places: when a producer wants to attach, and every
`backlogQuotaCheckIntervalInSeconds` for each open topic. In between, a backlog may grow beyond its quota, as in Pulsar.
Producers that are held or refused are closed; their clients come back and are told which of the two it is. Eviction
gives up the oldest unacknowledged entries, down to nine tenths of the quota, so that it does not run at each check.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anabranch.broker.config import BrokerConfig
from anabranch.broker.errors import BrokerError, QuotaExceededError, QuotaHoldError
from anabranch.broker.policies import Policies, QuotaAction, QuotaKind

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
        self.evicted = 0

    def set(self, quotas: tuple[Quota, ...]) -> None:
        self._quotas = quotas

    @property
    def is_set(self) -> bool:
        return bool(self._quotas)

    async def admit_producer(self) -> None:
        """Raises if producers are held or refused at present."""
        for quota in await self._exceeded():
            if (error := _refusal(str(self._topic.name), quota)) is not None:
                raise error

    async def check(self) -> None:
        """Closes producers, or evicts, if a quota is exceeded."""
        for quota in await self._exceeded():
            log.info(
                "%s: %s quota of %d exceeded: %s", self._topic.name, quota.kind, quota.limit, quota.action
            )
            if quota.action != "consumer_backlog_eviction":
                self._topic.attached.close_all()
            elif quota.kind == "destination_storage":
                await self._evict_to_size(quota.limit)
            else:
                await self._evict_older(quota.limit)

    async def _exceeded(self) -> list[Quota]:
        if not self._quotas or self._topic.is_closed:
            return []
        size = backlog_bytes(self._topic)
        age_s = 0.0
        if size and any(quota.kind == "message_age" for quota in self._quotas):
            age_s = await self._oldest_age_s()
        return [quota for quota in self._quotas if quota.is_exceeded(size, age_s)]

    async def _oldest_age_s(self) -> float:
        durable = [s for s in self._topic.subscribing.durable() if s.backlog()]
        if not durable:
            return 0.0
        oldest_ms = await min(durable, key=lambda s: s.next).earliest_publish_time()
        return (self._topic.broker.now_ms() - oldest_ms) / 1000 if oldest_ms else 0.0

    async def _evict_to_size(self, limit: int) -> None:
        topic_log = self._topic.log
        kept = int(topic_log.entries * limit * EVICT_TO / max(topic_log.size_bytes, 1))
        below = topic_log.position_at(max(0, topic_log.entries - kept))
        for subscription in self._topic.subscribing.durable():
            if subscription.next < below:
                self.evicted += await subscription.give_up_below(below)

    async def _evict_older(self, seconds: int) -> None:
        before_ms = self._topic.broker.now_ms() - seconds * 1000
        for subscription in self._topic.subscribing.durable():
            self.evicted += await subscription.expire_before(before_ms)


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
