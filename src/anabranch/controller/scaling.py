"""The values and small functions of the automatic scaler: its ports, its answers, what it derives from a leader. No
I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from anabranch.autoscale.crowd import served
from anabranch.autoscale.decide import (
    NoMerge,
    NoRebucket,
    NoSplit,
    Observation,
    Rebucket,
    Reshape,
    Split,
    Stay,
    Verdict,
    decide,
)
from anabranch.autoscale.decisions import Decision, DecisionHistory
from anabranch.autoscale.load import LoadReport
from anabranch.autoscale.policy import Resolved, ScalePolicy, problems
from anabranch.controller.core import events as e
from anabranch.controller.topic_controller import TopicController
from anabranch.model.buckets import BucketBudget
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import TopicName
from anabranch.model.scalable import ScalableTopic, SubscriptionKind
from anabranch.model.segments import SegmentId


class ScalePolicySource(Protocol):
    """The policies that apply to topics."""

    @property
    def broker(self) -> ScalePolicy:
        """The broker's policy, which applies where nothing else is set."""
        ...

    async def resolved(self, topic: TopicName, override: Mapping[str, Any] | None) -> Resolved:
        """The policy in force with `override` as the topic's own. InvalidPolicy if a stored policy cannot be read."""
        ...


class DecisionListener(Protocol):
    """Keeps decisions and the facts behind them. It must be quick, and raise nothing."""

    def decided(
        self,
        topic: TopicName,
        decision: Decision,
        verdict: Verdict | None,
        layout: SegmentLayout | None,
        policy: ScalePolicy | None,
    ) -> None:
        """An answer differs from the one before; without a verdict, an operation was manual or failed. `policy` is the
        topic's where it differs from the broker's own."""
        ...

    def consumers_changed(self, topic: TopicName, consumers: Mapping[str, int]) -> None:
        """The ordered consumers of each subscription that has any have changed."""
        ...


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reasons for a topic's present state."""

    resolved: Resolved
    decisions: DecisionHistory
    load: Mapping[SegmentId, LoadReport]
    problems: tuple[str, ...]  # The policy's problems. With any, the topic is left alone.
    verdict: Verdict  # The decision that would be made now.
    now_ms: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Counters of one topic, since this broker leads it."""

    topic: TopicName
    active_segments: int
    auto_splits: int
    auto_merges: int
    rebuckets: int  # Those by hand count too.
    split_suppressed_max_segments: int
    merge_suppressed_max_depth: int
    problems: tuple[str, ...]
    draining: int = 0  # The sealed segments that consumers share now.


def record_of(controller: TopicController) -> ScalableTopic | None:
    """The record of a topic that may be split and merged; None if this broker does not lead one."""
    state = controller.state
    if state is None or state.is_classic or state.topic.is_deleting or state.topic.is_terminated:
        return None
    return state.topic


def consumers_of(controller: TopicController) -> dict[str, int]:
    """Ordered consumers by subscription: those within their grace period count, those of queues do not."""
    return {
        name: len(coordinator.group.sessions)
        for name, coordinator in sorted(controller.coordinators.items())
        if coordinator.group.sessions and coordinator.record.kind is not SubscriptionKind.QUEUE
    }


def capacity_of(
    controller: TopicController, load: Mapping[SegmentId, LoadReport]
) -> dict[str, Mapping[SegmentId, int]]:
    """By subscription, the segments that its consumers can share, see `Observation.capacity`. By its load a segment has
    entries that only one consumer at a time can read, or none such."""
    unstamped = {number for number, report in load.items() if report.load.is_unstamped}
    found: dict[str, Mapping[SegmentId, int]] = {}
    for name, coordinator in sorted(controller.coordinators.items()):
        shared = {n: room for n, room in coordinator.capacity.items() if n not in unstamped}
        if shared:
            found[name] = shared
    return found


def wants_more(
    controller: TopicController, consumers: Mapping[str, int], load: Mapping[SegmentId, LoadReport]
) -> bool:
    record = record_of(controller)
    if record is None:
        return False
    capacity = capacity_of(controller, load)
    return any(count > served(record.layout, capacity.get(name, {})) for name, count in consumers.items())


def judged(
    seen: Observation, policy: ScalePolicy, found: tuple[str, ...], *, everything: bool = True
) -> Verdict:
    """The verdict. `found` are the problems of the policy, including those of one that could not be read."""
    if found and not problems(policy):
        off = "Automatic split and merge is off, as the policy cannot be read"
        return Stay(
            f"{off}: {'; '.join(found)}.",
            no_split=NoSplit.OFF,
            no_merge=NoMerge.OFF,
            no_rebucket=NoRebucket.OFF,
        )
    return decide(seen, policy, consumers_only=not everything)


def named(verdict: Reshape) -> tuple[str, str]:
    """The operation and the rule that calls for it."""
    match verdict:
        case Split():
            return "split", verdict.rule
        case Rebucket():
            return "rebucket", verdict.rule
        case _:
            return "merge", "cold"


def segments_of(verdict: Reshape) -> tuple[SegmentId, ...]:
    return (verdict.segment,) if isinstance(verdict, Split | Rebucket) else (verdict.one, verdict.other)


def request_for(ticket: e.Ticket, verdict: Reshape, now_ms: int, budget: BucketBudget) -> e.Request:
    match verdict:
        case Split():
            return e.SplitRequested(ticket, verdict.segment, now_ms, verdict.lopsided)
        case Rebucket():
            return e.RebucketRequested(ticket, verdict.segment, verdict.buckets, now_ms)
        case _:
            return e.MergeRequested(ticket, verdict.one, verdict.other, now_ms, budget)
