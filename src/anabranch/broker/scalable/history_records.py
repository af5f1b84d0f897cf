"""What brokers publish about the load of segments: the records, their schema, and when one is due. Pure.

A record holds exactly one of four things: a stretch of a segment's load, a decision about a topic, the ordered
consumers of a topic, or a broker's heartbeat. The load of a busy segment is told in stretches: samples that are much
the same are one record with their average, so that amounts are exact and a steady segment costs a record a minute. Of a
segment at rest it is told once that it is.

The schema is registered with the topic. A new field must be optional; what changes the meaning of one that is there
raises `VERSION`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from anabranch.autoscale.load import IDLE, QUIET_SHARE, Load
from anabranch.broker.scalable.load_rates import NOTHING, Counters
from anabranch.model.names import SYSTEM_NAMESPACE, TopicName

VERSION: Final = 1
# A classic topic, so it cannot split and nobody measures it as a segment; hidden from lists by the name's beginning.
HISTORY_TOPIC: Final[TopicName] = SYSTEM_NAMESPACE.topic("__load_history")


class LoadStretch(msgspec.Struct, frozen=True):
    """What flowed through a segment from `since` to the record's `at`, as rates, in so many samples."""

    topic: str
    segment: int
    range_start: int
    range_end: int
    since: int
    samples: int
    msg_rate_in: float
    bytes_rate_in: float
    msg_rate_out: float
    bytes_rate_out: float
    backlog: int  # At the end: entries that wait to be acknowledged, of all subscriptions together.
    producers: int
    consumers: int  # Attached to the segment, of whatever kind.


class DecisionMade(msgspec.Struct, frozen=True):
    """An answer about a topic that is not the one before: done, failed, or why nothing is done."""

    topic: str
    kind: str  # split, merge, stay or failed
    rule: str
    segments: tuple[int, ...]
    because: str
    no_split: (
        str  # Why there was none, as the metrics have it; empty if there was one, or nobody looked for it.
    )
    no_merge: str
    active: int  # Segments from then on.
    epoch: int


class OrderedConsumers(msgspec.Struct, frozen=True):
    """How many ordered consumers each subscription has from now on. Those not named have none."""

    topic: str
    subscriptions: dict[str, int]


class Heartbeat(msgspec.Struct, frozen=True):
    """That the broker is there: without one, no record means that nobody knows. And how it is set."""

    segments: int  # That it measures.
    topics: int  # That it leads.
    dropped: int  # Records since it started.
    interval_ms: int  # From sample to sample.
    window_ms: int  # That loads are averaged over to decide.
    look_ms: int  # From look to look at each topic.
    change: float  # By how much a load must move to be reported to the leader.
    policy: str  # JSON: the broker's own.


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message. `version` has no default, so that it is always written."""

    version: int
    broker: str
    at: int
    load: LoadStretch | None = None
    decision: DecisionMade | None = None
    consumers: OrderedConsumers | None = None
    heartbeat: Heartbeat | None = None

    @property
    def key(self) -> str:
        """Of the message: what one topic's story is found by."""
        found = self.load or self.decision or self.consumers
        return self.broker if found is None else found.topic


def _fields(*groups: tuple[Any, str]) -> list[dict[str, Any]]:
    return [{"name": name, "type": kind} for kind, names in groups for name in names.split()]


def _optional(name: str, *groups: tuple[Any, str]) -> list[Any]:
    return ["null", {"type": "record", "name": name, "fields": _fields(*groups)}]


_TIME: Final = {"type": "long", "logicalType": "timestamp-millis"}
_RATES: Final = "msg_rate_in bytes_rate_in msg_rate_out bytes_rate_out"
SCHEMA: Final[Mapping[str, Any]] = {
    "type": "record",
    "name": "LoadHistory",
    "namespace": "anabranch",
    "fields": [
        *_fields(("int", "version"), ("string", "broker"), (_TIME, "at")),
        *(
            {"name": name, "type": kind, "default": None}
            for name, kind in {
                "load": _optional(
                    "LoadStretch",
                    ("string", "topic"),
                    ("long", "segment"),
                    ("int", "range_start range_end"),
                    (_TIME, "since"),
                    ("int", "samples"),
                    ("double", _RATES),
                    ("long", "backlog"),
                    ("int", "producers consumers"),
                ),
                "decision": _optional(
                    "DecisionMade",
                    ("string", "topic kind rule"),
                    ({"type": "array", "items": "long"}, "segments"),
                    ("string", "because no_split no_merge"),
                    ("int", "active"),
                    ("long", "epoch"),
                ),
                "consumers": _optional(
                    "OrderedConsumers",
                    ("string", "topic"),
                    ({"type": "map", "values": "int"}, "subscriptions"),
                ),
                "heartbeat": _optional(
                    "Heartbeat",
                    ("int", "segments topics"),
                    ("long", "dropped interval_ms window_ms look_ms"),
                    ("double", "change"),
                    ("string", "policy"),
                ),
            }.items()
        ),
    ],
}
SCHEMA_JSON: Final = msgspec.json.encode(SCHEMA)


class Stretch(NamedTuple):
    since_ms: int
    at_ms: int
    samples: int
    load: Load


class Course:
    """How the load of one segment goes: samples in, stretches out once they are over.

    A stretch ends with a sample that differs from its average in some rate by more than `change` of it and by more
    than is `quiet` (a tenth of what would be merged), or after `samples_max`. The first sample of nothing is told
    at once; those that follow are not.
    """

    __slots__ = ("_at_ms", "_counters", "_first", "_is_resting", "_samples", "_since_ms")

    def __init__(self, since_ms: int, counters: Counters = NOTHING) -> None:
        self._since_ms = self._at_ms = since_ms
        self._first = self._counters = counters  # At the stretch's beginning, and at the last sample.
        self._samples = 0  # In the stretch that is not over.
        self._is_resting = False  # Told that nothing flows.

    def moved(self, counters: Counters) -> bool:
        return counters != self._counters

    def rest(self, at_ms: int) -> None:
        """Nothing flowed until then. Only after a sample of nothing."""
        assert not self._samples
        self._at_ms = at_ms

    def look(
        self, at_ms: int, counters: Counters, limits: Load, change: float, samples_max: int
    ) -> list[Stretch]:
        """`limits` are those under which a segment is merged."""
        over: list[Stretch] = []
        if counters == self._counters:
            over += self._ended()
            if not self._is_resting:
                over.append(Stretch(self._at_ms, at_ms, 1, IDLE))
            self._is_resting = True
            self._at_ms = at_ms
            return over
        self._is_resting = False
        if self._samples and self._is_other(at_ms, counters, limits, change):
            over += self._ended()
        if not self._samples:
            self._since_ms, self._first = self._at_ms, self._counters
        self._at_ms, self._counters = at_ms, counters
        self._samples += 1
        if self._samples >= samples_max:
            over += self._ended()
        return over

    def finish(self, at_ms: int, counters: Counters) -> list[Stretch]:
        """The segment is measured here no more: what is left."""
        over = self._ended()
        if counters != self._counters:
            over.append(Stretch(self._at_ms, at_ms, 1, _rates(self._counters, counters, at_ms - self._at_ms)))
        self._at_ms, self._counters = at_ms, counters
        return over

    def _ended(self) -> list[Stretch]:
        if not self._samples:
            return []
        load = _rates(self._first, self._counters, self._at_ms - self._since_ms)
        over = Stretch(self._since_ms, self._at_ms, self._samples, load)
        self._samples = 0
        return [over]

    def _is_other(self, at_ms: int, counters: Counters, limits: Load, change: float) -> bool:
        before = _rates(self._first, self._counters, self._at_ms - self._since_ms)
        now = _rates(self._counters, counters, at_ms - self._at_ms)
        return any(
            (moved := abs(new - old)) > change * old and moved > QUIET_SHARE * limit
            for new, old, limit in zip(now.rates, before.rates, limits.rates, strict=True)
        )


def _rates(before: Counters, after: Counters, ms: int) -> Load:
    seconds = max(ms, 1) / 1000
    return Load(*(max(0, new - old) / seconds for old, new in zip(before, after, strict=True)))
