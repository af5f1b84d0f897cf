"""Schemas of topics in a store that several brokers use."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from anabranch.broker.catalog.schemas import Schemas, StoredSchema
from anabranch.metadata.memory import MemoryMetadata, MemoryStore
from anabranch.metadata.port import MetadataStore, Versioned
from anabranch.model.names import TopicName
from anabranch.wire import pulsar_pb2 as pb

TOPIC = TopicName.parse("persistent://public/default/t")


class BehindStore:
    """A session whose plain reads tell what it has seen first. Fresh reads tell what is stored."""

    def __init__(self, inner: MemoryStore) -> None:
        self._inner = inner
        self._seen: dict[str, Versioned | None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def get(self, path: str, *, fresh: bool = False) -> Versioned | None:
        if fresh:
            return await self._inner.get(path, fresh=True)
        if path not in self._seen:
            self._seen[path] = await self._inner.get(path)
        return self._seen[path]


def schema(name: str) -> StoredSchema:
    data = msgspec.json.encode({"type": "record", "name": name, "fields": []})
    return StoredSchema(pb.Schema.Avro, name, data)


async def test_a_version_that_was_added_through_another_broker_is_found_at_once() -> None:
    """A consumer that asks for the schema of a message would else be told that there is no such version."""
    store = MemoryMetadata(lambda: 1)
    one = Schemas(await store.connect())
    other = Schemas(cast("MetadataStore", BehindStore(await store.connect())))
    assert await other.versions(TOPIC) == {}
    assert await one.add(TOPIC, schema("A")) == 0
    assert list(await other.versions(TOPIC)) == [0]
    assert await other.add(TOPIC, schema("A")) == 0
    assert await one.add(TOPIC, schema("B")) == 1
    assert await other.add(TOPIC, schema("B")) == 1
    assert list(await other.versions(TOPIC)) == [0, 1]
