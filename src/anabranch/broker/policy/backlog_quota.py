"""When a topic's slowest durable subscription has fallen too far behind, in bytes or in time, and what follows. Pure.

`topic/quotas.py` checks topics and carries out the decisions made here.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.broker.config.choices import QuotaAction
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.errors import BrokerError, QuotaExceededError, QuotaHoldError
from anabranch.broker.policy.effective import EffectivePolicies
from anabranch.broker.policy.namespace import QuotaKind


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit, in bytes or in seconds by its kind, and the action beyond it."""

    kind: QuotaKind
    limit: int
    action: QuotaAction

    def is_exceeded(self, backlog_bytes: int, oldest_age_s: float) -> bool:
        if self.kind == "destination_storage":
            return backlog_bytes >= self.limit and backlog_bytes > 0
        return oldest_age_s > self.limit


def quotas_of(config: BrokerConfig, policies: EffectivePolicies) -> tuple[Quota, ...]:
    """The quotas in force; none for most topics."""
    if not config.backlog_quota_check_enabled:
        return ()
    by_size, by_age = (
        policies.backlog_quota_map["destination_storage"],
        policies.backlog_quota_map["message_age"],
    )
    quotas = (
        Quota("destination_storage", by_size.bytes_max, by_size.policy),
        Quota("message_age", by_age.limit_time, by_age.policy),
    )
    return tuple(quota for quota in quotas if quota.limit >= 0)


def quota_refusal(topic: str, quota: Quota) -> BrokerError | None:
    """The error for a producer that asks to attach; None where the quota concerns consumers only."""
    what = "bytes" if quota.kind == "destination_storage" else "seconds"
    text = (
        f"Cannot create producer on topic with backlog quota exceeded: {topic} has a backlog of {quota.limit} {what} "
        "or more; its consumers must catch up first"
    )
    if quota.action == "producer_request_hold":
        return QuotaHoldError(text)
    return QuotaExceededError(text) if quota.action == "producer_exception" else None
