"""What brokers publish about the load of segments: the records, their schema, and when one is due. Pure.

A record holds exactly one thing: a stretch of a segment's load, a decision about a topic, the ordered consumers of a
topic, a broker's heartbeat, or something of the load balancer (`balance_records`). The load of a busy segment is
reported in stretches: similar samples become one record with their average, so that amounts are exact and a steady
segment costs a record a minute. A segment that comes to rest is reported once.

The schema is registered with the topic. A new field must be optional; a change of a field's meaning raises `VERSION`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from anabranch.autoscale.load import IDLE, Load
from anabranch.autoscale.reporting import QUIET_SHARE
from anabranch.broker.scalable.load.balance_records import (
    BALANCE_SCHEMAS,
    BrokerReported,
    BundleMoved,
    BundlesMeasured,
    BundleSplitMade,
    ShedMade,
)
from anabranch.broker.scalable.load.rates import NOTHING, Counters
from anabranch.model.names import SYSTEM_NAMESPACE, TopicName

VERSION: Final = 1
# A classic topic, so it cannot split and is not measured as a segment; its prefix hides it from lists.
HISTORY_TOPIC: Final[TopicName] = SYSTEM_NAMESPACE.topic("__load_history")


class LoadStretch(msgspec.Struct, frozen=True):
    """What flowed through a segment from `since` to the record's `at`, as rates, over a number of samples."""

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
    backlog: int  # At the end: unacknowledged messages, summed over all subscriptions.
    producers: int
    consumers: int  # Attached to the segment, of any kind.


class DecisionMade(msgspec.Struct, frozen=True):
    """An answer about a topic that differs from the one before: done, failed, or why nothing is done."""

    topic: str
    kind: str  # split, merge, rebucket, stay or failed
    rule: str
    segments: tuple[int, ...]
    because: str
    no_split: str  # Why there was none, as in the metrics; empty if there was one, or none was considered.
    no_merge: str
    active: int  # Segments from then on.
    epoch: int
    no_rebucket: str | None = None  # As the others; records of before there were entry buckets lack it.
    buckets: int | None = None  # Of a rebucket: the entry buckets that the new segment has.
    policy: str | None = (
        None  # JSON: the topic's policy, if it differs from the one in the broker's heartbeats.
    )


class OrderedConsumers(msgspec.Struct, frozen=True):
    """How many ordered consumers each subscription has from now on. Subscriptions that are not named have none."""

    topic: str
    subscriptions: dict[str, int]


class Heartbeat(msgspec.Struct, frozen=True):
    """The broker is alive: without heartbeats, the absence of records means nothing. Also holds the broker's
    settings."""

    segments: int  # Measured by the broker.
    topics: int  # Led by the broker.
    dropped: int  # Records dropped since the broker started.
    interval_ms: int  # Between two samples.
    window_ms: int  # Loads are averaged over this time for decisions.
    look_ms: int  # Between two evaluations of each topic.
    change: float  # By how much a load must change to be reported to the leader.
    policy: str  # JSON: the broker's own policy.


class HistoryRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message. `version` has no default, so that it is always written."""

    version: int
    broker: str
    at: int
    load: LoadStretch | None = None
    decision: DecisionMade | None = None
    consumers: OrderedConsumers | None = None
    heartbeat: Heartbeat | None = None
    broker_load: BrokerReported | None = None
    bundle_loads: BundlesMeasured | None = None
    shed: ShedMade | None = None
    moved: BundleMoved | None = None
    bundle_split: BundleSplitMade | None = None

    @property
    def key(self) -> str:
        """The message key: the topic's name, so that a topic's records stay in order; the broker for all others."""
        found = self.load or self.decision or self.consumers
        return self.broker if found is None else found.topic


def _fields(*groups: tuple[Any, str]) -> list[dict[str, Any]]:
    return [{"name": name, "type": kind} for kind, names in groups for name in names.split()]


def _optional(name: str, *groups: tuple[Any, str], later: Mapping[str, str] | None = None) -> list[Any]:
    """A record that may be absent. `later` are fields that it did not have at first."""
    added = [
        {"name": field, "type": ["null", kind], "default": None} for field, kind in (later or {}).items()
    ]
    return ["null", {"type": "record", "name": name, "fields": [*_fields(*groups), *added]}]


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
                    later={"no_rebucket": "string", "buckets": "int", "policy": "string"},
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
                **{name: ["null", record] for name, record in BALANCE_SCHEMAS.items()},
            }.items()
        ),
    ],
}
SCHEMA_JSON: Final = msgspec.json.encode(SCHEMA)


class SampledStretch(NamedTuple):
    since_ms: int
    at_ms: int
    samples: int
    load: Load


class Course:
    """The load of one segment over time: takes samples and returns stretches once they have ended.

    A stretch ends with a sample that differs from its average in some rate by more than `change` of it and by more than
    is `quiet` (a tenth of the limit for merging), or after `samples_max`. The first sample without traffic is reported
    at once; those that follow are not.
    """

    __slots__ = ("_at_ms", "_counters", "_first", "_is_resting", "_samples", "_since_ms")

    def __init__(self, since_ms: int, counters: Counters = NOTHING) -> None:
        self._since_ms = self._at_ms = since_ms
        self._first = self._counters = counters  # At the beginning of the stretch, and at the last sample.
        self._samples = 0  # In the stretch that has not ended.
        self._is_resting = False  # It was reported that nothing flows.

    def moved(self, counters: Counters) -> bool:
        return counters != self._counters

    def rest(self, at_ms: int) -> None:
        """Nothing flowed until then. To be called only after a sample without traffic."""
        assert not self._samples
        self._at_ms = at_ms

    def look(
        self, at_ms: int, counters: Counters, limits: Load, change: float, samples_max: int
    ) -> list[SampledStretch]:
        """Takes a sample; returns stretches that have ended. `limits` are those under which a segment is merged."""
        over: list[SampledStretch] = []
        if counters == self._counters:
            over += self._ended()
            if not self._is_resting:
                over.append(SampledStretch(self._at_ms, at_ms, 1, IDLE))
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

    def finish(self, at_ms: int, counters: Counters) -> list[SampledStretch]:
        """The segment is no longer measured here: returns the rest."""
        over = self._ended()
        if counters != self._counters:
            over.append(
                SampledStretch(self._at_ms, at_ms, 1, _rates(self._counters, counters, at_ms - self._at_ms))
            )
        self._at_ms, self._counters = at_ms, counters
        return over

    def _ended(self) -> list[SampledStretch]:
        if not self._samples:
            return []
        load = _rates(self._first, self._counters, self._at_ms - self._since_ms)
        over = SampledStretch(self._since_ms, self._at_ms, self._samples, load)
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
