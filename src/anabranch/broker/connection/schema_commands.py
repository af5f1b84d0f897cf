"""Performs a client's commands about schemas, and checks the schemas of producers and consumers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from anabranch.broker.catalog import schemas
from anabranch.broker.catalog.schemas import Schemas
from anabranch.broker.connection.ports import Attachable
from anabranch.broker.connection.session import ClientSession
from anabranch.broker.errors import IncompatibleSchemaError
from anabranch.broker.non_persistent.topic import NonPersistentTopic
from anabranch.broker.policy.effective import EffectivePolicies
from anabranch.broker.scalable.naming import TopicNaming
from anabranch.broker.security.rights import Rights
from anabranch.broker.topic.topic import Topic
from anabranch.errors import AnabranchError
from anabranch.model.names import Domain, TopicName
from anabranch.wire import pulsar_pb2 as pb

C = pb.BaseCommand


class SchemaCommands:
    def __init__(
        self,
        naming: TopicNaming,
        rights: Rights,
        stored: Schemas,
        policies: Callable[[TopicName], Awaitable[EffectivePolicies]],
        check_scalable: Callable[[TopicName], Awaitable[None]],
        attachable: Attachable,
        now_ms: Callable[[], int],
    ) -> None:
        """`policies` returns the policies in force for a topic; `check_scalable` raises unless there is a scalable
        topic of that name."""
        self._naming = naming
        self._rights = rights
        self._schemas = stored
        self._policies = policies
        self._check_scalable = check_scalable
        self._attachable = attachable
        self._now_ms = now_ms

    async def get(self, session: ClientSession, request: pb.CommandGetSchema) -> None:
        answer = C(type=C.GET_SCHEMA_RESPONSE)
        response = answer.getSchemaResponse
        response.request_id = request.request_id
        try:
            name = self._naming.described(request.topic)
            await self._rights.lookup(session.role, name)
            version, schema = await self._schemas.get(name, request.schema_version or None)
            response.schema.CopyFrom(schema.to_wire())
            response.schema_version = schemas.version_bytes(version)
        except AnabranchError as error:
            response.error_code = error.code or pb.UnknownError  # type: ignore[assignment]  # An int of ServerError.
            response.error_message = str(error)
        session.send(answer)

    async def get_or_create(self, session: ClientSession, request: pb.CommandGetOrCreateSchema) -> None:
        answer = C(type=C.GET_OR_CREATE_SCHEMA_RESPONSE)
        response = answer.getOrCreateSchemaResponse
        response.request_id = request.request_id
        try:
            name = self._naming.described(request.topic)
            await self._rights.produce(session.role, name)
            if name.domain is Domain.TOPIC:
                await self._check_scalable(name)
            else:
                await self._attachable(name, create=True)
            response.schema_version = await self.of_producer(name, request.schema)
        except AnabranchError as error:
            response.error_code = error.code or pb.UnknownError  # type: ignore[assignment]  # An int of ServerError.
            response.error_message = str(error)
        session.send(answer)

    async def of_producer(self, name: TopicName, schema: pb.Schema | None) -> bytes:
        """The version of a producer's schema, which may be new; empty without a schema."""
        policies = await self._policies(name)
        if schema is None:
            if policies.schema_validation_enforced and await self._schemas.versions(name):
                raise IncompatibleSchemaError(f"{name} has a schema, and producers here must name theirs")
            return b""
        number = await self._schemas.add(name, schemas.from_wire(schema, self._now_ms()), policies)
        return b"" if number is None else schemas.version_bytes(number)

    async def of_consumer(self, topic: Topic | NonPersistentTopic, schema: pb.Schema) -> None:
        """Checks that the consumer can read the topic's messages; on a topic that is not in use yet its schema is
        added."""
        if schema.type == pb.Schema.AutoConsume:
            return
        name = topic.name
        policies = await self._policies(name)
        stored = schemas.from_wire(schema, self._now_ms())
        if await self._schemas.check_consumer(name, stored, policies):
            return
        if _is_used_without_schema(topic):
            raise IncompatibleSchemaError(f"{name} is in use without a schema")
        await self._schemas.add(name, stored, policies)


def _is_used_without_schema(topic: Topic | NonPersistentTopic) -> bool:
    """For a topic that has no schema. Consumers that accept any schema do not count."""
    if topic.producers or (isinstance(topic, Topic) and topic.log.entries > 0):
        return True
    subscriptions = topic.subscriptions.values()
    return any(not consumer.takes_any_schema for one in subscriptions for consumer in one.consumers)
