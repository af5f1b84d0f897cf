"""What load history has of the load balancer: the reports that the leader got, its decisions about shedding, and each
broker's bundles and splits of them. Pure.

They are enough to decide again: the reports in the order in which the leader got them, and with each decision what it
depended on besides. Rates are a second; loads are shares, 1.0 for a resource in full use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from anabranch.balance.core.load import BrokerLoad, BundleLoad, TopBundles


class BundleSample(msgspec.Struct, frozen=True):
    """What flows through one bundle."""

    bundle: str
    msg_rate_in: float
    bytes_rate_in: float
    msg_rate_out: float
    bytes_rate_out: float
    topics: int
    sessions: int

    @classmethod
    def of(cls, load: BundleLoad) -> BundleSample:
        return cls(
            load.bundle,
            load.msg_rate_in,
            load.throughput_in,
            load.msg_rate_out,
            load.throughput_out,
            load.topics,
            load.sessions,
        )

    def load(self) -> BundleLoad:
        return BundleLoad(
            bundle=self.bundle,
            msg_rate_in=self.msg_rate_in,
            msg_rate_out=self.msg_rate_out,
            throughput_in=self.bytes_rate_in,
            throughput_out=self.bytes_rate_out,
            topics=self.topics,
            sessions=self.sessions,
        )


class BrokerReported(msgspec.Struct, frozen=True):
    """A report that the leader took; it counts from the record's `at` on."""

    broker: str
    cpu: float
    memory: float
    direct_memory: float
    bandwidth_in: float
    bandwidth_out: float
    disk: float
    msg_rate_in: float
    bytes_rate_in: float
    msg_rate_out: float
    bytes_rate_out: float
    bundles: int
    topics: int
    load: float  # The moving averages, as the broker has reported them.
    throughput: float
    top: tuple[BundleSample, ...]

    @classmethod
    def of(cls, broker: str, load: BrokerLoad, top: TopBundles) -> BrokerReported:
        return cls(
            broker,
            load.cpu,
            load.memory,
            load.direct_memory,
            load.bandwidth_in,
            load.bandwidth_out,
            load.disk,
            load.msg_rate_in,
            load.throughput_in,
            load.msg_rate_out,
            load.throughput_out,
            load.bundles,
            load.topics,
            load.load,
            load.throughput,
            tuple(map(BundleSample.of, top.bundles)),
        )

    def report(self, at_ms: int) -> tuple[BrokerLoad, TopBundles]:
        """The report again, of the record at that time."""
        load = BrokerLoad(
            measured_ms=at_ms,
            cpu=self.cpu,
            memory=self.memory,
            direct_memory=self.direct_memory,
            bandwidth_in=self.bandwidth_in,
            bandwidth_out=self.bandwidth_out,
            disk=self.disk,
            msg_rate_in=self.msg_rate_in,
            msg_rate_out=self.msg_rate_out,
            throughput_in=self.bytes_rate_in,
            throughput_out=self.bytes_rate_out,
            bundles=self.bundles,
            topics=self.topics,
            load=self.load,
            throughput=self.throughput,
        )
        return load, TopBundles(at_ms, tuple(one.load() for one in self.top))


class BundlesMeasured(msgspec.Struct, frozen=True):
    """The bundles of a broker with traffic, as its rule for splits saw them. Many are told in several records."""

    part: int  # From 0 on.
    parts: int
    bundles: tuple[BundleSample, ...]


class MoveMade(msgspec.Struct, frozen=True):
    """A bundle that the leader has moved; `destination` is empty for an unload."""

    bundle: str
    source: str
    destination: str
    load: float
    reason: str
    because: str
    is_swap: bool


class ShedMade(msgspec.Struct, frozen=True):
    """A decision about shedding, also one for no moves, and what it depended on besides the reports."""

    term: int
    brokers: tuple[str, ...]
    # Bundles in the reports that the broker did not own any more, or that were being moved.
    unowned: tuple[str, ...]
    has_rules: bool  # Policies bound some bundles to some brokers; they are not in the record.
    label: str  # Why there are no moves, in a word; empty if there are.
    because: str
    mean: float
    std: float
    std_after: float
    hits: int
    moves: tuple[MoveMade, ...]
    # Of them, those that were not made.
    failed: tuple[str, ...]
    settings: str  # JSON, by the names that users know.


class BundleMoved(msgspec.Struct, frozen=True):
    """A move that the rule has not decided: an operator did, or it follows a split."""

    bundle: str
    source: str
    destination: str


class BundleSplitMade(msgspec.Struct, frozen=True):
    """A broker's decision to split one of its bundles."""

    bundle: str
    label: str
    because: str
    children: tuple[str, ...]
    is_done: bool


# -- the schema


def _record(name: str, fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": one, "type": kind} for one, kind in fields]}


def _all(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


_RATES: Final = "msg_rate_in bytes_rate_in msg_rate_out bytes_rate_out"


def _sample(name: str) -> dict[str, Any]:
    """A schema may not define one name twice, so each place has a name of its own."""
    return _record(name, [("bundle", "string"), *_all("double", _RATES), *_all("int", "topics sessions")])


# By field of `HistoryRecord`.
BALANCE_SCHEMAS: Final[Mapping[str, Any]] = {
    "broker_load": _record(
        "BrokerReported",
        [
            ("broker", "string"),
            *_all("double", "cpu memory direct_memory bandwidth_in bandwidth_out disk"),
            *_all("double", _RATES),
            *_all("int", "bundles topics"),
            *_all("double", "load throughput"),
            ("top", _list(_sample("TopBundleSample"))),
        ],
    ),
    "bundle_loads": _record(
        "BundlesMeasured", [*_all("int", "part parts"), ("bundles", _list(_sample("BundleSample")))]
    ),
    "shed": _record(
        "ShedMade",
        [
            ("term", "long"),
            *_all(_list("string"), "brokers unowned"),
            ("has_rules", "boolean"),
            *_all("string", "label because"),
            *_all("double", "mean std std_after"),
            ("hits", "int"),
            (
                "moves",
                _list(
                    _record(
                        "MoveMade",
                        [
                            *_all("string", "bundle source destination"),
                            ("load", "double"),
                            *_all("string", "reason because"),
                            ("is_swap", "boolean"),
                        ],
                    )
                ),
            ),
            ("failed", _list("string")),
            ("settings", "string"),
        ],
    ),
    "moved": _record("BundleMoved", _all("string", "bundle source destination")),
    "bundle_split": _record(
        "BundleSplitMade",
        [
            *_all("string", "bundle label because"),
            ("children", _list("string")),
            ("is_done", "boolean"),
        ],
    ),
}
