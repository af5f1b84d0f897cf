"""Values as files have them, made to fit a definition."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from anabranch.cli.messages.fitting import Misfit, fitted, names_of


def fit(value: Any, definition: Any, *, is_plain: bool = False) -> Any:
    return fitted(value, definition, names_of(definition), is_plain=is_plain)


STAMP = {"type": "long", "logicalType": "timestamp-millis"}


@pytest.mark.parametrize(
    ("value", "definition", "expected"),
    [
        ("7", "int", 7),
        (7, "long", 7),
        ("1.5", "double", 1.5),
        (2, "float", 2.0),
        ("TRUE", "boolean", True),
        ("", ["null", "int"], None),
        ("", ["null", "string"], ""),
        (None, ["null", "int"], None),
        ("x", ["int", "string"], "x"),
        ("[1, 2]", {"type": "array", "items": "int"}, [1, 2]),
        ({"a": "1"}, {"type": "map", "values": "int"}, {"a": 1}),
        ("aGk=", "bytes", b"hi"),
        ("A", {"type": "enum", "name": "E", "symbols": ["A"]}, "A"),
        ("1.20", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, Decimal("1.20")),
        ("2026-01-31", {"type": "int", "logicalType": "date"}, date(2026, 1, 31)),
        ("2026-01-31T15:00Z", STAMP, datetime(2026, 1, 31, 15, tzinfo=UTC)),
        ("1700000000000", STAMP, 1_700_000_000_000),
        (str(UUID(int=7)), {"type": "string", "logicalType": "uuid"}, UUID(int=7)),
    ],
)
def test_text_becomes_what_the_definition_asks_for(value: Any, definition: Any, expected: Any) -> None:
    found = fit(value, definition)
    assert found == expected
    assert type(found) is type(expected)


ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "count", "type": "int", "default": 1},
        {"name": "next", "type": ["null", "shop.Order"], "default": None},
    ],
}


def test_missing_fields_take_their_defaults_and_records_may_hold_themselves() -> None:
    assert fit({"id": "1", "next": {"id": 2}}, ORDER) == {
        "id": 1,
        "note": None,
        "count": 1,
        "next": {"id": 2, "note": None, "count": 1, "next": None},
    }


@pytest.mark.parametrize(
    ("value", "definition", "message"),
    [
        ("x", "int", "'x' is not a whole number"),
        (1.5, "int", "1.5 is not a whole number"),
        (True, "int", "True is not a whole number"),
        (2**31, "int", "32 bits"),
        (1, "string", "1 is not a string"),
        ("maybe", "boolean", "'maybe' is not a boolean"),
        ("?", "bytes", "base64"),
        (None, ["int"], "is not a value"),
        ("B", {"type": "enum", "name": "E", "symbols": ["A"]}, "one of A"),
        ("noon", {"type": "long", "logicalType": "timestamp-millis"}, "timestamp-millis"),
        ({}, ORDER, "the field 'id' is missing"),
        ({"id": 1, "nmae": 2}, ORDER, "no field 'nmae'; it has id, note"),
        ({"id": 1, "next": {"id": "?"}}, ORDER, "next.id: '?' is not a whole number"),
        ("no object", ORDER, "is not an object"),
    ],
)
def test_what_does_not_fit_is_named(value: Any, definition: Any, message: str) -> None:
    with pytest.raises(Misfit) as told:
        fit(value, definition)
    assert message in str(told.value)


def test_for_json_times_and_bytes_stay_text() -> None:
    assert fit("aGk=", "bytes", is_plain=True) == "aGk="
    assert fit("2026-01-31T15:00Z", {"type": "string"}, is_plain=True) == "2026-01-31T15:00Z"
    with pytest.raises(Misfit):
        fit("2026-01-31T15:00Z", STAMP, is_plain=True)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("--5", "int"),
        ("9" * 5000, "long"),
        ("nan", "double"),
        ("1e999", "double"),
        (float("inf"), "float"),
        (10**400, "double"),
        ("[" * 100_000, {"type": "array", "items": "int"}),
    ],
)
def test_what_is_no_number_of_json_is_named(value: Any, kind: Any) -> None:
    """Not sent as null, and no traceback."""
    with pytest.raises(Misfit, match="is not a"):
        fitted(value, kind, {}, is_plain=True)


def test_avro_has_numbers_that_json_has_not() -> None:
    assert fitted("inf", "double", {}, is_plain=False) == float("inf")
