"""The schemas that producers and consumers name: stored per topic, versioned from 0, returned on request.

`schema_compat.py` decides which schema may follow which; the strategy is the namespace's. Messages name their schema by
its version for as long as they are kept, so deleting a topic's schema leaves a mark in its place, and the next schema
gets a version number that was never used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from anabranch.broker.catalog import schema_compat
from anabranch.broker.errors import BrokerError, IncompatibleSchemaError, InvalidSchemaError
from anabranch.broker.policy.effective import EffectivePolicies
from anabranch.metadata.errors import AlreadyExists, ValueTooLarge, VersionConflict
from anabranch.metadata.last_reads import LastReads
from anabranch.metadata.port import MetadataStore, Versioned
from anabranch.model.names import TopicName
from anabranch.wire import pulsar_pb2 as pb

T = TypeVar("T")

# Schemas that are compared in less time than a call to a thread takes.
SMALL_BYTES: Final = 1024
# Records that take so long to read and to send that each gets a turn of the event loop: a client may ask for hundreds
# at once.
LARGE_BYTES: Final = 16 * 1024

# Types a client may name without having a definition of its own; they never make a version.
_DEFERRED = frozenset({pb.Schema.AutoConsume})


class StoredSchema(msgspec.Struct, frozen=True):
    type: int
    name: str
    data: bytes
    properties: dict[str, str] = {}
    timestamp_ms: int = 0
    # The mark of a deletion: earlier versions cannot be read any more.
    is_deletion: bool = False

    def matches(self, other: StoredSchema) -> bool:
        return schema_compat.is_same(self, other)

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
        properties={
            item.key: item.value  # type: ignore[attr-defined]  # The stub takes the enum's KeyValue for the message.
            for item in schema.properties
        },
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
        self._last = LastReads(metadata)
        self._large = asyncio.Lock()

    async def versions(self, topic: TopicName) -> dict[int, StoredSchema]:
        """The versions that are not deleted, oldest first."""
        _, stored = await self._read(topic)
        return _live(stored)

    async def _read(self, topic: TopicName) -> tuple[Versioned | None, list[StoredSchema]]:
        """The topic's record and all versions in it."""
        # Fresh, if the store answers: a message may name a version that a producer at another broker has just added.
        found = await self._last.get(_path(topic))
        if found is None:
            return None, []
        if len(found.value) <= LARGE_BYTES:
            return found, _decoded(found.value)
        async with self._large:
            stored = _decoded(found.value)
            # The next one begins after this caller has had a turn for what it does with the versions.
            await asyncio.sleep(0)
        return found, stored

    async def add(
        self, topic: TopicName, schema: StoredSchema, policies: EffectivePolicies | None = None
    ) -> int | None:
        """The version of this schema, a new one if it was not known. None for types that have no definition."""
        if schema.type in _DEFERRED:
            return None
        if (defect := await _aside(len(schema.data), schema_compat.defect, schema)) is not None:
            raise InvalidSchemaError(f"Invalid schema definition data for {topic}: {defect}")
        while True:
            found, stored = await self._read(topic)
            live = _live(stored)
            if (version := await _version_of(live, schema)) is not None:
                return version
            if policies is not None and not policies.is_allow_auto_update_schema:
                raise IncompatibleSchemaError(f"{topic}: producers may not add schemas in this namespace")
            _refuse(topic, await objection(list(live.values()), schema, _strategy(policies)))
            value = msgspec.json.encode([*stored, schema])
            try:
                if found is None:
                    written = await self._metadata.create(_path(topic), value)
                else:
                    written = await self._metadata.put(_path(topic), value, if_version=found.version)
                self._last.note(_path(topic), written)
            except (AlreadyExists, VersionConflict):
                continue
            except ValueTooLarge as error:
                raise InvalidSchemaError(
                    f"the versions of {topic}'s schema would take too much room: {error}"
                ) from None
            return len(stored)

    async def check_consumer(
        self, topic: TopicName, schema: StoredSchema, policies: EffectivePolicies
    ) -> bool:
        """Raises if a consumer with this schema cannot read the topic; False if the topic has no schema to compare
        with."""
        known = await self.versions(topic)
        before, strategy = list(known.values()), _strategy(policies)
        size = len(schema.data) + sum(len(old.data) for old in before)
        _refuse(topic, await _aside(size, schema_compat.consumer_objection, before, schema, strategy))
        return bool(known)

    async def version_of(self, topic: TopicName, schema: StoredSchema) -> int | None:
        """The version of the topic that equals this schema, or None."""
        return await _version_of(await self.versions(topic), schema)

    async def get(self, topic: TopicName, version: bytes | None) -> tuple[int, StoredSchema]:
        """A version of the topic's schema; the latest for None."""
        known = await self.versions(topic)
        number = max(known, default=-1) if not version else int.from_bytes(version, "big")
        if number not in known:
            # Version numbers have eight bytes. A longer one would only print thousands of digits.
            which = f" version {number}" if version and len(version) <= 8 else ""
            raise SchemaNotFoundError(f"{topic} has no schema{which}")
        return number, known[number]

    async def mark_deleted(self, topic: TopicName, now_ms: int) -> int:
        """Deletes all versions so far; returns the version number of the deletion itself."""
        while (found := await self._metadata.get(_path(topic))) is not None:
            stored = _decoded(found.value)
            if not _live(stored):
                return len(stored)
            mark = StoredSchema(schema_compat.TYPE_NONE, "", b"", timestamp_ms=now_ms, is_deletion=True)
            # Their numbers stay taken. The record's size is bounded, so deleted definitions must not fill it.
            gone = [msgspec.structs.replace(one, name="", data=b"", properties={}) for one in stored]
            try:
                await self._metadata.put(
                    _path(topic), msgspec.json.encode([*gone, mark]), if_version=found.version
                )
            except VersionConflict:
                continue
            return len(stored)
        return 0

    async def delete(self, topic: TopicName) -> None:
        """Deletes all versions for good, because the topic and every message that names a version are deleted."""
        await self._metadata.delete(_path(topic))


async def objection(before: Sequence[StoredSchema], new: StoredSchema, strategy: str) -> str | None:
    """Like `schema_compat.objection`."""
    size = len(new.data) + sum(len(old.data) for old in before)
    return await _aside(size, schema_compat.objection, before, new, strategy)


async def _version_of(known: Mapping[int, StoredSchema], schema: StoredSchema) -> int | None:
    # Almost always a client sends, byte for byte, what it has sent before.
    for version, old in known.items():
        if old.type == schema.type and old.data == schema.data and old.matches(schema):
            return version
    size = len(schema.data) + sum(len(old.data) for old in known.values())
    return await _aside(size, _first_match, known, schema)


def _first_match(known: Mapping[int, StoredSchema], schema: StoredSchema) -> int | None:
    is_same = schema_compat.same_as(schema)
    return next((version for version, old in known.items() if is_same(old)), None)


async def _aside(size: int, judge: Callable[..., T], *given: object) -> T:
    """Calls `judge` on schemas of that many bytes: in a thread for large ones, which would block the event loop."""
    return judge(*given) if size <= SMALL_BYTES else await asyncio.to_thread(judge, *given)


_decoded = msgspec.json.Decoder(list[StoredSchema]).decode


def _live(stored: list[StoredSchema]) -> dict[int, StoredSchema]:
    first = next((n + 1 for n in reversed(range(len(stored))) if stored[n].is_deletion), 0)
    return {number: stored[number] for number in range(first, len(stored))}


def _strategy(policies: EffectivePolicies | None) -> str:
    strategy = "UNDEFINED" if policies is None else policies.schema_compatibility_strategy
    return schema_compat.DEFAULT_STRATEGY if strategy == "UNDEFINED" else strategy


def _refuse(topic: TopicName, objection: str | None) -> None:
    if objection is not None:
        raise IncompatibleSchemaError(f"{topic}: {objection}")


def _path(topic: TopicName) -> str:
    return f"/schemas/{topic.base.tenant}/{topic.base.namespace.namespace}/{topic.base.encoded_local}"
