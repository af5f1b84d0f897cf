"""The schemas that producers and consumers name: stored per topic, versioned from 0, given back on request.

Compatibility is judged by type alone here: a topic keeps the type of its first schema. Rules between definitions of one
type belong to the schema registry that follows.
"""

from __future__ import annotations

import msgspec

from anabranch.broker.errors import BrokerError, IncompatibleSchemaError
from anabranch.metadata.errors import AlreadyExists, VersionConflict
from anabranch.metadata.port import MetadataStore
from anabranch.model.names import TopicName
from anabranch.wire import pulsar_pb2 as pb

# Types a client may name without having a definition of its own; they never make a version.
_DEFERRED = frozenset({pb.Schema.AutoConsume})


class StoredSchema(msgspec.Struct, frozen=True):
    type: int
    name: str
    data: bytes
    properties: dict[str, str] = {}
    timestamp_ms: int = 0

    def matches(self, other: StoredSchema) -> bool:
        return self.type == other.type and self.data == other.data

    def to_wire(self) -> pb.Schema:
        schema = pb.Schema(name=self.name, schema_data=self.data, type=self.type)  # type: ignore[arg-type]
        for key, value in self.properties.items():
            schema.properties.add(key=key, value=value)
        return schema


def from_wire(schema: pb.Schema, now_ms: int = 0) -> StoredSchema:
    return StoredSchema(
        type=schema.type,
        name=schema.name,
        data=schema.schema_data,
        properties={item.key: item.value for item in schema.properties},
        timestamp_ms=now_ms,
    )


def version_bytes(version: int) -> bytes:
    return version.to_bytes(8, "big")


class SchemaNotFoundError(BrokerError):
    code = pb.TopicNotFound


class Schemas:
    """Reads and writes the versions of a topic's schema. Partitions share those of their topic."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def versions(self, topic: TopicName) -> list[StoredSchema]:
        found = await self._metadata.get(_path(topic))
        return [] if found is None else msgspec.json.decode(found.value, type=list[StoredSchema])

    async def add(self, topic: TopicName, schema: StoredSchema) -> int | None:
        """The version of this schema, a new one if it was not known. None for types that have no definition."""
        if schema.type in _DEFERRED:
            return None
        while True:
            found = await self._metadata.get(_path(topic))
            known = [] if found is None else msgspec.json.decode(found.value, type=list[StoredSchema])
            for version, old in enumerate(known):
                if old.matches(schema):
                    return version
            if known and known[-1].type != schema.type:
                raise IncompatibleSchemaError(
                    f"{topic} has a schema of type {pb.Schema.Type.Name(known[-1].type)}, "
                    f"not {pb.Schema.Type.Name(schema.type)}"
                )
            value = msgspec.json.encode([*known, schema])
            try:
                if found is None:
                    await self._metadata.create(_path(topic), value)
                else:
                    await self._metadata.put(_path(topic), value, if_version=found.version)
            except (AlreadyExists, VersionConflict):
                continue
            return len(known)

    async def get(self, topic: TopicName, version: bytes | None) -> tuple[int, StoredSchema]:
        """A version of the topic's schema, the latest for None."""
        known = await self.versions(topic)
        number = len(known) - 1 if not version else int.from_bytes(version, "big")
        if not 0 <= number < len(known):
            raise SchemaNotFoundError(f"{topic} has no schema" + (f" version {number}" if version else ""))
        return number, known[number]

    async def delete(self, topic: TopicName) -> None:
        await self._metadata.delete(_path(topic))


def _path(topic: TopicName) -> str:
    return f"/schemas/{topic.base.tenant}/{topic.base.namespace.namespace}/{topic.base.encoded_local}"
