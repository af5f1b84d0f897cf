"""What a run of the demo leaves behind for its report: plain values, gathered while it ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.cli.demo.clickstream import Clickstream
from anabranch.cli.demo.past import TopicPast


@dataclass(frozen=True, slots=True)
class Moment:
    """How far everything was."""

    at_ms: int
    stored: int
    rows: Mapping[str, int]  # By reader.


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: when it was triggered, how long it took, and how much it read."""

    at_ms: int
    took_ms: int
    rows: int


@dataclass(frozen=True, slots=True)
class Killed:
    """When the broker was killed, and when it served again."""

    at_ms: int
    back_ms: int
    stored: int  # Events that had a receipt by then.


@dataclass(slots=True)
class Ran:
    stream: Clickstream
    policy: Mapping[str, float]
    past: TopicPast = field(default_factory=TopicPast)
    moments: list[Moment] = field(default_factory=list)
    batches: dict[str, Sequence[Batch]] = field(default_factory=dict)
    start_ms: int = 0
    end_ms: int = 0  # Of the stream.
    done_ms: int = 0  # Of the queries.
    killed: Killed | None = None
    checks: list[tuple[str, bool]] = field(default_factory=list)
    sessions: int = 0
    readers: str = ""  # What read, in words.
    software: str = ""
    took_s: float = 0.0
