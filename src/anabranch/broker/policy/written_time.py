"""Points in time as Pulsar's JSON and headers write them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime


def written_time(ms: int) -> str:
    """Milliseconds since 1970 as 2026-01-31T12:00:00.000Z. The time may be impossible, as it comes from a producer's
    clock."""
    try:
        return (
            datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
    except (OverflowError, ValueError):
        return str(ms)
