"""Scenario files: commands to a topic's controller, and under each the effects that followed, as prose.

A line that starts with `>` is a command; the lines below it are what `step` answered. `# …` lines are for the reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from anabranch.controller.core import events as e
from anabranch.controller.core.errors import SegmentRefused, SegmentUnavailable
from anabranch.controller.core.operations import ControlledTopic
from anabranch.controller.core.step import resume, step
from anabranch.model.buckets import ONE_BUCKET, BucketBudget
from anabranch.model.layout import SegmentLayout
from anabranch.model.scalable import (
    InitialPosition,
    PlanKind,
    ReshapePlan,
    ScalableTopic,
    SubscriptionKind,
    SubscriptionRecord,
)
from anabranch.model.segments import Segment, SegmentId

NOW_MS = 1_000


@dataclass
class Script:
    """Plays one scenario. `last` is the effect a failure is about; `elsewhere` the record as others have stored it."""

    state: ControlledTopic
    version: int = 0
    tickets: int = 0
    last: e.Effect | None = None
    budget: BucketBudget = ONE_BUCKET

    def play(self, line: str) -> list[str]:
        word, *rest = line.split()
        if word == "topic":
            # The second number is the topic's budget of entry buckets.
            self.budget = BucketBudget(int(rest[1])) if len(rest) > 1 else ONE_BUCKET
            layout = SegmentLayout.initial(int(rest[0]), NOW_MS, budget=self.budget)
            self.state = ControlledTopic(ScalableTopic(layout, 7), 0)
            return []
        if word == "classic":
            layout = SegmentLayout.synthetic(rest, NOW_MS)
            self.state = ControlledTopic(ScalableTopic(layout, 0), -1)
            return []
        if word == "new-leader":
            # All that the next leader has is the stored record.
            self.state, effects = resume(ControlledTopic(self.state.topic, self.state.version))
        else:
            self.state, effects = step(self.state, self._event(word, rest))
        answered = [effect for effect in effects if isinstance(effect, e.ANSWERED)]
        self.last = answered[-1] if answered else self.last
        return [render(effect) for effect in effects]

    def _event(self, word: str, rest: list[str]) -> e.Event:
        requests: dict[str, Callable[[int], e.Request]] = {
            "split": lambda t: e.SplitRequested(t, int(rest[0]), NOW_MS),
            "merge": lambda t: e.MergeRequested(t, int(rest[0]), int(rest[1]), NOW_MS, self.budget),
            "rebucket": lambda t: e.RebucketRequested(t, int(rest[0]), int(rest[1]), NOW_MS),
            "subscribe": lambda t: e.SubscriptionRequested(
                t, rest[0], SubscriptionKind(rest[1]), InitialPosition(rest[2])
            ),
            "unsubscribe": lambda t: e.SubscriptionDeletionRequested(t, rest[0]),
            "seek": lambda t: e.SeekRequested(t, rest[0], int(rest[1])),
            "skip-all": lambda t: e.SeekRequested(t, rest[0], None),
            "delete": e.DeletionRequested,
        }
        if word in requests:
            self.tickets += 1
            return requests[word](self.tickets)
        match word:
            case "found":
                return e.SubscriptionFound(rest[0])
            case "expired":
                return e.SegmentsExpired(tuple(SegmentId(int(n)) for n in rest))
            case "repair":
                return e.RepairRequested()
            case "stored":
                return e.TopicStored(self.state.version + 1)
            case "unneeded":
                return e.Unneeded(tuple(SegmentId(int(n)) for n in rest))
            case "done":
                return e.Done()
            case "subscriptions":
                return e.SubscriptionsRead(tuple(_subscription(text) for text in rest))
            case "unavailable" | "refused":
                assert self.last is not None
                error = SegmentUnavailable if word == "unavailable" else SegmentRefused
                return e.EffectFailed(self.last, error("because"))
            case "unchanged":
                return e.TopicRead(self.state.topic, self.state.version)
            case "conflict":
                return e.TopicRead(self._elsewhere(rest), self.state.version + 1)
            case "gone":
                return e.TopicRead(None, -1)
            case _:
                raise AssertionError(f"the scenario says {word!r}, which means nothing")

    def _elsewhere(self, rest: list[str]) -> ScalableTopic:
        """The record as somebody else has made it."""
        topic = self.state.topic
        match rest:
            case ["unchanged"]:
                return topic
            case ["stored"]:
                assert isinstance(self.last, e.StoreTopic)
                return self.last.topic
            case ["planned", "split", number]:
                result = topic.layout.split(int(number), NOW_MS)
                return topic.planned(ReshapePlan(PlanKind.SPLIT, (SegmentId(int(number)),), result))
            case ["planned", "rebucket", number, buckets]:
                result = topic.layout.rebucket(int(number), int(buckets), NOW_MS)
                return topic.planned(ReshapePlan(PlanKind.REBUCKET, (SegmentId(int(number)),), result))
            case ["published"]:
                return topic.published()
            case ["rebucket", number, buckets]:
                planned = self._elsewhere(["planned", "rebucket", number, buckets])
                return planned.published()
            case ["split", number]:
                planned = self._elsewhere(["planned", "split", number])
                return planned.published()
            case ["deleting"]:
                return ScalableTopic(topic.layout, topic.generation, plan=topic.plan, is_deleting=True)
            case _:
                raise AssertionError(f"no such record: {rest}")


def _subscription(text: str) -> SubscriptionRecord:
    name, kind, initial, *flags = [*text.split(":"), "", ""][:4]
    return SubscriptionRecord(
        name,
        SubscriptionKind(kind or "STREAM"),
        7,
        InitialPosition(initial) if initial else None,
        is_deleting="deleting" in flags,
    )


def _segments(segments: tuple[Segment, ...]) -> str:
    return ",".join(f"{s.id}[{s.range}{_buckets(s)}]" for s in segments)


def _buckets(segment: Segment) -> str:
    """The number of entry buckets, where there are several."""
    return f" x{segment.bucket_count}" if segment.bucket_count > 1 else ""


def render(effect: e.Effect) -> str:
    match effect:
        case e.StoreTopic(topic, if_version):
            return f"store {_topic(topic)} if_version={if_version}"
        case e.ReadTopic():
            return "read-topic"
        case e.ReadSubscriptions():
            return "read-subscriptions"
        case e.CreateSegments(plan, segments, subscriptions):
            return f"create plan={plan} {_segments(segments)} cursors={','.join(subscriptions) or '-'}"
        case e.SealSegment(plan, segment):
            return f"seal plan={plan} {_segments((segment,))}"
        case e.DeleteSegments(segments, best_effort):
            return f"delete-segments {_segments(segments)}{' best-effort' if best_effort else ''}"
        case e.StoreSubscription(record):
            initial = record.initial.value if record.initial else "-"
            mark = " deleting" if record.is_deleting else ""
            return f"store-subscription {record.name} {record.kind.value} {initial}{mark}"
        case e.CreateCursors(name, segments, initial):
            return f"create-cursors {name} {_segments(segments)} at {initial.value}"
        case e.DeleteCursors(name, segments):
            return f"delete-cursors {name} {_segments(segments)}"
        case e.WithdrawDescendants(name):
            return f"withdraw-descendants {name}"
        case e.MoveCursors(name, segments, timestamp_ms):
            where = "the end" if timestamp_ms is None else f"{timestamp_ms} ms"
            return f"move-cursors {name} {_segments(segments)} to {where}"
        case e.CheckUnneeded(segments):
            return f"check-unneeded {','.join(map(str, segments))}"
        case e.CheckDrained(name):
            return f"check-drained {name}"
        case e.DropSessions(name):
            return f"drop-sessions {name or 'of all subscriptions'}"
        case e.RemoveSubscription(name):
            return f"remove-subscription {name}"
        case e.RemoveTopic():
            return "remove-topic"
        case e.TellConsumers(layout):
            return f"tell-consumers epoch={layout.epoch} active={_segments(layout.active)}"
        case e.Wait(attempt):
            return f"wait attempt={attempt}"
        case e.Answer(ticket, layout):
            return f"answer {ticket} epoch={layout.epoch}"
        case e.Refuse(ticket, error):
            return f"refuse {ticket} {type(error).__name__}: {error}"
        case e.EndController():
            return "end-controller"


def _topic(topic: ScalableTopic) -> str:
    if topic.is_deleting:
        return "deleting"
    if topic.plan is not None:
        parents = ",".join(str(p) for p in topic.plan.parents)
        return f"plan={topic.plan.id} {topic.plan.kind.value} {parents} into {_segments(topic.plan.children)}"
    marked = [s for s in topic.layout.sealed if s.is_deleting]
    if marked:
        return f"epoch={topic.layout.epoch} deleting {_segments(tuple(marked))}"
    sealed = _segments(topic.layout.sealed) or "-"
    return f"epoch={topic.layout.epoch} active={_segments(topic.layout.active)} sealed={sealed}"


def played(text: str) -> Iterator[str]:
    """The scenario with the effects that its commands have today."""
    script = Script(ControlledTopic(ScalableTopic(SegmentLayout.initial(1, NOW_MS), 7), 0))
    for line in text.splitlines():
        if line.startswith(">"):
            yield line
            yield from (f"  {effect}" for effect in script.play(line[1:].strip()))
        elif not line.startswith("  "):
            yield line
