"""What the source says about its options, and how offsets are written."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from anabranch.model.cut import BadCheckpoint, Cut
from anabranch.spark.offsets import decode, encode
from anabranch.spark.options import BadOption, check_kind, parse
from anabranch.spark.plan import Limit
from unit.model.test_cut import cuts

NEEDED = {"serviceUrl": "pulsar://localhost:6650", "topic": "topic://public/default/orders"}
TOPIC = NEEDED["topic"]


def test_names_are_found_whatever_their_case() -> None:
    options = parse({name.lower(): value for name, value in {**NEEDED, "maxRowsPerTrigger": "5"}.items()})
    assert options.limit == Limit(rows=5)
    assert options.topic == TOPIC


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("serviceUrl", "http://x", r"serviceUrl.*pulsar://host:port"),
        ("topic", "topic://orders/x", r"topic=.*: give a topic.s name"),
        ("start", "soon", r"start='soon'.*'earliest', 'latest', a time"),
        ("start", "2026-05-01T12:00:00", r"start=.*zone"),
        ("start", '{"places":[]}', r"start=.*checkpoint"),
        ("ordering", "total", r"ordering='total': give 'key' or 'none'"),
        ("maxRowsPerTrigger", "0", r"maxRowsPerTrigger='0': give a whole number from 1 on"),
        ("maxBytesPerTrigger", "1k", r"maxBytesPerTrigger='1k'"),
        ("failOnDataLoss", "no", r"failOnDataLoss='no': give 'true' or 'false'"),
        ("subscription", " ", r"subscription=' '"),
        ("readMode", "magic", r"readMode='magic': give 'auto' or 'direct' or 'broker'"),
        ("adminUrl", "localhost:8080", r"adminUrl='localhost:8080': give where .* http://localhost:8080"),
        ("columns", "key,offset", r"columns='key,offset': give some of key, value, properties, topic"),
        ("columns", "key, key", r"columns='key, key': give some of .*, each once"),
        ("timeoutSeconds", "-1", r"timeoutSeconds='-1'"),
        ("startingOffsets", "latest", r"'startingOffsets' is unknown; there are .*start"),
    ],
)
def test_a_mistake_names_the_option_and_what_is_allowed(name: str, value: str, said: str) -> None:
    with pytest.raises(BadOption, match=said):
        parse({**NEEDED, name: value})


@pytest.mark.parametrize("name", NEEDED)
def test_a_missing_option_is_named(name: str) -> None:
    with pytest.raises(BadOption, match=f"{name} is missing"):
        parse({key: value for key, value in NEEDED.items() if key != name})


def test_options_of_the_other_kind_of_query_are_refused() -> None:
    with pytest.raises(BadOption, match=r"end is for spark\.read only"):
        check_kind({"end": "latest"}, "stream")
    with pytest.raises(BadOption, match=r"maxRowsPerTrigger is for spark\.readStream only"):
        check_kind({"maxrowspertrigger": "1"}, "batch")


def test_a_start_may_be_a_time_a_checkpoint_or_an_end_of_the_topic() -> None:
    assert parse({**NEEDED, "start": "1970-01-01T00:00:01Z"}).start == 1000
    assert parse({**NEEDED, "start": "Latest"}).start == "latest"
    assert parse({**NEEDED, "start": "earliest"}).start == Cut()
    assert parse({**NEEDED, "start": Cut().encode().decode()}).start == Cut()


@given(cuts)
def test_an_offset_that_spark_kept_as_text_has_the_same_text_again(cut: Cut) -> None:
    text = json.dumps(encode(cut, TOPIC))
    assert decode(json.loads(text), TOPIC) == cut
    assert json.dumps(encode(decode(json.loads(text), TOPIC), TOPIC)) == text


@pytest.mark.parametrize("begin", ["latest", 0, 1_777_000_000_000])
def test_a_start_that_is_not_resolved_yet_is_its_own_offset(begin: object) -> None:
    assert decode(json.loads(json.dumps(encode(begin, TOPIC))), TOPIC) == begin  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("offset", "said"),
    [
        ({}, "version None"),
        ({"version": 2}, "version 2"),
        ({"version": 1, "start": "soon"}, "checkpointLocation"),
        ({"version": 1, "start": True}, "checkpointLocation"),
        (encode(Cut(), "topic://public/default/other"), "other.*and the query reads.*checkpointLocation"),
    ],
)
def test_an_offset_of_something_else_is_refused(offset: dict[str, object], said: str) -> None:
    with pytest.raises(BadCheckpoint, match=said):
        decode(offset, TOPIC)
