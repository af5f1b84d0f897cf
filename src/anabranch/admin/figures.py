"""What the admin REST says of topics, as values. Pure.

Each has `raw`, the JSON that it was read from, for what has no field here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

TopicKind = Literal["classic", "partitioned", "scalable"]


@dataclass(frozen=True, slots=True)
class SubscriptionFigures:
    name: str
    # "stream" or "queue" for a scalable topic; "exclusive", "shared", … for a classic one; "" before a consumer came.
    type: str
    # Unacknowledged messages; docs/figures.md says how exactly they are counted.
    backlog: int
    msg_rate_out: float
    consumers: int
    raw: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class SegmentFigures:
    id: int
    name: str
    is_active: bool
    # The first and last hash of its keys.
    hash_range: tuple[int, int]
    # None while its owner does not answer.
    stored_bytes: int | None
    raw: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class TopicFigures:
    topic: str
    kind: TopicKind
    msg_rate_in: float
    bytes_rate_in: float
    msg_rate_out: float
    bytes_rate_out: float
    stored_bytes: int
    subscriptions: Mapping[str, SubscriptionFigures]
    # Of a scalable topic, by id.
    segments: Mapping[int, SegmentFigures]
    raw: Mapping[str, Any] = field(repr=False)

    @property
    def backlog(self) -> int:
        """Unacknowledged messages of all subscriptions together."""
        return sum(one.backlog for one in self.subscriptions.values())


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    version: int
    # AVRO, JSON, STRING, …
    type: str
    # Its definition, as Avro's JSON for AVRO and JSON; "" for types that need none.
    definition: str
    properties: Mapping[str, str]


def topic_figures(topic: str, kind: TopicKind, told: Mapping[str, Any]) -> TopicFigures:
    return TopicFigures(
        topic,
        kind,
        told["msgRateIn"],
        told["msgThroughputIn"],
        told["msgRateOut"],
        told["msgThroughputOut"],
        told["storageSize"],
        {name: _subscription(name, one) for name, one in told["subscriptions"].items()},
        {int(number): _segment(int(number), one) for number, one in told.get("segments", {}).items()},
        told,
    )


def _subscription(name: str, told: Mapping[str, Any]) -> SubscriptionFigures:
    consumers = told["consumerCount"] if "consumerCount" in told else len(told["consumers"])
    return SubscriptionFigures(
        name, (told["type"] or "").lower(), told["msgBacklog"], told["msgRateOut"], consumers, told
    )


def _segment(number: int, told: Mapping[str, Any]) -> SegmentFigures:
    hashes = told["hashRange"]
    return SegmentFigures(
        number,
        told["name"],
        told["state"] == "ACTIVE",
        (hashes["start"], hashes["end"]),
        told.get("storageSize"),
        told,
    )


def registered_schema(told: Mapping[str, Any]) -> RegisteredSchema:
    return RegisteredSchema(told["version"], told["type"], told["data"], told.get("properties") or {})
