"""The port of the demo's reader: Spark, or where Spark cannot run the project's own consumer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

from anabranch.cli.demo.core.clickstream import Clickstream
from anabranch.cli.demo.core.ran import MicroBatch
from anabranch.cli.demo.core.verify import Finding


class DemoReading(Protocol):
    """A context that ends everything it started. Rows and batches are by reader."""

    told: str
    catching_up: str  # What happens after the stream.
    software: str
    sessions: int  # The number of sessions found; 0 without a query that finds any.

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...
    def start(self, service_url: str, topic: str, stream: Clickstream, folder: Path) -> None: ...
    def look(self) -> None:
        """Updates the figures; raises any error that occurred."""

    def failures(self) -> Sequence[str]:
        """The errors so far that were handled."""

    def rows(self) -> Mapping[str, int]: ...
    def batch_count(self, name: str) -> int: ...
    def batches(self) -> Mapping[str, Sequence[MicroBatch]]: ...
    def has_read(self, events: int) -> bool: ...
    def has_closed(self, events: int) -> bool:
        """Whether the closing event was read too, and all its consequences are done."""

    def finish(self) -> None: ...
    def findings(self, stream: Clickstream, start_ms: int) -> list[Finding]: ...
