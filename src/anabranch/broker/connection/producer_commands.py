"""Performs a client's commands about its producers; publishing itself is in the session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from anabranch.broker.catalog.properties import check_properties
from anabranch.broker.connection.ports import Attachable
from anabranch.broker.connection.schema_commands import SchemaCommands
from anabranch.broker.connection.session import ClientSession
from anabranch.broker.errors import NotReadyError
from anabranch.broker.scalable.naming import TopicNaming
from anabranch.broker.security.rights import Rights
from anabranch.broker.topic.producer import AttachedProducer, Publishable
from anabranch.broker.topic.topic import Topic
from anabranch.model.names import check_given
from anabranch.storage.port import LogStore
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.extensions import ASK_SEQUENCE_ID

C = pb.BaseCommand


class ProducerCommands:
    def __init__(
        self,
        naming: TopicNaming,
        rights: Rights,
        schemas: SchemaCommands,
        log: LogStore,
        attachable: Attachable,
        new_name: Callable[[], Awaitable[str]],
        now_ms: Callable[[], int],
    ) -> None:
        """`new_name` returns a name that no producer of the cluster has ever had."""
        self._naming = naming
        self._rights = rights
        self._schemas = schemas
        self._log = log
        self._attachable = attachable
        self._new_name = new_name
        self._now_ms = now_ms

    def create(self, session: ClientSession, request: pb.CommandProducer) -> None:
        existing = session.producers.get(request.producer_id)
        if existing is None and request.producer_id in session.producers:
            session.send_error(request.request_id, NotReadyError("this producer is still being created"))
            return
        if existing is not None and not existing.is_closed and existing.epoch == request.epoch:
            assert existing.topic is not None
            existing.topic.attached.answer_again(existing, request.request_id)
            return
        session.producers[request.producer_id] = None
        session.producers_asked[request.producer_id] = request
        if not session.spawn(request.request_id, self._create(session, request)):
            _give_up(session, request)

    async def _create(self, session: ClientSession, request: pb.CommandProducer) -> None:
        try:
            name = self._naming.servable(request.topic)
            check_given("producer", request.producer_name)
            check_given("subscription", request.initial_subscription_name)
            check_properties((item.key, item.value) for item in request.metadata)
            await self._rights.produce(session.role, name)
            if request.initial_subscription_name:
                await self._rights.consume(session.role, name, request.initial_subscription_name)
            topic = await self._attachable(name, create=True)
            if any(item.key == ASK_SEQUENCE_ID for item in request.metadata):
                await self._tell_sequence_id(session, request, topic)
                return
            await self._naming.check_published(name)
            if not self._log.is_accepting:
                raise NotReadyError(
                    f"the disk is full: {self._log.told_space()}; publishing resumes by itself once there is room"
                )
            version = await self._schemas.of_producer(
                name, request.schema if request.HasField("schema") else None
            )
            if request.initial_subscription_name and isinstance(topic, Topic):
                await topic.create_initial_subscription(request.initial_subscription_name)
            producer = AttachedProducer(
                id=request.producer_id,
                name=request.producer_name or await self._new_name(),
                link=session,
                epoch=request.epoch,
                is_name_given=request.user_provided_producer_name and bool(request.producer_name),
                access_mode=request.producer_access_mode,
                claimed_epoch=request.topic_epoch if request.HasField("topic_epoch") else None,
                schema_version=version,
                metadata={item.key: item.value for item in request.metadata},
                created_ms=self._now_ms(),
                is_encrypted=request.encrypted,
                role=session.role,
                asked=request,
            )
            await topic.add_producer(producer, request.request_id)
        except BaseException:
            _give_up(session, request)
            raise

    async def _tell_sequence_id(
        self, session: ClientSession, request: pb.CommandProducer, topic: Publishable
    ) -> None:
        """Answers with the last sequence ids stored for that producer name, in a sealed segment too; attaches no
        producer."""
        ids = await topic.settled_ids(request.producer_name)
        _give_up(session, request)
        answer = C(type=C.PRODUCER_SUCCESS)
        success = answer.producer_success
        success.request_id = request.request_id
        success.producer_name = request.producer_name
        ids.fill(success)
        session.send(answer)

    def close(self, session: ClientSession, request: pb.CommandCloseProducer) -> None:
        producer = session.producers.pop(request.producer_id, None)
        session.producers_asked.pop(request.producer_id, None)
        if producer is None:
            session.send_success(request.request_id)
            return
        assert producer.topic is not None
        producer.topic.close_producer(producer, lambda: session.send_success(request.request_id))


def _give_up(session: ClientSession, request: pb.CommandProducer) -> None:
    """Frees the id, unless the client has closed the producer or has since asked for another one with that id."""
    if session.producers_asked.get(request.producer_id) is request:
        del session.producers_asked[request.producer_id]
        session.producers.pop(request.producer_id, None)
