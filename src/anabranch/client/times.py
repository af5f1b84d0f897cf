"""Converts applications' times to milliseconds since 1970, the form in messages."""

from __future__ import annotations

from datetime import datetime

from anabranch.client.errors import BadArgument


def to_ms(moment: datetime | int | None) -> int | None:
    """The time of a datetime with a zone, or the number itself. One without a zone is refused, as in every other place
    that takes a time: it would be another one on another machine."""
    if moment is None:
        return None
    if isinstance(moment, datetime) and moment.tzinfo is None:
        raise BadArgument(f"{moment!r} has no time zone: give datetime.now(timezone.utc), for instance")
    ms = round(moment.timestamp() * 1000) if isinstance(moment, datetime) else moment
    if not isinstance(ms, int) or ms < 0:
        raise BadArgument(f"{moment!r} is no time: give a datetime from 1970 on, or milliseconds since then")
    return ms
