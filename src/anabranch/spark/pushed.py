"""Filters that Spark hands to a batch read, as ranges. Pure.

What is understood is filtered here, exactly, and Spark does not look at it again: comparisons of `publish_time`, and
`key`, `topic` and `segment` that equal a value or are one of some. The rest stays with Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from anabranch.model.segments import SegmentId
from anabranch.spark.ranges import ANY, Ranges

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)


def read(filters: Iterable[Filter], columns: Collection[str]) -> tuple[Ranges, list[Filter]]:
    """What is wanted according to them, and those that are not understood.

    `columns` are those of messages that there are: others are of the topic's schema, whatever they are called.
    """
    found, rest = ANY, []
    for one in filters:
        is_ours = set(getattr(one, "attribute", ())) <= set(columns)
        ranges = _ranges(one) if is_ours else None
        if ranges is None:
            rest.append(one)
        else:
            found = found.within(ranges)
    return found, rest


def _ranges(one: Any) -> Ranges | None:
    path = getattr(one, "attribute", ())
    if path == ("publish_time",):
        return _times(one)
    if not isinstance(one, EqualTo | EqualNullSafe | In):
        return None
    values = one.value if isinstance(one, In) else (one.value,)
    if path == ("key",) and all(isinstance(value, bytes | bytearray) for value in values):
        return Ranges(keys=frozenset(map(bytes, values)))
    if path == ("topic",) and all(isinstance(value, str) for value in values):
        return Ranges(topics=frozenset(values))
    if path == ("segment",) and all(isinstance(value, int) for value in values):
        return Ranges(segments=frozenset(map(SegmentId, values)))
    return None


def _times(one: Any) -> Ranges | None:
    """Publish times are whole milliseconds; what they are compared with has microseconds."""
    value = getattr(one, "value", None)
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    whole, rest = divmod(value - _EPOCH, _MS)
    at_or_after, after = whole + bool(rest), whole + 1
    match one:
        case GreaterThanOrEqual():
            return Ranges(since_ms=at_or_after)
        case GreaterThan():
            return Ranges(since_ms=after)
        case LessThan():
            return Ranges(until_ms=at_or_after)
        case LessThanOrEqual():
            return Ranges(until_ms=after)
        case EqualTo() | EqualNullSafe():
            return Ranges(since_ms=at_or_after, until_ms=after)
        case _:
            return None
