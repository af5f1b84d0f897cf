"""Decides when publishing must stop because the disk is full. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpacePolicy:
    # Publishes may not use this space: acks, checkpoints and rewriting need it to free space again.
    reserve_bytes: int
    # The log's own limit, for a disk shared with others; None: all of the disk.
    quota_bytes: int | None
    # How much must become free on top of the reserve before publishing resumes: this prevents flapping.
    step_bytes: int

    def is_accepting(self, *, free: int, used: int, was_accepting: bool) -> bool:
        return self.room(free=free, used=used) >= self.reserve_bytes + (
            0 if was_accepting else self.step_bytes
        )

    def room(self, *, free: int, used: int) -> int:
        return free if self.quota_bytes is None else max(0, min(free, self.quota_bytes - used))

    def capacity(self, *, free: int, used: int) -> int:
        """The most bytes that the log may take."""
        return used + free if self.quota_bytes is None else min(self.quota_bytes, used + free)

    def told(self, *, free: int, used: int) -> str:
        """How much room there is and which setting bounds it, as a sentence for people."""
        reserve = f"the last {_mb(self.reserve_bytes)} are a reserve (logDiskReserveBytes)"
        if self.quota_bytes is not None and self.quota_bytes - used <= free:
            return f"the log takes {_mb(used)} of the {_mb(self.quota_bytes)} that logDiskBytesMax allows it; {reserve}"
        return f"{_mb(free)} of the disk are free; {reserve}"


def _mb(count: int) -> str:
    return f"{count / (1 << 20):,.0f} MiB"
