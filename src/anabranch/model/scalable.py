"""What is stored about a scalable topic: its layout, the operation under way, its subscriptions and sessions. Pure.

    /topics/{tenant}/{ns}/{topic}                                        ScalableTopic
    /topics/{tenant}/{ns}/{topic}/controller                             the leader's service URL, ephemeral
    /topics/{tenant}/{ns}/{topic}/subscriptions/{name}                   SubscriptionRecord
    /topics/{tenant}/{ns}/{topic}/subscriptions/{name}/consumers/{name}  ConsumerRecord
    /topics/{tenant}/{ns}/{topic}/segments/{id}/load                     the segment's rates, by its owner
    /topics/{tenant}/{ns}/{topic}/decisions                              the leader's latest decisions and their reasons

The topic's record is one value, changed only by compare-and-set on its version. Its JSON has Pulsar's names, so that
`pulsar-client-admin` reads it; what Pulsar does not have lies under names of our own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from anabranch.errors import AnabranchError
from anabranch.model import buckets
from anabranch.model.gone import Gone
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import Domain, InvalidName, NamespaceName, TopicName, decode_local, encode_local
from anabranch.model.segments import HashRange, Segment, SegmentId, SegmentState

TOPICS: Final = "/topics"
CONTROLLER: Final = "controller"
SUBSCRIPTIONS: Final = "subscriptions"
CONSUMERS: Final = "consumers"
SEGMENTS: Final = "segments"
LOAD: Final = "load"
DECISIONS: Final = "decisions"


class BadRecord(AnabranchError):
    """A stored record that cannot be read. Nothing is done to the topic until an operator repairs it."""


# -- paths


def namespace_path(namespace: NamespaceName) -> str:
    return f"{TOPICS}/{namespace}"


def topic_path(topic: TopicName) -> str:
    """The path of the record of the scalable topic that `topic` names in any of its forms."""
    return f"{TOPICS}/{topic.namespace}/{topic.encoded_local}"


def controller_path(topic: TopicName) -> str:
    return f"{topic_path(topic)}/{CONTROLLER}"


def subscription_path(topic: TopicName, subscription: str) -> str:
    return f"{topic_path(topic)}/{SUBSCRIPTIONS}/{encode_local(subscription)}"


def consumer_path(topic: TopicName, subscription: str, consumer: str) -> str:
    return f"{subscription_path(topic, subscription)}/{CONSUMERS}/{encode_local(consumer)}"


def loads_path(topic: TopicName) -> str:
    """The folder of the load records of all its segments."""
    return f"{topic_path(topic)}/{SEGMENTS}"


def load_path(topic: TopicName, number: SegmentId) -> str:
    return f"{loads_path(topic)}/{number}/{LOAD}"


def segment_of_load_path(path: str) -> SegmentId | None:
    """The segment that a load record is about; None for any other path."""
    parts = path.split("/")
    if len(parts) != 8 or parts[5] != SEGMENTS or parts[7] != LOAD or not parts[6].isdecimal():
        return None
    return SegmentId(int(parts[6]))


def decisions_path(topic: TopicName) -> str:
    return f"{topic_path(topic)}/{DECISIONS}"


def topic_of_path(path: str) -> TopicName | None:
    """The scalable topic that a path at or below its record is about; None for any other path."""
    parts = path.split("/")
    if len(parts) < 5 or parts[1] != TOPICS[1:]:
        return None
    try:
        return TopicName(Domain.TOPIC, NamespaceName(parts[2], parts[3]), decode_local(parts[4]))
    except (InvalidName, UnicodeDecodeError):
        return None  # None of our paths looks like this.


def scalable_name(topic: TopicName) -> TopicName:
    """The `topic://` form of a topic's name."""
    return TopicName(Domain.TOPIC, topic.namespace, topic.local)


# -- the topic


class PlanKind(StrEnum):
    SPLIT = "split"
    MERGE = "merge"
    MIGRATE = "migrate"  # The partitions of a classic topic are sealed in favour of fresh segments.
    REBUCKET = "rebucket"  # A segment is sealed in favour of one with the same range and other entry buckets.


@dataclass(frozen=True, slots=True)
class ReshapePlan:
    """A split or merge that has begun. Once stored, it will be finished by the present leader or a later one.

    `result` is the layout that will be published, computed once: a retry never chooses other ids. Its epoch names the
    plan, since no two layouts of a topic share one.
    """

    kind: PlanKind
    parents: tuple[SegmentId, ...]
    result: SegmentLayout

    @property
    def id(self) -> int:
        return self.result.epoch

    @property
    def children(self) -> tuple[Segment, ...]:
        numbers = {c for p in self.parents for c in self.result.segments[p].children}
        return tuple(self.result.segments[c] for c in sorted(numbers))


def id_of_generation(generation: int) -> str:
    """The id of a topic from before topics had ids: its number distinguishes it from others of its name."""
    return f"generation-{generation}" if generation > 0 else ""


@dataclass(frozen=True, slots=True)
class ScalableTopic:
    """The one record of a scalable topic."""

    layout: SegmentLayout
    # How many topics of this name were created before: records with another number are leftovers of a deleted topic.
    generation: int
    properties: Mapping[str, str] = field(default_factory=dict)
    plan: ReshapePlan | None = None
    # The override of the automatic split and merge policy, as JSON; None for none.
    auto_scale: Mapping[str, Any] | None = None
    # How producers map keys to hashes, once known: by "high" bits (Pulsar's master and ours) or "low" ones (5.0.0-M1).
    routing: str = ""
    # The topic is being deleted: nothing is created or sealed any more, and every segment may be deleted.
    is_deleting: bool = False
    # The topic accepts no more messages, for good: its active segments are sealed and get no successors.
    is_terminated: bool = False

    def planned(self, plan: ReshapePlan) -> ScalableTopic:
        if self.plan is not None or plan.result.epoch != self.layout.epoch + 1:
            raise AssertionError(
                f"plan {plan.result.epoch} does not follow layout {self.layout.epoch}, or another plan"
            )
        return replace(self, plan=plan)

    def published(self) -> ScalableTopic:
        """The record with the plan's layout in place. Properties and policy keep their present values."""
        assert self.plan is not None
        return replace(self, layout=self.plan.result, plan=None)

    # -- what a segment's owner checks before it acts

    def may_create(self, number: SegmentId, span: HashRange) -> bool:
        """Whether it is an active segment (its creation may have been interrupted) or a child of the plan."""
        if self.is_deleting:
            return False
        layout = self.layout if self.plan is None else self.plan.result
        found = layout.segments.get(number)
        return found is not None and found.range == span and found.is_active

    def may_seal(self, number: SegmentId) -> bool:
        layout = self.layout if self.plan is None else self.plan.result
        found = layout.segments.get(number)
        return not self.is_deleting and found is not None and (found.is_sealed or self.is_terminated)

    def may_delete(self, number: SegmentId) -> bool:
        """Whether it is marked as deleting, or in neither layout nor plan although its id was given out."""
        if self.is_deleting:
            return True
        found = self.layout.segments.get(number)
        if found is not None:
            return found.is_deleting
        planned = self.plan is not None and number in self.plan.result.segments
        return not planned and number < self.layout.next_id

    # -- JSON

    def encode(self) -> bytes:
        """The stored bytes. Short: a topic may remember thousands of segments, and stores limit a value's size."""
        self.layout.check()
        value: dict[str, Any] = {
            **_layout_json(self.layout, self.layout.segments.values()),
            "properties": dict(self.properties),
            "autoScalePolicy": None if self.auto_scale is None else dict(self.auto_scale),
            "generation": self.generation,
        }
        if self.plan is not None:
            result, before = self.plan.result, self.layout.segments
            result.check()
            # Only what the plan changes.
            changed = [s for s in result.segments.values() if before.get(s.id) != s]
            value["plan"] = {
                "kind": self.plan.kind.value,
                "parentIds": list(self.plan.parents),
                "result": _layout_json(result, changed),
            }
        if self.layout.topic_id != id_of_generation(self.generation):
            value["topicId"] = self.layout.topic_id
        if self.routing:
            value["routing"] = self.routing
        if self.is_deleting:
            value["deleting"] = True
        if self.is_terminated:
            value["terminated"] = True
        return json.dumps(value, separators=(",", ":")).encode()

    def metadata(self) -> dict[str, Any]:
        """The record as administrators see it: with the fields of each segment that Pulsar's JSON has."""
        value: dict[str, Any] = json.loads(self.encode())
        for segment in self.layout.segments.values():
            value["segments"][str(segment.id)] |= {
                "active": segment.is_active,
                "sealed": segment.is_sealed,
                "root": not segment.parents,
                "leaf": not segment.children,
                "legacy": bool(segment.classic_topic),
            }
            if segment.bucket_splits:
                value["segments"][str(segment.id)]["entryBucketSplits"] = list(segment.bucket_splits)
        return value

    @staticmethod
    def decode(data: bytes) -> ScalableTopic:
        try:
            value = json.loads(data)
            generation = value.get("generation", 0)
            topic_id = value.get("topicId", id_of_generation(generation))
            if not isinstance(topic_id, str):
                raise ValueError(f"{topic_id!r} is no id of a topic")
            layout = _read_layout(value, topic_id)
            plan = value.get("plan")
            topic = ScalableTopic(
                layout,
                generation=generation,
                properties=value.get("properties") or {},
                plan=None
                if plan is None
                else ReshapePlan(
                    PlanKind(plan["kind"]),
                    tuple(SegmentId(p) for p in plan["parentIds"]),
                    _read_layout(plan["result"], topic_id, layout.segments),
                ),
                auto_scale=value.get("autoScalePolicy"),
                routing=value.get("routing", ""),
                is_deleting=value.get("deleting", False),
                is_terminated=value.get("terminated", False),
            )
            layout.check()
            if topic.plan is not None:
                topic.plan.result.check()
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError, AnabranchError) as error:
            raise BadRecord(f"the stored record of a scalable topic cannot be read: {error!r}") from error
        return topic


def _layout_json(layout: SegmentLayout, segments: Iterable[Segment]) -> dict[str, Any]:
    value: dict[str, Any] = {
        "epoch": layout.epoch,
        "nextSegmentId": layout.next_id,
        "segments": {str(s.id): _stored_json(s) for s in segments},
        "lastSplitAtMs": layout.last_split_ms,
        "lastMergeAtMs": layout.last_merge_ms,
    }
    if layout.last_rebucket_ms:
        value["lastRebucketAtMs"] = layout.last_rebucket_ms
    if layout.gone:
        value["gone"] = [
            [g.segment, g.range.start, g.range.end, g.end and list(g.end), g.is_classic] for g in layout.gone
        ]
    return value


def _stored_json(segment: Segment) -> dict[str, Any]:
    """A segment as it is stored: even buckets by their number, since a record may hold hundreds of segments with a
    thousand buckets each."""
    value = segment_json(segment)
    if segment.bucket_splits and segment.bucket_splits == buckets.even(segment.bucket_count):
        del value["entryBucketSplits"]
        value["entryBuckets"] = segment.bucket_count
    return value


def segment_json(segment: Segment) -> dict[str, Any]:
    """A segment in Pulsar's JSON."""
    value: dict[str, Any] = {
        "segmentId": segment.id,
        "hashRange": {"start": segment.range.start, "end": segment.range.end},
        "state": segment.state.value,
        "parentIds": list(segment.parents),
        "childIds": list(segment.children),
        "createdAtEpoch": segment.created_epoch,
        "sealedAtEpoch": segment.sealed_epoch,
        "createdAtMs": segment.created_ms,
        "sealedAtMs": segment.sealed_ms,
    }
    if segment.classic_topic:
        value["legacyTopicName"] = segment.classic_topic
    if segment.bucket_splits:
        value["entryBucketSplits"] = list(segment.bucket_splits)
    if segment.merged_ms:
        value["mergedAtMs"] = list(segment.merged_ms)
    if segment.lopsided:
        value["lopsidedSplits"] = segment.lopsided
    if segment.is_deleting:
        value["deleting"] = True
    if segment.end is not None:
        value["end"] = list(segment.end)
    return value


def _read_layout(
    value: Mapping[str, Any], topic_id: str, before: Mapping[SegmentId, Segment] | None = None
) -> SegmentLayout:
    segments = [_read_segment(item) for item in value["segments"].values()]
    return SegmentLayout(
        value["epoch"],
        SegmentId(value["nextSegmentId"]),
        {**(before or {}), **{segment.id: segment for segment in segments}},
        last_split_ms=value.get("lastSplitAtMs", 0),
        last_merge_ms=value.get("lastMergeAtMs", 0),
        last_rebucket_ms=value.get("lastRebucketAtMs", 0),
        gone=tuple(
            Gone(SegmentId(number), HashRange(start, stop), end and (end[0], end[1]), is_classic)
            for number, start, stop, end, is_classic in value.get("gone", ())
        ),
        topic_id=topic_id,
    )


def _read_segment(value: Mapping[str, Any]) -> Segment:
    if (SegmentState(value["state"]) is SegmentState.SEALED) != bool(value["sealedAtEpoch"]):
        raise ValueError(
            f"segment {value['segmentId']} is {value['state']}, sealed at {value['sealedAtEpoch']}"
        )
    return Segment(
        SegmentId(value["segmentId"]),
        HashRange(value["hashRange"]["start"], value["hashRange"]["end"]),
        _ids(value["parentIds"]),
        _ids(value["childIds"]),
        created_epoch=value["createdAtEpoch"],
        sealed_epoch=value["sealedAtEpoch"],
        created_ms=value.get("createdAtMs", 0),
        sealed_ms=value.get("sealedAtMs", 0),
        merged_ms=tuple(value.get("mergedAtMs", ())),
        classic_topic=value.get("legacyTopicName") or "",
        bucket_splits=_read_splits(value),
        lopsided=value.get("lopsidedSplits", 0),
        is_deleting=value.get("deleting", False),
        end=None if (end := value.get("end")) is None else (end[0], end[1]),
    )


def _read_splits(value: Mapping[str, Any]) -> buckets.Splits:
    if "entryBuckets" in value:
        return buckets.even(value["entryBuckets"])
    return buckets.checked(value.get("entryBucketSplits") or ())


def _ids(values: Iterable[int]) -> tuple[SegmentId, ...]:
    return tuple(SegmentId(value) for value in values)


# -- subscriptions and sessions


class SubscriptionKind(StrEnum):
    STREAM = "STREAM"
    QUEUE = "QUEUE"
    CHECKPOINT = (
        "CHECKPOINT"  # No cursors: its members keep their own positions and report what they finished.
    )


class InitialPosition(StrEnum):
    EARLIEST = "EARLIEST"  # Everything that is kept, sealed segments included.
    LATEST = "LATEST"  # Active segments only, from their ends on.


@dataclass(frozen=True, slots=True)
class SubscriptionRecord:
    """A subscription of the topic. It is stored before any segment has a cursor of that name."""

    name: str
    kind: SubscriptionKind
    generation: int  # The topic's: a record of an earlier topic of the same name is ignored.
    # None until a consumer says it: registering with the controller does not say it.
    initial: InitialPosition | None = None
    is_deleting: bool = False

    def encode(self) -> bytes:
        value: dict[str, Any] = {"name": self.name, "type": self.kind.value, "generation": self.generation}
        if self.initial is not None:
            value["initialPosition"] = self.initial.value
        if self.is_deleting:
            value["deleting"] = True
        return json.dumps(value, separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes) -> SubscriptionRecord:
        try:
            value = json.loads(data)
            initial = value.get("initialPosition")
            return SubscriptionRecord(
                value["name"],
                SubscriptionKind(value["type"]),
                value["generation"],
                None if initial is None else InitialPosition(initial),
                value.get("deleting", False),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadRecord(f"the stored record of a subscription cannot be read: {error!r}") from error


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """A consumer's session: durable, so that it outlives connections, clients and leaders."""

    name: str
    kind: SubscriptionKind
    assigned: tuple[SegmentId, ...] = ()
    # Only for CHECKPOINT members: sealed segments that it has read to their end.
    finished: tuple[SegmentId, ...] = ()
    # The numbers of its entry buckets in those of the assigned segments that it shares; the others are whole its own.
    shares: Mapping[SegmentId, tuple[int, ...]] = field(default_factory=dict)
    # Whether its client can share segments. Stored, so that a new leader knows before the consumer is back.
    knows_buckets: bool = False
    # Only for CHECKPOINT members: the entry buckets that it has read to the end, of segments that are not finished.
    finished_buckets: Mapping[SegmentId, tuple[int, ...]] = field(default_factory=dict)

    def encode(self) -> bytes:
        value: dict[str, Any] = {
            "consumerName": self.name,
            "consumerType": self.kind.value,
            "assignedSegments": list(self.assigned),
        }
        if self.finished:
            value["finishedSegments"] = list(self.finished)
        if self.shares:
            value["assignedBuckets"] = _by_segment(self.shares)
        if self.finished_buckets:
            value["finishedBuckets"] = _by_segment(self.finished_buckets)
        if self.knows_buckets:
            value["knowsBuckets"] = True
        return json.dumps(value, separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes) -> ConsumerRecord:
        try:
            value = json.loads(data)
            return ConsumerRecord(
                value["consumerName"],
                SubscriptionKind(value["consumerType"]),
                _ids(value.get("assignedSegments", ())),
                _ids(value.get("finishedSegments", ())),
                _buckets_by_segment(value.get("assignedBuckets", {})),
                value.get("knowsBuckets", False) is True,
                _buckets_by_segment(value.get("finishedBuckets", {})),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadRecord(f"the stored record of a consumer cannot be read: {error!r}") from error


def _by_segment(buckets: Mapping[SegmentId, Iterable[int]]) -> dict[str, list[int]]:
    return {str(key): list(numbers) for key, numbers in buckets.items()}


def _buckets_by_segment(value: Mapping[str, Iterable[int]]) -> dict[SegmentId, tuple[int, ...]]:
    return {SegmentId(int(key)): tuple(map(int, numbers)) for key, numbers in value.items()}
