"""What one broker adds to the page of all brokers, as it is sent between them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from anabranch.broker.observe.troubles import Troubles


class BrokerFigures(msgspec.Struct, frozen=True):
    connections: int
    memory: int
    # How late the event loop was when that was last measured, in seconds.
    lag: float
    topics: int
    msg_rate_in: float
    msg_rate_out: float


class TopicPart(msgspec.Struct, frozen=True):
    """What one broker serves of one topic."""

    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    # None if none of it has been opened since the start, and nothing is remembered.
    backlog: int | None = None
    spark: list[list[float]] = []
    heats: dict[int, float] = {}
    # By subscription.
    consumers: dict[str, int] = {}


class OverviewPart(msgspec.Struct, frozen=True):
    load: BrokerFigures
    segments: int
    totals: list[list[float]]
    topics: dict[str, TopicPart]
    # None from a broker of an earlier release.
    troubles: Troubles | None = None


class BundleTraffic(msgspec.Struct, frozen=True, array_like=True):
    """What flows through one bundle at its owner."""

    bundle: str
    msg_rate_in: float
    msg_rate_out: float
    throughput: float
    topics: int
    sessions: int


class ClusterPart(msgspec.Struct, frozen=True):
    """What one broker adds to the page of the cluster."""

    figures: BrokerFigures
    bundles: list[BundleTraffic]
    # Changes that it has read from the channel, each with the name of its bundle, for a page that has just been opened.
    changes: list[tuple[str, bytes]] = []
    # The last decision of its shedder about no bundle in particular; of the leader's alone.
    shedding: dict[str, Any] | None = None


class ClassicCursor(msgspec.Struct, frozen=True):
    """A subscription of a classic topic, or of one of its partitions."""

    backlog: int
    kind: str = ""
    msg_rate_out: float = 0.0
    unacked: int = 0
    consumers: list[str] = []


class ClassicPart(msgspec.Struct, frozen=True):
    """A classic topic that is not partitioned (-1), or one partition."""

    partition: int
    subscriptions: dict[str, ClassicCursor]
    # None if it has not been opened since the broker's start: then only backlogs are known.
    storage: int | None = None
    producers: int = 0
    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0


class RiverPart(msgspec.Struct, frozen=True):
    """What one broker has of one topic."""

    totals: list[list[float]]
    # By segment: time and rates.
    samples: dict[str, list[list[float]]] = {}
    # Of a classic topic, those partitions that the broker knows.
    classic: list[ClassicPart] = []
    # Segments of the last hour, as the page draws them, of the topic with that generation.
    generation: int = -1
    remembered: list[dict[str, Any]] = []


def most(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """The largest count of each name: consumers of one subscription read several segments or partitions."""
    found: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            found[name] = max(found.get(name, 0), count)
    return found


def samples_together(parts: Iterable[dict[str, list[list[float]]]]) -> dict[str, list[list[float]]]:
    """The samples of each segment, of all its owners, by time."""
    found: dict[str, list[list[float]]] = {}
    for one in parts:
        for segment, samples in one.items():
            found.setdefault(segment, []).extend(samples)
    return {
        segment: sorted(samples) for segment, samples in sorted(found.items(), key=lambda one: int(one[0]))
    }
