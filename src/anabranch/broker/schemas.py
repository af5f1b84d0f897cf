"""The schemas that producers and consumers name: stored per topic, versioned from 0, given back on request.

Who may follow whom is decided in `schema_compat.py`; the strategy is the namespace's.
"""

from __future__ import annotations

import msgspec

from anabranch.broker import schema_compat
from anabranch.broker.config import BrokerConfig
from anabranch.broker.errors import BrokerError, IncompatibleSchemaError, InvalidSchemaError
from anabranch.broker.policies import Policies
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

    async def versions(self, topic: TopicName) -> list[StoredSchema]:
        found = await self._metadata.get(_path(topic))
        return [] if found is None else msgspec.json.decode(found.value, type=list[StoredSchema])

    async def add(
        self, topic: TopicName, schema: StoredSchema, policies: Policies | None = None
    ) -> int | None:
        """The version of this schema, a new one if it was not known. None for types that have no definition."""
        if schema.type in _DEFERRED:
            return None
        policies = policies or Policies()
        if (defect := schema_compat.defect(schema)) is not None:
            raise InvalidSchemaError(f"Invalid schema definition data for {topic}: {defect}")
        while True:
            found = await self._metadata.get(_path(topic))
            known = [] if found is None else msgspec.json.decode(found.value, type=list[StoredSchema])
            for version, old in enumerate(known):
                if old.matches(schema):
                    return version
            if policies.is_allow_auto_update_schema is False:
                raise IncompatibleSchemaError(f"{topic}: producers may not add schemas in this namespace")
            _refuse(topic, schema_compat.objection(known, schema, _strategy(policies)))
            value = msgspec.json.encode([*known, schema])
            try:
                if found is None:
                    await self._metadata.create(_path(topic), value)
                else:
                    await self._metadata.put(_path(topic), value, if_version=found.version)
            except (AlreadyExists, VersionConflict):
                continue
            return len(known)

    async def check_consumer(self, topic: TopicName, schema: StoredSchema, policies: Policies) -> bool:
        """Raises if a consumer with this schema cannot read the topic; False if the topic has none to compare."""
        known = await self.versions(topic)
        _refuse(topic, schema_compat.consumer_objection(known, schema, _strategy(policies)))
        return bool(known)

    async def get(self, topic: TopicName, version: bytes | None) -> tuple[int, StoredSchema]:
        """A version of the topic's schema, the latest for None."""
        known = await self.versions(topic)
        number = len(known) - 1 if not version else int.from_bytes(version, "big")
        if not 0 <= number < len(known):
            raise SchemaNotFoundError(f"{topic} has no schema" + (f" version {number}" if version else ""))
        return number, known[number]

    async def delete(self, topic: TopicName) -> None:
        await self._metadata.delete(_path(topic))


def with_schema_defaults(policies: Policies, config: BrokerConfig) -> Policies:
    """What neither topic nor namespace says of schemas, the broker's configuration does."""
    strategy = policies.schema_compatibility_strategy
    may_update = policies.is_allow_auto_update_schema
    return msgspec.structs.replace(
        policies,
        schema_compatibility_strategy=config.schema_compatibility_strategy
        if strategy == "UNDEFINED"
        else strategy,
        is_allow_auto_update_schema=config.is_allow_auto_update_schema_enabled
        if may_update is None
        else may_update,
        schema_validation_enforced=policies.schema_validation_enforced
        or config.is_schema_validation_enforced,
    )


def _strategy(policies: Policies) -> str:
    strategy = policies.schema_compatibility_strategy
    return schema_compat.DEFAULT_STRATEGY if strategy == "UNDEFINED" else strategy


def _refuse(topic: TopicName, objection: str | None) -> None:
    if objection is not None:
        raise IncompatibleSchemaError(f"{topic}: {objection}")


def _path(topic: TopicName) -> str:
    return f"/schemas/{topic.base.tenant}/{topic.base.namespace.namespace}/{topic.base.encoded_local}"
