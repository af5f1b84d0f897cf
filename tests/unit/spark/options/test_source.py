"""What the source says about its options: what good values mean, and how bad ones are refused."""

from __future__ import annotations

import base64
import json

import pytest

from anabranch.client.security import Security
from anabranch.model.cut import Cut, Place
from anabranch.model.segments import WHOLE, HashRange, SegmentId
from anabranch.spark.options.source import DELAY_MS, BadOption, Kind, Options, parse
from anabranch.spark.plan.limit import Limit
from anabranch.spark.plan.ranges import Ranges
from anabranch.spark.plan.selection import Choice

URL = "pulsar://localhost:6650"
TOPIC, OTHER = "topic://public/default/orders", "topic://public/default/other"
NEEDED = {"serviceUrl": URL, "topic": TOPIC}
CUT = Cut((Place(SegmentId(0), WHOLE, at=((5, 3, 0),)),))
CUT_TEXT = CUT.encode().decode()


def test_names_are_found_whatever_their_case() -> None:
    options = parse({name.lower(): value for name, value in {**NEEDED, "maxRowsPerTrigger": "5"}.items()})
    assert options == Options(URL, Choice.of(TOPIC), limit=Limit(rows=5))


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ({"topic": "orders"}, Choice.of("persistent://public/default/orders")),
        ({"topics": f"{OTHER}, {TOPIC},"}, Choice.of(TOPIC, OTHER)),
        ({"topicsPattern": "public/default/o.*"}, Choice(namespace="public/default", pattern="o.*")),
        ({"topicsPattern": "topic://a/b/c/d|e"}, Choice(namespace="a/b", pattern="c/d|e")),
        ({"namespace": "public/default"}, Choice(namespace="public/default")),
        (
            {"namespace": "a/b", "propertyFilters": "tier=gold, team=billing"},
            Choice(namespace="a/b", filters=(("team", "billing"), ("tier", "gold"))),
        ),
        (
            {"topicsPattern": "a/b/c", "propertyFilters": "x=a=b"},
            Choice(namespace="a/b", pattern="c", filters=(("x", "a=b"),)),
        ),
    ],
)
def test_topics_are_chosen_in_one_of_four_ways(given: dict[str, str], choice: Choice) -> None:
    assert parse({"serviceUrl": URL, **given}).choice == choice


def test_a_pattern_is_of_the_whole_name_within_its_namespace() -> None:
    choice = Choice.matching("public/default/or.*|x")
    there = [TOPIC, OTHER, "topic://public/default/x", "topic://public/default/xy", "topic://a/b/orders"]
    assert choice.of_those([*there, "persistent://public/default/orders"]) == {TOPIC, there[2]}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"startTime": "1970-01-01T00:00:01Z"}, Ranges(since_ms=1000)),
        ({"endTime": "1970-01-01T00:00:01.0001+00:00"}, Ranges(until_ms=1001)),
        ({"keys": "a, b"}, Ranges(keys=frozenset({b"a", b"b"}))),
        ({"keys": '["a,b", "ö"]'}, Ranges(keys=frozenset({b"a,b", "ö".encode()}))),
        (
            {"keyRange": "8000-8fff,0000-7fff"},
            Ranges(hashes=(HashRange(0, 0x7FFF), HashRange(0x8000, 0x8FFF))),
        ),
        ({"segments": "0, 3"}, Ranges(segments=frozenset({SegmentId(0), SegmentId(3)}))),
    ],
)
def test_ranges_say_which_rows_are_wanted(given: dict[str, str], expected: Ranges) -> None:
    assert parse({**NEEDED, **given}).ranges == expected


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("ordering", "None", "ordering", "none"),
        ("minPartitions", "8", "min_partitions", 8),
        ("maxPartitions", "8", "max_partitions", 8),
        ("maxRowsPerTrigger", "8", "limit", Limit(rows=8)),
        ("maxBytesPerTrigger", "8", "limit", Limit(bytes=8)),
        ("minRowsPerTrigger", "8", "rows_min", 8),
        ("maxTimeSkew", "2h", "skew_ms", 7_200_000),
        ("maxTimeSkew", "500 ms", "skew_ms", 500),
        ("subscription", "table", "subscription", "table"),
        ("failOnDataLoss", "FALSE", "fail_on_data_loss", False),
        ("timeoutSeconds", "1.5", "timeout_s", 1.5),
        ("end", "latest", "end", "latest"),
        ("authToken", "file:///run/token", "security", Security(token="file:///run/token")),
        ("tlsTrustCertsFile", "ca.pem", "security", Security(tls_trust_certs_file="ca.pem")),
        ("tlsAllowInsecure", "true", "security", Security(tls_allow_insecure=True)),
        ("tlsCheckHostName", "false", "security", Security(tls_check_host_name=False)),
        ("serviceUrl", "pulsar+ssl://broker:6651", "service_url", "pulsar+ssl://broker:6651"),
        ("readMode", "direct", "read_mode", "direct"),
        ("objectAccess", "OWN", "object_access", "own"),
        ("adminUrl", "http://localhost:8080", "admin_url", "http://localhost:8080"),
        ("columns", "Key, value", "columns", ("key", "value")),
        ("maxMessageBytes", "1073741824", "message_bytes_max", 1 << 30),
    ],
)
def test_a_good_value_is_read(name: str, value: str, field: str, expected: object) -> None:
    assert getattr(parse({**NEEDED, name: value}), field) == expected


def test_a_minimum_has_a_longest_delay() -> None:
    assert parse({**NEEDED, "minRowsPerTrigger": "5"}).delay_ms == DELAY_MS
    assert parse({**NEEDED, "minRowsPerTrigger": "5", "maxTriggerDelay": "30s"}).delay_ms == 30_000


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("1970-01-01T00:00:01Z", 1000),
        ("Latest", "latest"),
        ("earliest", Cut()),
        (CUT_TEXT, CUT),
        (base64.b64encode(CUT.encode()).decode(), CUT),
        (json.dumps({TOPIC: "latest"}), {TOPIC: "latest"}),
        (json.dumps({TOPIC: json.loads(CUT_TEXT)}), {TOPIC: CUT}),
        (json.dumps({TOPIC: base64.b64encode(CUT.encode()).decode()}), {TOPIC: CUT}),
        (json.dumps({"topics": {TOPIC: json.loads(CUT_TEXT)}, "version": 1}), {TOPIC: CUT}),
    ],
)
def test_a_start_may_be_a_time_a_checkpoint_or_an_end_of_the_topic(text: str, start: object) -> None:
    assert parse({**NEEDED, "start": text}).start == start
    assert parse({**NEEDED, "end": text}).end == start


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("serviceUrl", "http://x", r"serviceUrl.*pulsar://host:port"),
        ("topic", "topic://orders/x", r"topic=.*: give a topic.s name"),
        ("start", "soon", r"start='soon'.*'earliest', 'latest', a time"),
        ("start", "2026-05-01T12:00:00", r"start=.*zone"),
        ("start", '{"places":[]}', r"start=.*checkpoint"),
        ("start", "{}", r"start=.*names no topic"),
        ("start", json.dumps({TOPIC: {TOPIC: "latest"}}), r"start=.*checkpoint"),
        ("start", json.dumps({OTHER: "latest"}), r"start names .*other, and the query reads .*orders"),
        ("end", "soon", r"end='soon'.*'earliest', 'latest', a time"),
        ("startTime", "2026-05-01", r"startTime='2026-05-01': give a time with a zone"),
        ("endTime", "never", r"endTime='never': give a time with a zone"),
        ("keys", " , ", r"keys=' , ': give keys with commas"),
        ("keys", "[1]", r"keys='\[1\]': give keys with commas between them, or a JSON list"),
        ("keys", "[", r"keys='\[': give keys with commas between them, or a JSON list"),
        ("keyRange", "0-7fff", r"keyRange='0-7fff': give ranges of hashes"),
        ("keyRange", "8000-7fff", r"keyRange='8000-7fff': give ranges of hashes"),
        ("segments", "one", r"segments='one': give numbers of segments"),
        ("ordering", "total", r"ordering='total': give 'key' or 'none'"),
        ("minPartitions", "0", r"minPartitions='0': give a whole number from 1 on"),
        ("maxRowsPerTrigger", "0", r"maxRowsPerTrigger='0': give a whole number from 1 on"),
        ("maxBytesPerTrigger", "1k", r"maxBytesPerTrigger='1k'"),
        ("minRowsPerTrigger", "-1", r"minRowsPerTrigger='-1': give a whole number from 1 on"),
        ("maxTriggerDelay", "5", r"maxTriggerDelay='5': give a time span such as 500ms, 30s"),
        ("maxTimeSkew", "0s", r"maxTimeSkew='0s': give a time span such as 500ms, 30s"),
        ("failOnDataLoss", "no", r"failOnDataLoss='no': give 'true' or 'false'"),
        ("subscription", " ", r"subscription=' '"),
        ("readMode", "magic", r"readMode='magic': give 'auto' or 'direct' or 'broker'"),
        ("objectAccess", "mine", r"objectAccess='mine': give 'signed' or 'own'"),
        ("adminUrl", "localhost:8080", r"adminUrl='localhost:8080': give where .* http://localhost:8080"),
        ("columns", "key,offset", r"columns='key,offset': give some of key, value, properties, topic"),
        ("columns", "key, key", r"columns='key, key': give some of .*, each once"),
        ("timeoutSeconds", "-1", r"timeoutSeconds='-1'"),
        ("maxMessageBytes", "2147483648", r"maxMessageBytes='2147483648': give a whole number of bytes from"),
        ("authToken", " ", r"authToken=' ': give a token, or file:///path"),
        ("tlsTrustCertsFile", "", r"tlsTrustCertsFile='': give the path of a file"),
        ("tlsKeyFile", "me.key", r"tlsCertificateFile and tlsKeyFile belong together"),
        ("username", "ann", r"username and password belong together"),
        ("password", "hush", r"username and password belong together"),
        ("username", "an:n", r"username='an:n': give the name of a user, without a colon"),
        ("tlsAllowInsecure", "1", r"tlsAllowInsecure='1': give 'true' or 'false'"),
        ("tlsCheckHostName", "no", r"tlsCheckHostName='no': give 'true' or 'false'"),
        (
            "decryptionKeys",
            "orders",
            r"decryptionKeys='orders': give names of keys, each once, and the paths",
        ),
        ("decryptionKeys", "a=/x,a=/y", r"names of keys, each once.*orders=/keys/orders\.pem, with commas"),
        ("decode", "yes", r"decode='yes': give 'true' or 'false'"),
        ("decodeErrors", "drop", r"decodeErrors='drop': give 'fail' or 'null'"),
        ("decodePrefix", "a b", r"decodePrefix='a b': give the beginning of a column's name"),
        ("decodePrefix", "v_", r"decodePrefix is of no use without decode=true"),
    ],
)
def test_a_mistake_names_the_option_and_what_is_allowed(name: str, value: str, said: str) -> None:
    with pytest.raises(BadOption, match=said):
        parse({**NEEDED, name: value})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "no topic is named: give exactly one of topic, topics, topicsPattern, namespace"),
        ({"topic": TOPIC, "topics": OTHER}, "topic and topics exclude each other: give exactly one of"),
        ({"topics": ""}, "topics='': give topics' names with commas"),
        ({"topics": "a,a"}, "topics='a,a': .*each once"),
        ({"topicsPattern": "orders.*"}, "topicsPattern=.*public/default/orders-"),
        ({"topicsPattern": "a/b/("}, "topicsPattern=.*not a regular expression"),
        ({"topicsPattern": "persistent://a/b/c"}, "topicsPattern=.*name them with topics"),
        ({"namespace": "public"}, "namespace='public': give a namespace such as public/default"),
        ({"namespace": "a/b", "propertyFilters": "gold"}, "propertyFilters='gold': give properties"),
        ({"topic": TOPIC, "propertyFilters": "a=b"}, "propertyFilters is for namespace and topicsPattern"),
        ({"namespace": "a/b", "start": CUT_TEXT}, "start: a checkpoint is of one topic"),
        ({"namespace": "a/b", "segments": "1"}, "segments: numbers of segments are those of one topic"),
        (
            {"topic": TOPIC, "startTime": "2026-05-01T00:00Z", "endTime": "2026-05-01T00:00Z"},
            "endTime: give a time after startTime",
        ),
        ({"topic": TOPIC, "maxTriggerDelay": "5m"}, "maxTriggerDelay is for minRowsPerTrigger"),
        (
            {"topic": TOPIC, "minRowsPerTrigger": "6", "maxRowsPerTrigger": "5"},
            "minRowsPerTrigger=6: give at most maxRowsPerTrigger, 5",
        ),
        ({"topic": TOPIC, "startingOffsets": "latest"}, r"'startingOffsets' is unknown. There are .*start"),
        ({"topic": TOPIC, "maxRowPerTriggers": "1"}, "unknown; did you mean maxRowsPerTrigger?"),
        ({"topic": TOPIC, "serviceurls": "1"}, "unknown; did you mean serviceUrl?"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(BadOption, match=said):
        parse({"serviceUrl": URL, **given})


def test_a_table_in_a_catalog_is_refused_with_what_to_do_instead() -> None:
    """As Spark 4.3 hands over what CREATE TABLE … USING anabranch OPTIONS (…) has: each option twice."""
    given = {**NEEDED, **{f"option.{name.lower()}": value for name, value in NEEDED.items()}}
    with pytest.raises(BadOption, match=r"CREATE TABLE … USING anabranch is not possible.*TEMPORARY VIEW"):
        parse(given)


def test_a_missing_address_is_named() -> None:
    with pytest.raises(BadOption, match="serviceUrl is missing"):
        parse({"topic": TOPIC})


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"end": "latest"}, "stream", r"end is for spark\.read only"),
        ({"maxrowspertrigger": "1"}, "batch", r"maxRowsPerTrigger is for spark\.readStream only"),
        ({"maxTimeSkew": "1s"}, "batch", r"maxTimeSkew is for spark\.readStream only"),
    ],
)
def test_options_of_the_other_kind_of_query_are_refused(given: dict[str, str], kind: Kind, said: str) -> None:
    parse({**NEEDED, **given})
    with pytest.raises(BadOption, match=said):
        parse({**NEEDED, **given}, kind)


def test_a_certificate_of_ones_own_comes_with_its_key() -> None:
    found = parse({**NEEDED, "tlsCertificateFile": "me.pem", "tlsKeyFile": "me.key"}).security
    assert found == Security(tls_certificate_file="me.pem", tls_key_file="me.key")


def test_a_token_is_not_shown() -> None:
    assert "hush" not in repr(parse({**NEEDED, "authToken": "hush"}))
    named = parse({**NEEDED, "username": "ann", "password": "hush"})
    assert named.security == Security(username="ann", password="hush")
    assert "hush" not in repr(named)
    with pytest.raises(BadOption, match="two ways"):
        parse({**NEEDED, "username": "ann", "password": "hush", "authToken": "hush"})


def test_several_tasks_for_a_segment_are_allowed_without_order() -> None:
    assert parse({**NEEDED, "minPartitions": "2", "ordering": "none"}, "stream").min_partitions == 2
    assert parse({**NEEDED, "minPartitions": "2"}, "batch").min_partitions == 2
    assert parse({**NEEDED, "minPartitions": "2"}, "stream").min_partitions == 2


def test_there_may_not_be_more_tasks_at_least_than_at_most() -> None:
    between = parse({**NEEDED, "minPartitions": "2", "maxPartitions": "2"}, "batch")
    assert (between.min_partitions, between.max_partitions) == (2, 2)
    with pytest.raises(BadOption, match="minPartitions=3: give at most maxPartitions, 2"):
        parse({**NEEDED, "minPartitions": "3", "maxPartitions": "2"})
