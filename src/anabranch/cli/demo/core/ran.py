"""The data that a run of the demo leaves for its report: plain values, gathered while it ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.cli.demo.core.clickstream import Clickstream
from anabranch.cli.demo.core.past import TopicPast


@dataclass(frozen=True, slots=True)
class Moment:
    """The progress at one moment."""

    at_ms: int
    stored: int
    rows: Mapping[str, int]  # The rows read, by reader.


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch: when it was triggered, how long it took, and how much it read."""

    at_ms: int
    took_ms: int
    rows: int


@dataclass(frozen=True, slots=True)
class Killed:
    """When the broker was killed, and when it, or the others in its place, served again."""

    at_ms: int
    back_ms: int
    stored: int  # The number of events that had a receipt by then.
    name: str = ""  # Of one of several brokers.
    segments: str = ""  # How many of the active segments it served, in words.

    @property
    def away_s(self) -> float:
        return (self.back_ms - self.at_ms) / 1000

    @property
    def claim(self) -> str:
        """What is claimed of a run that lost nothing."""
        if self.name:
            return (
                f"kill -9 of {self.name}, which served {self.segments}, after {self.stored:,} receipts; they were "
                f"served again {self.away_s:.1f} s later: nothing is missing"
            )
        return (
            f"kill -9 after {self.stored:,} receipts, the broker {self.away_s:.1f} s away: nothing is missing"
        )


@dataclass(slots=True)
class Ran:
    stream: Clickstream
    policy: Mapping[str, float]
    past: TopicPast = field(default_factory=TopicPast)
    moments: list[Moment] = field(default_factory=list)
    batches: dict[str, Sequence[MicroBatch]] = field(default_factory=dict)
    start_ms: int = 0
    end_ms: int = 0  # The end of the stream.
    done_ms: int = 0  # The end of the queries.
    killed: Killed | None = None
    checks: list[tuple[str, bool]] = field(default_factory=list)
    sessions: int = 0
    readers: str = ""  # The name of the readers, in words.
    software: str = ""
    took_s: float = 0.0
    brokers: int = 1
