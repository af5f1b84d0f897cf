"""What the sink says about its options and about the columns it is given."""

from __future__ import annotations

import pytest

from anabranch.spark.columns.sink_columns import BadColumn, SinkColumns, columns_of
from anabranch.spark.driver.commit import stream_write_id
from anabranch.spark.options.sink import SinkOptions, parse
from anabranch.spark.options.source import BadOption

NEEDED = {"serviceUrl": "pulsar://localhost:6650", "topic": "topic://public/default/orders"}
TOPIC = NEEDED["topic"]
OPTIONS = parse(NEEDED, "batch")
ENCODED = parse({**NEEDED, "encode": "true"}, "batch")


def test_names_are_found_whatever_their_case_and_sparks_own_are_left_alone() -> None:
    given = {
        "serviceurl": NEEDED["serviceUrl"],
        "TOPIC": TOPIC,
        "writeid": "nightly",
        "adminurl": "http://localhost:8080/",
        "compression": "LZ4",
        "batchbytes": "65536",
        "timeoutseconds": "5",
        "checkpointlocation": "/somewhere",
        "queryname": "q",
    }
    found = parse(given, "batch")
    assert (found.topic, found.write_id, found.admin_url) == (TOPIC, "nightly", "http://localhost:8080/")
    assert (found.compression, found.batching.bytes_max, found.timeout_s) == ("lz4", 65536, 5.0)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("serviceUrl", "http://x", r"serviceUrl.*pulsar://host:port"),
        ("adminUrl", "localhost:8080", r"adminUrl=.*: give .*http://"),
        ("topic", "topic://orders/x", r"topic=.*: give a topic.s name"),
        ("writeId", "", r"writeId='': give 1 to 200 printable characters"),
        ("compression", "gzip", r"compression='gzip': give 'none' or 'lz4'"),
        ("batchBytes", "1", r"batchBytes='1': give a whole number of bytes from 1024"),
        ("encode", "yes", r"encode='yes': give 'true' or 'false'"),
        ("encodePrefix", "v_", r"encodePrefix goes with option encode=true"),
        ("timeoutSeconds", "-1", r"timeoutSeconds='-1': give a number of seconds"),
        ("kafka.acks", "all", r"'kafka.acks' is unknown. There are .*serviceUrl"),
    ],
)
def test_a_mistake_names_the_option_and_what_is_allowed(name: str, value: str, said: str) -> None:
    with pytest.raises(BadOption, match=said):
        parse({**NEEDED, name: value}, "batch")


def test_the_service_must_be_named() -> None:
    with pytest.raises(BadOption, match="serviceUrl is missing"):
        parse({"topic": TOPIC}, "batch")


def test_a_stream_has_no_write_id_of_its_own() -> None:
    with pytest.raises(BadOption, match=r"writeId is for df\.write only"):
        parse({**NEEDED, "writeId": "w"}, "stream")


def test_rows_are_encoded_for_one_topic() -> None:
    with pytest.raises(BadOption, match="encode=true needs option topic"):
        parse({"serviceUrl": NEEDED["serviceUrl"], "encode": "true"}, "batch")


# -- columns


def test_every_column_has_its_place_whatever_its_case() -> None:
    given = [
        ("Key", "string"),
        ("value", "binary"),
        ("properties", "map<string,string>"),
        ("event_time", "timestamp"),
    ]
    assert columns_of(given, OPTIONS) == SinkColumns("value", "Key", "properties", "event_time")


def test_the_topic_is_the_options_or_each_rows() -> None:
    given = [("value", "string"), ("topic", "string")]
    assert columns_of(given, OPTIONS) == SinkColumns("value")
    assert columns_of(given, SinkOptions("pulsar://x")) == SinkColumns("value", topic="topic")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([("key", "string")], r"'value' is missing: .* value \(binary or string\), key"),
        ([("value", "int")], r"'value' is int: it must be binary or string"),
        ([("value", "string"), ("key", "bigint")], r"'key' is bigint: it must be binary or string"),
        ([("value", "string"), ("event_time", "date")], r"'event_time' is date: it must be timestamp"),
        ([("value", "string"), ("properties", "map<string,int>")], r"must be map<string,string>"),
        ([("value", "string"), ("offset", "bigint")], r"'offset' is none that is written: there are value"),
        ([("value", "string"), ("VALUE", "string")], r"'VALUE' is there twice"),
    ],
)
def test_a_column_that_cannot_be_written_is_named(given: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(BadColumn, match=said):
        columns_of(given, OPTIONS)


def test_a_column_of_nulls_only_is_as_none() -> None:
    assert columns_of([("value", "string"), ("key", "void")], OPTIONS) == SinkColumns("value")


def test_without_a_topic_anywhere_it_says_what_to_do() -> None:
    with pytest.raises(BadColumn, match=r"option\(.topic.*or a column 'topic'"):
        columns_of([("value", "string")], SinkOptions("pulsar://x"))


def test_with_encode_all_other_columns_are_fields() -> None:
    found = columns_of([("key", "string"), ("id", "bigint"), ("value", "double")], ENCODED)
    assert found == SinkColumns(None, "key", fields=(("id", "id"), ("value", "value")))


def test_with_a_prefix_only_columns_that_begin_with_it_are_fields() -> None:
    options = parse({**NEEDED, "encode": "true", "encodePrefix": "v_"}, "batch")
    found = columns_of([("key", "string"), ("v_key", "bigint")], options)
    assert found == SinkColumns(None, "key", fields=(("v_key", "key"),))
    with pytest.raises(BadColumn, match="'id' is none that is written"):
        columns_of([("id", "bigint")], options)


def test_a_streams_write_is_named_by_its_checkpoint_and_topic() -> None:
    query = "13c1cfe2-937d-4b98-a91e-13dd1a0e1d92"
    assert stream_write_id(query, TOPIC) == f"spark/{query}/{TOPIC}"
    assert stream_write_id(query, None) == f"spark/{query}/"
    for name in ("orders", "orders-partition-3"):
        spellings = [f"{domain}://public/default/{name}" for domain in ("topic", "persistent")]
        assert {stream_write_id(query, one) for one in spellings} == {f"spark/{query}/{spellings[0]}"}
    long = stream_write_id(query, TOPIC + "x" * 200)
    assert len(long) <= 200
    assert long != stream_write_id(query, TOPIC + "x" * 201)
