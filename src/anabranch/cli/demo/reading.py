"""Who reads the demo's topic: Spark, or where that cannot run the project's own consumer. Both look like this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

from anabranch.cli.demo.clickstream import Clickstream
from anabranch.cli.demo.ran import Batch
from anabranch.cli.demo.verify import Finding


class Reading(Protocol):
    """A context: whatever was started ends with it. Rows and batches are by reader."""

    told: str
    catching_up: str  # What happens behind the stream.
    software: str
    sessions: int  # How many were found; 0 where nobody makes any.

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...
    def start(self, service_url: str, topic: str, stream: Clickstream, folder: Path) -> None: ...
    def look(self) -> None:
        """Brings the figures up to date; raises what went wrong, if anything did."""

    def failures(self) -> Sequence[str]:
        """What went wrong so far and was dealt with."""

    def rows(self) -> Mapping[str, int]: ...
    def batch_count(self, name: str) -> int: ...
    def batches(self) -> Mapping[str, Sequence[Batch]]: ...
    def has_read(self, events: int) -> bool: ...
    def has_closed(self, events: int) -> bool:
        """Whether the closing event was read too, and all that it brings about is done."""

    def finish(self) -> None: ...
    def findings(self, stream: Clickstream, start_ms: int) -> list[Finding]: ...
