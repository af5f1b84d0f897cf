"""A topic's schemas as operators, producers and consumers see them, over their whole life."""

from __future__ import annotations

import asyncio
import json
import tracemalloc

import pytest

from anabranch.broker.admin.topics import schemas as schemas_rest
from anabranch.broker.catalog import schemas as schemas_module
from anabranch.broker.catalog.schemas import Schemas, StoredSchema, version_bytes
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.errors import IncompatibleSchemaError
from anabranch.broker.policy.effective import effective
from anabranch.broker.policy.namespace import NamespacePolicies
from anabranch.client.errors import RequestRefused
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.names import TopicName
from anabranch.wire import pulsar_pb2 as pb
from unit.broker.admin.conftest import Rest

V2 = "/admin/v2"
PATH = f"{V2}/schemas/public/default/t/schema"
TOPIC = TopicName.parse("persistent://public/default/t")

STRING = pb.Schema(name="s", type=pb.Schema.String, schema_data=b"")
ANY = pb.Schema(name="a", type=pb.Schema.AutoConsume, schema_data=b"")


def posted(*fields: str) -> dict[str, object]:
    record = {"type": "record", "name": "R", "fields": [{"name": f, "type": "int"} for f in fields]}
    return {"type": "JSON", "schema": json.dumps(record), "properties": {}}


async def test_a_deleted_schemas_version_is_never_used_again(rest: Rest) -> None:
    # Messages that are still in the log name their schema by its number.
    await rest.call("POST", PATH, json=posted("a"))
    assert (await rest.call("DELETE", PATH)).json() == {"version": 1}
    await rest.refused("GET", PATH, 404)
    await rest.refused("GET", f"{PATH}/0", 404)
    await rest.refused("GET", f"{PATH}/1", 404)
    assert await rest.get(f"{PATH}s") == {"getSchemaResponses": []}
    # Nothing is there to be compatible with.
    assert (await rest.call("POST", PATH, json={"type": "STRING"})).json() == {"version": {"version": 2}}
    assert (await rest.get(PATH))["version"] == 2
    assert [one["version"] for one in (await rest.get(f"{PATH}s"))["getSchemaResponses"]] == [2]


async def test_deleting_twice_leaves_one_mark_and_by_force_nothing(rest: Rest) -> None:
    await rest.call("POST", PATH, json=posted("a"))
    await rest.call("DELETE", PATH)
    await rest.call("DELETE", PATH)
    assert (await rest.call("POST", PATH, json=posted("a"))).json() == {"version": {"version": 2}}
    await rest.call("DELETE", f"{PATH}?force=true")
    assert (await rest.call("POST", PATH, json=posted("b"))).json() == {"version": {"version": 0}}


async def test_a_deletion_survives_a_restart() -> None:
    metadata = await MemoryMetadata(lambda: 0).connect()
    number = pb.Schema.String
    await Schemas(metadata).add(TOPIC, StoredSchema(type=number, name="", data=b""))
    await Schemas(metadata).mark_deleted(TOPIC, 1)
    again = Schemas(metadata)
    assert await again.versions(TOPIC) == {}
    assert await again.add(TOPIC, StoredSchema(type=pb.Schema.Int32, name="", data=b"")) == 2
    assert (await again.get(TOPIC, version_bytes(2)))[1].type == pb.Schema.Int32
    with pytest.raises(IncompatibleSchemaError):
        await again.add(TOPIC, StoredSchema(type=number, name="", data=b""))
    await metadata.close()


@pytest.mark.parametrize("name", ["BOOLEAN", "INT8", "LOCAL_DATE_TIME", "DOUBLE"])
async def test_types_have_the_names_that_pulsars_clients_know(rest: Rest, name: str) -> None:
    await rest.call("POST", PATH, json={"type": name})
    assert (await rest.get(PATH))["type"] == name


@pytest.mark.parametrize("part", ["BYTES", "BOOLEAN", "LOCAL_DATE", "INT64"])
async def test_a_pair_may_be_made_of_any_primitive(rest: Rest, part: str) -> None:
    pair = {"type": "KEY_VALUE", "schema": json.dumps({"key": "", "value": ""})}
    types = {"key.schema.type": "STRING", "value.schema.type": part}
    await rest.call("POST", PATH, json={**pair, "properties": types})
    assert (await rest.get(PATH))["properties"] == types
    # It is the same pair only if its parts are of the same types: they have no definition that would tell.
    await rest.refused("POST", PATH, 409, json={**pair, "properties": {**types, "key.schema.type": "INT32"}})


async def test_a_consumer_that_takes_any_schema_is_not_in_the_way_of_the_first_one(rest: Rest) -> None:
    await rest.client.consumer("t", "any", schema=ANY)
    await rest.client.consumer("t", "typed", schema=STRING)
    assert (await rest.get(PATH))["type"] == "STRING"


async def test_a_topic_that_is_used_without_a_schema_gets_none_from_a_consumer(rest: Rest) -> None:
    await rest.client.consumer("t", "bytes")
    with pytest.raises(RequestRefused) as refused:
        await rest.client.consumer("t", "typed", schema=STRING)
    assert refused.value.error == pb.IncompatibleSchema


async def test_schemas_that_fill_their_record_are_refused_until_they_are_deleted() -> None:
    schemas = Schemas(await MemoryMetadata(lambda: 0).connect())
    policies = effective(BrokerConfig(), NamespacePolicies(schema_compatibility_strategy="ALWAYS_COMPATIBLE"))

    def large(n: int) -> StoredSchema:
        doc = {"type": "record", "name": "R", "doc": f"{n}" + "x" * 200_000, "fields": []}
        return StoredSchema(type=pb.Schema.Avro, name="", data=json.dumps(doc).encode())

    async def fill(count: int) -> None:
        for n in range(count):
            await schemas.add(TOPIC, large(n), policies)
        with pytest.raises(IncompatibleSchemaError, match="too much room"):
            await schemas.add(TOPIC, large(count), policies)

    await fill(3)
    assert await schemas.mark_deleted(TOPIC, 1) == 3
    await fill(3)
    assert set(await schemas.versions(TOPIC)) == {4, 5, 6}


async def test_large_schemas_that_are_asked_for_at_once_are_read_one_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A millisecond each, and a client may ask for hundreds in one read."""
    schemas = Schemas(await MemoryMetadata(lambda: 0).connect())
    await schemas.add(
        TOPIC, StoredSchema(type=pb.Schema.String, name="", data=b"", properties={"x": "y" * 100_000})
    )
    loop, turn, read_in = asyncio.get_running_loop(), 0, []
    decoded = schemas_module._decoded

    def count() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(count)

    def counted(value: bytes) -> list[StoredSchema]:
        read_in.append(turn)
        return decoded(value)

    monkeypatch.setattr(schemas_module, "_decoded", counted)
    count()
    found = await asyncio.gather(*(schemas.get(TOPIC, None) for _ in range(50)))
    assert {number for number, _ in found} == {0}
    assert len(set(read_in)) == len(read_in) == 50


async def test_a_part_that_is_nested_too_deeply_is_shown_as_text(rest: Rest) -> None:
    part = b"[" * 100_000
    types = {f"{half}.schema.type": "STRING" for half in ("key", "value")}
    data = bytes(4) + len(part).to_bytes(4, "big") + part
    pair = StoredSchema(type=pb.Schema.KeyValue, name="", data=data, properties=types)
    await rest.broker.schemas.add(TOPIC, pair)
    assert len((await rest.get(PATH))["data"]) > len(part)


def test_of_the_parts_of_a_key_value_schema_no_values_are_made() -> None:
    text = '{"key": [' + ", ".join(["[]"] * 200_000) + '], "value": ""}'
    tracemalloc.start()
    try:
        packed = schemas_rest._packed_parts(text)
        shown = schemas_rest._shown_parts(packed)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert shown == text.replace(" ", "")
    # The lists alone would take twenty times as much.
    assert peak < 5 * len(text)
