"""Filters that Spark pushes: those that are understood filter exactly what Spark would, the rest is handed back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from operator import eq, ge, gt, le, lt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from anabranch.model.segments import SegmentId
from anabranch.spark.options import COLUMNS
from anabranch.spark.pushed import read
from anabranch.spark.ranges import ANY, Ranges

START = datetime(2026, 5, 1, tzinfo=UTC)
KINDS: dict[Any, Any] = {
    GreaterThan: gt,
    GreaterThanOrEqual: ge,
    LessThan: lt,
    LessThanOrEqual: le,
    EqualTo: eq,
    EqualNullSafe: eq,
}


@given(st.sampled_from(sorted(KINDS, key=str)), st.integers(0, 4000), st.integers(0, 4))
def test_times_are_compared_to_the_microsecond(kind: Any, micros: int, millis: int) -> None:
    ranges, rest = read([kind(("publish_time",), START + timedelta(microseconds=micros))], COLUMNS)
    assert not rest
    at = START + timedelta(milliseconds=millis)
    at_ms = int(at.timestamp()) * 1000 + at.microsecond // 1000
    is_in = (ranges.since_ms is None or at_ms >= ranges.since_ms) and (
        ranges.until_ms is None or at_ms < ranges.until_ms
    )
    assert is_in == KINDS[kind](at, START + timedelta(microseconds=micros))


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (EqualTo(("key",), b"a"), Ranges(keys=frozenset({b"a"}))),
        (EqualNullSafe(("key",), bytearray(b"a")), Ranges(keys=frozenset({b"a"}))),
        (In(("key",), (b"a", b"b")), Ranges(keys=frozenset({b"a", b"b"}))),
        (EqualTo(("topic",), "t"), Ranges(topics=frozenset({"t"}))),
        (In(("segment",), (1, 2)), Ranges(segments=frozenset({SegmentId(1), SegmentId(2)}))),
    ],
)
def test_values_that_are_equal_to_some_are_ranges(one: Filter, expected: Ranges) -> None:
    assert read([one], COLUMNS) == (expected, [])


@pytest.mark.parametrize(
    "one",
    [
        IsNotNull(("key",)),
        Not(EqualTo(("key",), b"a")),
        GreaterThan(("segment",), 3),
        EqualTo(("value",), b"a"),
        EqualTo(("position", "segment"), 3),
        EqualTo(("key",), "text"),
        In(("key",), (b"a", None)),
        EqualNullSafe(("topic",), None),
        StringStartsWith(("topic",), "t"),
        LessThan(("publish_time",), datetime(2026, 5, 1)),
        In(("publish_time",), (START,)),
    ],
)
def test_what_is_not_understood_is_handed_back(one: Filter) -> None:
    assert read([one], COLUMNS) == (ANY, [one])


def test_filters_hold_together() -> None:
    given = [EqualTo(("topic",), "a"), In(("topic",), ("a", "b")), IsNotNull(("topic",))]
    assert read(given, COLUMNS) == (Ranges(topics=frozenset({"a"})), [given[2]])


def test_a_column_of_the_topics_schema_is_not_taken_for_one_of_messages() -> None:
    one = EqualTo(("key",), b"a")
    assert read([one], ["value", "position"]) == (ANY, [one])
