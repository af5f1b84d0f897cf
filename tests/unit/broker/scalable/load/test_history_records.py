"""What is told of a segment's load, and when; and that the schema describes it."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from anabranch.autoscale.load import IDLE, Load
from anabranch.balance.core.load import BrokerLoad, BundleLoad, TopBundles
from anabranch.broker.scalable.load.balance_records import (
    BrokerReported,
    BundleMoved,
    BundleSample,
    BundlesMeasured,
    BundleSplitMade,
    MoveMade,
    ShedMade,
)
from anabranch.broker.scalable.load.history_records import (
    HISTORY_TOPIC,
    SCHEMA,
    SCHEMA_JSON,
    VERSION,
    Course,
    DecisionMade,
    Heartbeat,
    HistoryRecord,
    LoadStretch,
    OrderedConsumers,
    SampledStretch,
)

LIMITS = Load(1_000.0, 5_000_000.0, 5_000.0, 25_000_000.0)
STEP_MS = 10_000


def told(
    amounts: list[int], *, change: float = 0.05, samples_max: int = 6, finished: bool = False
) -> list[SampledStretch]:
    """So many messages in each sample of ten seconds, from 0 on."""
    course = Course(0)
    found: list[SampledStretch] = []
    count = 0
    for number, amount in enumerate(amounts, 1):
        count += amount
        found += course.look(number * STEP_MS, (count, 0, 0, 0), LIMITS, change, samples_max)
    if finished:
        found += course.finish(len(amounts) * STEP_MS, (count, 0, 0, 0))
    return found


def spans(stretches: list[SampledStretch]) -> list[tuple[int, int, float]]:
    """From when to when, in seconds, and messages a second."""
    return [(one.since_ms // 1000, one.at_ms // 1000, one.load.msg_rate_in) for one in stretches]


def test_an_idle_segment_is_told_of_once() -> None:
    assert told([0] * 1000) == [SampledStretch(0, STEP_MS, 1, IDLE)]


def test_a_steady_load_is_one_record_a_minute() -> None:
    assert spans(told([50_000] * 12)) == [(0, 60, 5_000.0), (60, 120, 5_000.0)]


def test_a_sample_that_differs_ends_the_stretch_before_it() -> None:
    assert spans(told([50_000, 50_000, 80_000, 80_000, 0])) == [
        (0, 20, 5_000.0),
        (20, 40, 8_000.0),
        (40, 50, 0.0),
    ]


def test_small_moves_are_averaged() -> None:
    # Three percent, and a tenth of what would be merged: 100 messages a second.
    assert spans(told([50_000, 51_500, 50_000, 0])) == [(0, 30, 151_500 / 30), (30, 40, 0.0)]
    assert spans(told([100, 900, 300, 0])) == [(0, 30, 1_300 / 30), (30, 40, 0.0)]


def test_with_no_tolerance_only_what_would_never_matter_is_averaged() -> None:
    assert len(told([50_000, 51_500, 50_000, 0], change=0.0)) == 4
    assert len(told([50_000, 50_500, 50_000, 0], change=0.0)) == 2


def test_coming_back_from_rest_begins_at_the_round_before() -> None:
    course = Course(0)
    course.look(10_000, (0, 0, 0, 0), LIMITS, 0.05, 6)
    course.rest(500_000)
    assert course.look(510_000, (70_000, 0, 0, 0), LIMITS, 0.05, 1) == [
        SampledStretch(500_000, 510_000, 1, Load(7_000.0))
    ]


def test_what_flowed_since_the_last_sample_is_told_at_the_end() -> None:
    course = Course(0)
    assert course.look(10_000, (50_000, 0, 0, 0), LIMITS, 0.05, 6) == []
    assert course.finish(14_000, (58_000, 0, 0, 0)) == [
        SampledStretch(0, 10_000, 1, Load(5_000.0)),
        SampledStretch(10_000, 14_000, 1, Load(2_000.0)),
    ]
    assert course.finish(14_000, (58_000, 0, 0, 0)) == []


@given(st.lists(st.sampled_from([0, 0, 1, 900, 20_000, 21_000, 90_000]), max_size=40), st.integers(1, 7))
def test_no_message_is_told_twice_or_not_at_all(amounts: list[int], samples_max: int) -> None:
    found = told(amounts, samples_max=samples_max, finished=True)
    total = sum(round(one.load.msg_rate_in * (one.at_ms - one.since_ms) / 1000) for one in found)
    assert total == sum(amounts)
    ends = [0] + [one.at_ms for one in found]
    assert all(one.since_ms >= before for one, before in zip(found, ends, strict=False))
    assert all(one.at_ms - one.since_ms == one.samples * STEP_MS for one in found)
    assert all(one.samples <= samples_max for one in found)


# -- records

LOAD = BrokerLoad(measured_ms=20, cpu=0.5, msg_rate_in=3.0, bundles=2, topics=5, load=0.5)
TOP = TopBundles(20, (BundleLoad(bundle="a/b/0x00000000_0xffffffff", msg_rate_in=3.0, topics=5, sessions=2),))
RECORDS = [
    HistoryRecord(
        VERSION,
        "b:6650",
        20,
        load=LoadStretch("topic://a/b/c", 3, 0, 32_767, 10, 1, 1.5, 2.0, 0.0, 0.0, 4, 1, 2),
    ),
    HistoryRecord(
        VERSION,
        "b:6650",
        20,
        decision=DecisionMade("topic://a/b/c", "split", "load", (3,), "why", "", "", 2, 7),
    ),
    HistoryRecord(VERSION, "b:6650", 20, consumers=OrderedConsumers("topic://a/b/c", {"s": 3})),
    HistoryRecord(VERSION, "b:6650", 20, heartbeat=Heartbeat(1, 2, 0, 10_000, 60_000, 60_000, 0.25, "{}")),
    HistoryRecord(VERSION, "b:6650", 20, broker_load=BrokerReported.of("c:6650", LOAD, TOP)),
    HistoryRecord(
        VERSION, "b:6650", 20, bundle_loads=BundlesMeasured(0, 1, (BundleSample.of(TOP.bundles[0]),))
    ),
    HistoryRecord(
        VERSION,
        "b:6650",
        20,
        shed=ShedMade(
            7,
            ("b:6650", "c:6650"),
            (),
            False,
            "",
            "why",
            0.5,
            0.3,
            0.1,
            4,
            (MoveMade("a/b/0x00000000_0xffffffff", "b:6650", "c:6650", 0.2, "Overloaded", "why", False),),
            (),
            "{}",
        ),
    ),
    HistoryRecord(VERSION, "b:6650", 20, moved=BundleMoved("a/b/0x00000000_0xffffffff", "b:6650", "")),
    HistoryRecord(
        VERSION,
        "b:6650",
        20,
        bundle_split=BundleSplitMade("a/b/0x00000000_0xffffffff", "MsgRate", "why", ("a/b/0x0_0x8",), True),
    ),
]


def fits(value: Any, kind: Any) -> bool:
    """Whether a JSON value is what the definition says."""
    if isinstance(kind, list):
        return any(fits(value, one) for one in kind)
    if isinstance(kind, dict) and kind["type"] == "record":
        names = {field["name"] for field in kind["fields"]}
        return (
            isinstance(value, dict)
            and value.keys() <= names
            and all(fits(value.get(f["name"]), f["type"]) for f in kind["fields"])
        )
    if isinstance(kind, dict) and kind["type"] == "array":
        return isinstance(value, list) and all(fits(one, kind["items"]) for one in value)
    if isinstance(kind, dict) and kind["type"] == "map":
        return isinstance(value, dict) and all(fits(one, kind["values"]) for one in value.values())
    name = kind["type"] if isinstance(kind, dict) else kind
    kinds: dict[str, type] = {
        "int": int,
        "long": int,
        "double": float,
        "string": str,
        "null": type(None),
        "boolean": bool,
    }
    return isinstance(value, kinds[name])


def test_the_schema_describes_every_record() -> None:
    assert json.loads(SCHEMA_JSON) == SCHEMA
    for record in RECORDS:
        assert fits(json.loads(msgspec.json.encode(record)), SCHEMA)
        assert msgspec.json.decode(msgspec.json.encode(record), type=HistoryRecord) == record


def test_records_of_a_topic_have_its_name_as_their_key() -> None:
    assert [record.key for record in RECORDS] == ["topic://a/b/c"] * 3 + ["b:6650"] * 6


def test_a_recorded_report_is_the_report_again() -> None:
    assert BrokerReported.of("c:6650", LOAD, TOP).report(20) == (LOAD, TOP)


def test_no_name_of_the_schema_is_defined_twice() -> None:
    """Avro does not allow it."""
    names = re.findall(r'"type":"record","name":"(\w+)"', SCHEMA_JSON.decode())
    assert len(names) == len(set(names)) > 10


def test_the_topic_is_one_of_the_brokers_own() -> None:
    assert str(HISTORY_TOPIC) == "persistent://pulsar/system/__load_history"
    assert HISTORY_TOPIC.is_system
    assert HISTORY_TOPIC.is_classic
