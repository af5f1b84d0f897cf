"""The browser of messages: which ones it finds, how it shows them, and for whom."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

import anabranch
from anabranch.broker.ui.browse import LOOK_MESSAGES_MAX, Look, _Budget, _decoded, _messages
from anabranch.metadata.memory import MemoryMetadata
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch
from unit.broker.admin.conftest import NOW_MS, Rest, serving
from unit.broker.admin.scalable.test_topics import Refusing

PATH = "/ui/api/messages/public/default"


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    async with serving(MemoryMetadata(lambda: NOW_MS)) as made:
        yield made


async def look(rest: Rest, topic: str, **question: Any) -> list[dict[str, Any]]:
    found = await rest.get(f"{PATH}/{topic}", params=question)
    assert found["leftOut"] == []
    messages: list[dict[str, Any]] = found["messages"]
    return messages


def values(messages: list[dict[str, Any]]) -> list[str]:
    return [one["value"]["text"] for one in messages]


async def filled(rest: Rest, topic: str, values: list[Any], **options: Any) -> list[anabranch.MessageId]:
    async with (
        anabranch.connect(rest.broker.service_url) as client,
        client.producer(topic, **options) as producer,
    ):
        return [
            await producer.send(value, key=f"k{n % 3}", properties={"n": str(n)})
            for n, value in enumerate(values)
        ]


@pytest.mark.parametrize("topic", ["topic://public/default/t", "persistent://public/default/t"])
async def test_messages_are_found_from_either_end_by_key_and_at_a_position(rest: Rest, topic: str) -> None:
    ids = await filled(rest, topic, [b"%d" % n for n in range(30)], compression="zlib")
    found = await look(rest, "t", start="earliest", count=3)
    assert values(found) == ["0", "1", "2"]
    assert (found[1]["key"], found[1]["properties"], found[1]["value"]["as"]) == ("k1", {"n": "1"}, "text")
    assert values(await look(rest, "t", start="latest", count=2)) == ["29", "28"]
    assert values(await look(rest, "t", start="latest", key="k0", count=2)) == ["27", "24"]
    place = f"{ids[10].ledger}:{ids[10].entry}"
    assert values(await look(rest, "t", start=place, count=1)) == ["10"]
    assert await look(rest, "t", start="999999:0") == []
    times = [one["publishTime"] for one in await look(rest, "t", start="earliest", count=30)]
    assert values(await look(rest, "t", start=str(times[0]), count=1)) == ["0"]
    assert await look(rest, "t", start=str(times[-1] + 60_000)) == []


async def test_messages_of_all_segments_are_put_together_by_time(rest: Rest) -> None:
    await rest.call("PUT", "/admin/v2/scalable/public/default/t?numInitialSegments=3")
    await filled(rest, "topic://public/default/t", [b"%d" % n for n in range(20)])
    found = await look(rest, "t", start="earliest", count=100)
    assert sorted(values(found), key=int) == [str(n) for n in range(20)]
    assert [one["publishTime"] for one in found] == sorted(one["publishTime"] for one in found)
    assert len({one["part"] for one in found}) > 1


async def test_looking_acknowledges_nothing(rest: Rest) -> None:
    await rest.call("PUT", "/admin/v2/persistent/public/default/t/subscription/s", 204)
    await rest.publish("t", b"one")
    await look(rest, "t")
    stats = await rest.get("/admin/v2/persistent/public/default/t/stats")
    assert stats["subscriptions"]["s"]["msgBacklog"] == 1


async def test_values_are_shown_as_their_schema_has_them(rest: Rest) -> None:
    await filled(rest, "topic://public/default/j", [{"a": "ü"}], schema=anabranch.JsonSchema())
    assert values(await look(rest, "j")) == ['{"a": "ü"}']
    await filled(rest, "topic://public/default/s", ["tea"], schema=str)
    assert values(await look(rest, "s")) == ["tea"]
    await filled(rest, "topic://public/default/b", [b"\x00\xff\x01"])
    (found,) = await look(rest, "b")
    assert found["value"] == {"as": "hex", "text": "00ff01", "bytes": 3}


def test_avro_is_shown_as_json_and_what_does_not_fit_as_bytes() -> None:
    fastavro = pytest.importorskip("fastavro")
    import io

    from anabranch.broker.catalog.schemas import StoredSchema

    definition = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
    written = io.BytesIO()
    fastavro.schemaless_writer(written, definition, {"n": 7})
    schema = StoredSchema(pb.Schema.Avro, "R", json.dumps(definition).encode())
    about = pb.SingleMessageMetadata()
    assert _decoded(about, written.getvalue(), schema) == {"as": "avro", "text": '{"n": 7}', "bytes": 1}
    assert _decoded(about, b"", schema)["as"] == "hex"


@pytest.mark.parametrize("start", ["soon", "-1", "1:", "12:x", "9" * 20, "latest\n"])
async def test_a_start_that_is_none_is_refused(rest: Rest, start: str) -> None:
    await rest.publish("t", b"x")
    await rest.refused("GET", f"{PATH}/t", 400, params={"start": start})


async def test_a_topic_that_is_not_there_is_said_so(rest: Rest) -> None:
    assert "There is no topic none" in await rest.refused("GET", f"{PATH}/none", 404)


@pytest.mark.parametrize("name", ["topic://public/default/t", "persistent://public/default/t"])
async def test_messages_are_for_those_who_may_consume_them(name: str) -> None:
    store = MemoryMetadata(lambda: NOW_MS)
    async with serving(store) as rest:
        await filled(rest, name, [b"secret"])
        assert values(await look(rest, "t")) == ["secret"]
    authorizer = Refusing("consume")
    async with serving(store, authorizer=authorizer) as rest:
        told = await rest.refused("GET", f"{PATH}/t", 403)
        assert "secret" not in told
        # Not even which kind of topic it is.
        assert "topic://public/default/t" in told
        assert "persistent://" not in told
        assert authorizer.asked == [f"consume {name}"]


NUMBER_OF_MANY = b"\x80\x80\x80\x80\x80\x20"  # 2**39 items
LINKED = {"type": "record", "name": "A", "fields": [{"name": "a", "type": ["null", "A"]}]}
ENDLESS = {"type": "record", "name": "A", "fields": [{"name": "a", "type": "A"}]}
NULLS = {"type": "array", "items": "null"}
# The walk must take the same definition of a name as the decoding library.
HIDDEN = {**LINKED, "items": {"type": "record", "name": "A", "fields": []}}
MARKED = {**LINKED, "__fastavro_parsed__": True, "__named_schemas": {"A": ENDLESS}}


@pytest.mark.parametrize(
    ("definition", "body"),
    [
        (LINKED, b"\x02" * 60_000),
        (LINKED, b"\x02" * 1_000_000),
        (HIDDEN, b"\x02" * 60_000),
        (MARKED, b"\x02" * 60_000),
        (ENDLESS, b""),
        (NULLS, NUMBER_OF_MANY + b"\0"),
        ({"type": "map", "values": "null"}, NUMBER_OF_MANY),
        ({"type": "fixed", "name": "F", "size": 2**60}, b"abc"),
        ("bytes", NUMBER_OF_MANY),
    ],
)
def test_avro_that_asks_for_too_much_is_shown_as_bytes(definition: Any, body: bytes) -> None:
    """In a process of its own: decoding such a value ends it."""
    pytest.importorskip("fastavro")
    code = (
        "import sys; from anabranch.broker.ui.browse import _decoded;"
        "from anabranch.broker.catalog.schemas import StoredSchema; from anabranch.wire import pulsar_pb2 as pb;"
        "body = sys.stdin.buffer.read(); schema = StoredSchema(pb.Schema.Avro, 'R', sys.argv[1].encode());"
        "print(_decoded(pb.SingleMessageMetadata(), body, schema)['as'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(definition)], input=body, capture_output=True, check=True
    )
    assert done.stdout == b"hex\n"


def test_avro_of_every_kind_is_still_decoded() -> None:
    fastavro = pytest.importorskip("fastavro")
    import io

    from anabranch.broker.catalog.schemas import StoredSchema

    point = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "double"}]}
    fields: list[tuple[str, Any, Any]] = [
        ("none", "null", None),
        ("yes", "boolean", True),
        ("n", "int", -3),
        ("far", "long", 2**60),
        ("f", "float", 0.5),
        ("s", "string", "tea"),
        ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
        ("u", ["null", point], {"x": 1.5}),
        ("again", {"type": "array", "items": "a.b.P"}, [{"x": 2.5}, {"x": 3.5}]),
        ("m", {"type": "map", "values": {"type": "array", "items": "int"}}, {"k": [1, 2]}),
        ("chain", ["null", "R"], None),
    ]
    definition = {
        "type": "record",
        "name": "R",
        "namespace": "a.b",
        "fields": [{"name": name, "type": kind} for name, kind, _ in fields],
    }
    value = {name: one for name, _, one in fields}
    written = io.BytesIO()
    fastavro.schemaless_writer(written, definition, value)
    schema = StoredSchema(pb.Schema.Avro, "R", json.dumps(definition).encode())
    found = _decoded(pb.SingleMessageMetadata(), written.getvalue(), schema)
    assert (found["as"], json.loads(found["text"])) == ("avro", value)


async def test_half_a_character_hides_no_other_message(rest: Rest) -> None:
    await filled(rest, "topic://public/default/h", [b'{"a": "\\ud800"}', b"tea"])
    assert values(await look(rest, "h", start="earliest")) == ['{"a": "\\ud800"}', "tea"]


def test_long_json_is_shown_as_it_was_sent() -> None:
    body = b"[" + b"[]," * 100_000 + b"[]]"
    found = _decoded(pb.SingleMessageMetadata(), body, None)
    assert (found["as"], found["text"]) == ("json", body[:4000].decode())


def packed(count: int, size: int) -> bytes:
    """An entry of a batch of that many empty messages, filled up to that many bytes, and compressed."""
    one = pb.SingleMessageMetadata(payload_size=0)
    last = pb.SingleMessageMetadata()
    whole = [(one, b"")] * (count - 1) + [(last, bytes(size))]
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, compression=pb.ZLIB)
    return build_batch(metadata, whole)


def test_what_a_look_unpacks_is_bounded() -> None:
    entry = packed(2, 1 << 20)
    entries = [((1, n), entry) for n in range(1000)]
    budget = _Budget(unpacked=10 << 20)
    found, is_whole = _messages("part", entries, {}, Look("earliest", "none such", 20), budget)
    assert (found, is_whole) == ([], False)
    assert -(2 << 20) < budget.unpacked <= 0
    budget = _Budget(messages=10)
    assert _messages("part", entries, {}, Look("latest", "none such", 20), budget) == ([], False)
    assert budget.messages == 0


def test_a_batch_of_very_many_messages_is_not_looked_into() -> None:
    entries = [((1, 0), packed(LOOK_MESSAGES_MAX + 1, 0))]
    (found,), _ = _messages("part", entries, {}, Look("latest", "", 20), _Budget())
    assert (found["value"]["as"], found["place"]) == ("unreadable", [1, 0, -1])


async def test_keys_and_properties_of_any_length_are_shown_in_part(rest: Rest) -> None:
    about = {"key": "k" * 100_000, "properties": {f"{n:04}": "v" * (1 << 16) for n in range(30)}}
    async with (
        anabranch.connect(rest.broker.service_url) as client,
        client.producer("persistent://public/default/long", compression="zlib") as producer,
    ):
        for _ in range(5):
            await producer.post(b"value", **about)  # type: ignore[arg-type]
        await producer.flush()
    answer = await rest.http.get(f"{PATH}/long?count=100")
    assert len(answer.content) < 5 * 12_000
    one = answer.json()["messages"][0]
    assert one["key"] == "k" * 1000 + "…"
    assert one["properties"] == {"0000": "v" * 3996 + "…", "…": "and 29 more"}
    # Found by the whole key all the same.
    assert not await look(rest, "long", key="k" * 1000)


async def test_parts_that_were_not_looked_at_are_named(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    await rest.publish("t", b"x")
    monkeypatch.setattr("anabranch.broker.ui.browse._Budget", lambda: _Budget(unpacked=0))
    found = await rest.get(f"{PATH}/t")
    assert found == {"messages": [], "leftOut": ["persistent://public/default/t"]}
