"""Counts of one topic's compactions since it was opened: updated as they run, reported by stats and metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CompactionFigures:
    succeeded: int = 0
    failed: int = 0
    removed: int = 0  # Messages.
    duration_ms: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    # Figures of the last compaction.
    last_removed: int = 0
    last_duration_ms: int = 0
    last_succeeded_ms: int = 0
    last_failed_ms: int = 0
    # Bytes read and written a second, lately.
    rates: tuple[float, float] = (0.0, 0.0)
    _rates_from: tuple[int, int] = (0, 0)

    @property
    def is_empty(self) -> bool:
        """Whether no compaction has ended or is running."""
        return not (self.succeeded or self.failed or self.read_bytes)

    def ended(self, *, is_success: bool, removed: int, duration_ms: int, now_ms: int) -> None:
        self.last_duration_ms = duration_ms
        self.duration_ms += duration_ms
        self.last_removed = removed
        self.removed += removed
        if is_success:
            self.succeeded += 1
            self.last_succeeded_ms = now_ms
        else:
            self.failed += 1
            self.last_failed_ms = now_ms

    def update_rates(self, seconds: float) -> None:
        now, before = (self.read_bytes, self.written_bytes), self._rates_from
        self.rates = ((now[0] - before[0]) / seconds, (now[1] - before[1]) / seconds)
        self._rates_from = now
