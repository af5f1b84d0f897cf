"""The browser of messages: which ones it finds, how it shows them, and for whom."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

import anabranch
from anabranch.broker.ui.browse import _decoded
from anabranch.metadata.memory import MemoryMetadata
from anabranch.wire import pulsar_pb2 as pb
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


@pytest.mark.parametrize("start", ["soon", "-1", "1:", "12:x", "9" * 20])
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
        assert "secret" not in await rest.refused("GET", f"{PATH}/t", 403)
        assert authorizer.asked == [f"consume {name}"]
