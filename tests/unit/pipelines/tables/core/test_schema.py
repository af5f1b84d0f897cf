"""Which changes of a topic's schema a table goes along with."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.pipelines.tables.core.schema import SchemaChanged, merged


def struct(**fields: Any) -> dict[str, Any]:
    made = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields.items()]
    return {"type": "struct", "fields": made}


def array(kind: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": True}


def names(schema: dict[str, Any]) -> list[str]:
    return [field["name"] for field in schema["fields"]]


def test_new_columns_come_last_and_old_ones_stay() -> None:
    assert names(merged(struct(a="long", b="string"), struct(b="string", c="double"))) == ["a", "b", "c"]


def test_records_within_columns_grow_too() -> None:
    found = merged(struct(at=struct(x="long")), struct(at=struct(x="long", y="long")))
    assert names(found["fields"][0]["type"]) == ["x", "y"]
    found = merged(struct(lines=array(struct(item="string"))), struct(lines=array(struct(count="long"))))
    assert names(found["fields"][0]["type"]["elementType"]) == ["item", "count"]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (struct(price="long"), struct(price="string"), "column price is long in the table and string"),
        (struct(at=struct(x="long")), struct(at=struct(x="double")), "column at.x is long"),
        (struct(tags=array("string")), struct(tags="string"), "column tags is array in the table and string"),
        (struct(tags=array("string")), struct(tags=array("long")), r"column tags\[\] is string"),
    ],
)
def test_a_column_of_another_type_is_refused_by_name(before: Any, after: Any, told: str) -> None:
    with pytest.raises(SchemaChanged, match=told):
        merged(before, after)


fields = st.dictionaries(st.sampled_from("abcdef"), st.just("long"))


@given(fields, fields)
def test_all_columns_of_both_are_there_once_and_nothing_is_new_the_second_time(
    one: dict[str, str], other: dict[str, str]
) -> None:
    found = merged(struct(**one), struct(**other))
    assert sorted(names(found)) == sorted({*one, *other})
    assert merged(found, struct(**other)) == merged(found, struct(**one)) == found
