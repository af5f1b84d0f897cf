"""Converts applications' times to milliseconds since 1970, the form in messages."""

from __future__ import annotations

from datetime import datetime

from anabranch.client.errors import BadArgument


def to_ms(moment: datetime | int | None) -> int | None:
    """A datetime without a zone is local time, as for `datetime.timestamp`."""
    if moment is None:
        return None
    ms = round(moment.timestamp() * 1000) if isinstance(moment, datetime) else moment
    if not isinstance(ms, int) or ms < 0:
        raise BadArgument(f"{moment!r} is no time: give a datetime from 1970 on, or milliseconds since then")
    return ms
