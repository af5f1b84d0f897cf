"""What the automatic scaler asks, answers and works out of what a leader knows: values and small functions, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from anabranch.autoscale.decide import Merge, NoMerge, NoSplit, Observation, Split, Stay, Verdict, decide
from anabranch.autoscale.decisions import Decision, History
from anabranch.autoscale.load import LoadReport
from anabranch.autoscale.policy import Policy, Resolved, problems
from anabranch.controller.core import events as e
from anabranch.controller.topic_controller import TopicController
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import TopicName
from anabranch.model.scalable import ScalableTopic, SubscriptionKind
from anabranch.model.segments import SegmentId


class Policies(Protocol):
    """What topics are to obey."""

    @property
    def broker(self) -> Policy:
        """Where nothing else is set."""
        ...

    async def resolved(self, topic: TopicName, override: Mapping[str, Any] | None) -> Resolved:
        """With `override` as the topic's own. InvalidPolicy if what is stored cannot be read as a policy."""
        ...


class Listener(Protocol):
    """Whoever keeps what is decided, and on what. It must be quick, and raise nothing."""

    def decided(
        self, topic: TopicName, decision: Decision, verdict: Verdict | None, layout: SegmentLayout | None
    ) -> None:
        """An answer that is not the one before; without a verdict it was done by hand, or failed."""
        ...

    def consumers_changed(self, topic: TopicName, consumers: Mapping[str, int]) -> None:
        """The ordered consumers of each subscription that has any."""
        ...


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a topic is as it is."""

    resolved: Resolved
    decisions: History
    load: Mapping[SegmentId, LoadReport]
    problems: tuple[str, ...]  # Of the policy. With any, the topic is left alone.
    verdict: Verdict  # What would be decided now.
    now_ms: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one topic, since this broker leads it."""

    topic: TopicName
    active_segments: int
    auto_splits: int
    auto_merges: int
    split_suppressed_max_segments: int
    merge_suppressed_max_depth: int
    problems: tuple[str, ...]


def record_of(controller: TopicController) -> ScalableTopic | None:
    """The record of a topic that may be split and merged; None if this broker does not lead one."""
    state = controller.state
    if state is None or state.is_classic or state.topic.is_deleting:
        return None
    return state.topic


def consumers_of(controller: TopicController) -> dict[str, int]:
    """Ordered consumers by subscription: those within their grace period count, those of queues do not."""
    return {
        name: len(coordinator.group.sessions)
        for name, coordinator in sorted(controller.coordinators.items())
        if coordinator.group.sessions and coordinator.record.kind is not SubscriptionKind.QUEUE
    }


def wants_more(controller: TopicController, consumers: Mapping[str, int]) -> bool:
    record = record_of(controller)
    return record is not None and max(consumers.values(), default=0) > len(record.layout.active)


def judged(seen: Observation, policy: Policy, found: tuple[str, ...], *, everything: bool = True) -> Verdict:
    """`found` are the problems of the policy, also those of one that could not be read."""
    if found and not problems(policy):
        off = "Automatic split and merge is off, as the policy cannot be read"
        return Stay(f"{off}: {'; '.join(found)}.", no_split=NoSplit.OFF, no_merge=NoMerge.OFF)
    return decide(seen, policy, consumers_only=not everything)


def named(verdict: Split | Merge) -> tuple[str, str]:
    return ("split", verdict.rule) if isinstance(verdict, Split) else ("merge", "cold")


def segments_of(verdict: Split | Merge) -> tuple[SegmentId, ...]:
    return (verdict.segment,) if isinstance(verdict, Split) else (verdict.one, verdict.other)


def request_for(ticket: e.Ticket, verdict: Split | Merge, now_ms: int) -> e.Request:
    if isinstance(verdict, Split):
        return e.SplitRequested(ticket, verdict.segment, now_ms, verdict.lopsided)
    return e.MergeRequested(ticket, verdict.one, verdict.other, now_ms)
