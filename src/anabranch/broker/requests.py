"""What each command of a client means: one method per command, chosen from a table.

Quick commands run at once on the reading path; those that wait (for metadata, a topic, the disk) become tasks of their
session. A command this broker does not support gets an error answer that says so, never silence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from anabranch.broker import schemas
from anabranch.broker.compaction.entries import last_slot
from anabranch.broker.consumer import Consumer
from anabranch.broker.errors import BrokerError, IncompatibleSchemaError, NotAllowedError, NotReadyError
from anabranch.broker.ports import Publishable
from anabranch.broker.producer import Producer
from anabranch.broker.properties import check_properties, is_within
from anabranch.broker.scalable import naming
from anabranch.broker.scalable.commands import ScalableCommands
from anabranch.broker.session import Session
from anabranch.broker.subscription import Subscription, check_ack_set
from anabranch.broker.topic import Topic
from anabranch.broker.topic_lists import TopicLists
from anabranch.broker.unsupported import refuse_unsupported
from anabranch.errors import AnabranchError, MalformedFrame
from anabranch.model.names import Domain, TopicName, check_given
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.extensions import ASK_SEQUENCE_ID

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.non_persistent.topic import NonPersistentTopic

C = pb.BaseCommand
Handler = Callable[[Session, Any], None]


class Requests:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.scalable = ScalableCommands(broker)
        self.topic_lists = TopicLists(broker)
        self._handlers: dict[int, tuple[str, Handler]] = {
            C.CONNECT: ("connect", self._connect),
            C.AUTH_RESPONSE: ("authResponse", self._broker.sign_in.answer),
            C.PARTITIONED_METADATA: ("partitionMetadata", self._waits(self._partitions)),
            C.LOOKUP: ("lookupTopic", self._waits(self._lookup)),
            C.PRODUCER: ("producer", self._producer),
            C.CLOSE_PRODUCER: ("close_producer", self._close_producer),
            C.SUBSCRIBE: ("subscribe", self._subscribe),
            C.CLOSE_CONSUMER: ("close_consumer", self._close_consumer),
            C.UNSUBSCRIBE: ("unsubscribe", self._waits(self._unsubscribe)),
            C.FLOW: ("flow", self._flow),
            C.ACK: ("ack", self._ack),
            C.REDELIVER_UNACKNOWLEDGED_MESSAGES: ("redeliverUnacknowledgedMessages", self._redeliver),
            C.SEEK: ("seek", self._waits(self._seek)),
            C.CONSUMER_STATS: ("consumerStats", self._consumer_stats),
            C.GET_LAST_MESSAGE_ID: ("getLastMessageId", self._waits(self._last_message_id)),
            C.GET_TOPICS_OF_NAMESPACE: ("getTopicsOfNamespace", self._waits(self.topic_lists.list)),
            C.WATCH_TOPIC_LIST: ("watchTopicList", self._waits(self.topic_lists.watch)),
            C.WATCH_TOPIC_LIST_CLOSE: ("watchTopicListClose", self.topic_lists.close),
            C.GET_SCHEMA: ("getSchema", self._waits(self._get_schema)),
            C.GET_OR_CREATE_SCHEMA: ("getOrCreateSchema", self._waits(self._get_or_create_schema)),
            **self.scalable.handlers,
        }

    def perform(self, session: Session, kind: int, command: pb.BaseCommand) -> None:
        """Raises PeerError if the command breaks the protocol."""
        found = self._handlers.get(kind)
        if found is None:
            refuse_unsupported(session, kind, command)
            return
        field, handler = found
        handler(session, getattr(command, field))

    def _waits(self, work: Callable[[Session, Any], Any]) -> Handler:
        def start(session: Session, request: Any) -> None:
            session.spawn(request.request_id, work(session, request))

        return start

    # -- connection

    def _connect(self, session: Session, connect: pb.CommandConnect) -> None:
        self._broker.sign_in.connect(session, connect, lambda: self._accept(session))

    def _accept(self, session: Session) -> None:
        features = pb.FeatureFlags(
            supports_partial_producer=True,
            supports_topic_watchers=True,
            supports_topic_watcher_reconcile=True,
            supports_get_partitioned_metadata_without_auto_creation=True,
            supports_scalable_topics=self._broker.config.scalable_topic_enabled or None,
            # So that V5 clients ask, and are told at once that there are no transactions; they try again and again
            # otherwise.
            supports_tc_metadata_discovery=True,
        )
        accepted = session.connection.accept(
            self._broker.server_version, features, http_url=self._broker.http_url_for(session.has_tls)
        )
        session.write((accepted,))

    # -- finding topics

    async def _partitions(self, session: Session, request: pb.CommandPartitionedTopicMetadata) -> None:
        answer = C(type=C.PARTITIONED_METADATA_RESPONSE)
        response = answer.partitionMetadataResponse
        response.request_id = request.request_id
        try:
            await self._broker.rights.lookup(session.role, TopicName.parse(request.topic))
            response.partitions = await naming.partitions(
                self._broker, request.topic, create=request.metadata_auto_creation_enabled
            )
            response.response = pb.CommandPartitionedTopicMetadataResponse.Success
        except AnabranchError as error:
            response.response = pb.CommandPartitionedTopicMetadataResponse.Failed
            response.error = error.code or pb.UnknownError  # type: ignore[assignment]  # An int of ServerError.
            response.message = str(error)
        session.send(answer)

    async def _lookup(self, session: Session, request: pb.CommandLookupTopic) -> None:
        answer = C(type=C.LOOKUP_RESPONSE)
        response = answer.lookupTopicResponse
        response.request_id = request.request_id
        try:
            told = self._broker.addresses(request.advertised_listener_name)
            await self._broker.rights.lookup(session.role, TopicName.parse(request.topic))
            elsewhere = await naming.owner(self._broker, request.topic)
            naming.fill_lookup(response, told, elsewhere)
        except AnabranchError as error:
            response.response = pb.CommandLookupTopicResponse.Failed
            response.error = error.code or pb.UnknownError  # type: ignore[assignment]  # An int of ServerError.
            response.message = str(error)
        session.send(answer)

    # -- producers

    def _producer(self, session: Session, request: pb.CommandProducer) -> None:
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
        if not session.spawn(request.request_id, self._create_producer(session, request)):
            _give_up_producer(session, request)

    async def _create_producer(self, session: Session, request: pb.CommandProducer) -> None:
        broker = self._broker
        try:
            name = naming.servable(broker, request.topic)
            check_given("producer", request.producer_name)
            check_given("subscription", request.initial_subscription_name)
            check_properties((item.key, item.value) for item in request.metadata)
            await broker.rights.produce(session.role, name)
            if request.initial_subscription_name:
                await broker.rights.consume(session.role, name, request.initial_subscription_name)
            topic = await broker.attachable(name, create=True)
            if any(item.key == ASK_SEQUENCE_ID for item in request.metadata):
                await self._tell_sequence_id(session, request, topic)
                return
            await naming.check_published(broker, name)
            if not broker.log.is_accepting:
                raise NotReadyError(
                    f"the disk is full: {broker.log.told_space()}; publishing resumes by itself once there is room"
                )
            version = await self._producer_schema(
                name, request.schema if request.HasField("schema") else None
            )
            if request.initial_subscription_name and isinstance(topic, Topic):
                await topic.create_initial_subscription(request.initial_subscription_name)
            producer = Producer(
                id=request.producer_id,
                name=request.producer_name or await broker.new_producer_name(),
                link=session,
                epoch=request.epoch,
                is_name_given=request.user_provided_producer_name and bool(request.producer_name),
                access_mode=request.producer_access_mode,
                claimed_epoch=request.topic_epoch if request.HasField("topic_epoch") else None,
                schema_version=version,
                metadata={item.key: item.value for item in request.metadata},
                created_ms=broker.now_ms(),
                is_encrypted=request.encrypted,
                role=session.role,
                asked=request,
            )
            await topic.add_producer(producer, request.request_id)
        except BaseException:
            _give_up_producer(session, request)
            raise

    async def _tell_sequence_id(
        self, session: Session, request: pb.CommandProducer, topic: Publishable
    ) -> None:
        """What is stored of a producer with that name, also in a sealed segment; nobody is attached."""
        last = await topic.settled_sequence_id(request.producer_name)
        _give_up_producer(session, request)
        answer = C(type=C.PRODUCER_SUCCESS)
        success = answer.producer_success
        success.request_id = request.request_id
        success.producer_name = request.producer_name
        success.last_sequence_id = last
        session.send(answer)

    def _close_producer(self, session: Session, request: pb.CommandCloseProducer) -> None:
        producer = session.producers.pop(request.producer_id, None)
        session.producers_asked.pop(request.producer_id, None)
        if producer is None:
            session.send_success(request.request_id)
            return
        assert producer.topic is not None
        producer.topic.close_producer(producer, lambda: session.send_success(request.request_id))

    # -- consumers

    def _subscribe(self, session: Session, request: pb.CommandSubscribe) -> None:
        existing = session.consumers.get(request.consumer_id)
        if existing is not None:
            session.send_success(request.request_id)
            return
        if request.consumer_id in session.sessions:
            taken = NotAllowedError(f"consumer id {request.consumer_id} is in use on this connection")
            session.send_error(request.request_id, taken)
            return
        if request.consumer_id in session.consumers:
            session.send_error(request.request_id, NotReadyError("this consumer is still being created"))
            return
        session.consumers[request.consumer_id] = None
        session.consumers_asked[request.consumer_id] = request
        session.early_acks.take(request.consumer_id)
        if not session.spawn(request.request_id, self._create_consumer(session, request)):
            _give_up_consumer(session, request)

    async def _create_consumer(self, session: Session, request: pb.CommandSubscribe) -> None:
        broker = self._broker
        try:
            name = naming.servable(broker, request.topic)
            check_given("subscription", request.subscription)
            check_given("consumer", request.consumer_name)
            _check_metadata(request.metadata, broker.config.max_consumer_metadata_size)
            check_properties((item.key, item.value) for item in request.subscription_properties)
            self.scalable.sessions.departures.attaching(session, name, request.consumer_name)
            await broker.rights.consume(session.role, name, request.subscription)
            topic = await broker.attachable(name, create=request.force_topic_creation)
            if request.HasField("schema"):
                await self._consumer_schema(topic, request.schema)
            consumer = await topic.subscribe(session, request)
            if session.consumers_asked.get(request.consumer_id) is not request:
                # The client closed it, or went away, while it was being made.
                consumer.subscription.remove_consumer(consumer)
                return
            del session.consumers_asked[request.consumer_id]
            session.consumers[request.consumer_id] = consumer
            self.scalable.sessions.departures.consumer_attached(consumer)
            session.send_success(request.request_id)
            for ack in session.early_acks.take(request.consumer_id):
                self._ack(session, ack)
            consumer.subscription.consumer_ready(consumer)
        except BaseException:
            _give_up_consumer(session, request)
            raise

    def _consumer(self, session: Session, consumer_id: int) -> Consumer:
        consumer = session.consumers.get(consumer_id)
        if consumer is None:
            raise ConsumerNotFoundError(f"consumer {consumer_id} is not on this connection")
        return consumer

    def _close_consumer(self, session: Session, request: pb.CommandCloseConsumer) -> None:
        if request.consumer_id in session.sessions:
            self.scalable.sessions.leave(session, request)
            return
        consumer = session.consumers.pop(request.consumer_id, None)
        session.consumers_asked.pop(request.consumer_id, None)
        if consumer is None:
            session.send_success(request.request_id)
            return
        consumer.subscription.remove_consumer(consumer)
        self.scalable.sessions.departures.consumer_closed(consumer)
        # Whoever is told that its consumer is closed may rely on what it acknowledged.
        consumer.subscription.when_stored(lambda _: session.send_success(request.request_id))

    async def _unsubscribe(self, session: Session, request: pb.CommandUnsubscribe) -> None:
        consumer = self._consumer(session, request.consumer_id)
        await consumer.subscription.unsubscribe(consumer, force=request.force)
        # Its id may be another consumer's by now.
        if session.consumers.get(request.consumer_id) is consumer:
            del session.consumers[request.consumer_id]
        session.send_success(request.request_id)

    def _flow(self, session: Session, request: pb.CommandFlow) -> None:
        consumer = session.consumers.get(request.consumer_id)
        if consumer is not None:
            consumer.subscription.flow(consumer, request.messagePermits)

    def _ack(self, session: Session, request: pb.CommandAck) -> None:
        consumer = session.consumers.get(request.consumer_id)
        if consumer is not None:
            consumer.subscription.ack(consumer, request, lambda error: _answer_ack(session, request, error))
        elif request.consumer_id in session.consumers and session.early_acks.keep(request):
            pass  # It is acted upon once the consumer is there.
        elif request.consumer_id in session.sessions:
            self.scalable.sessions.ack(session, request)
        elif request.HasField("request_id"):
            _answer_ack(session, request, ConsumerNotFoundError("this consumer is not on this connection"))

    def _redeliver(self, session: Session, request: pb.CommandRedeliverUnacknowledgedMessages) -> None:
        consumer = session.consumers.get(request.consumer_id)
        if consumer is not None:
            ids = ((m.ledgerId, m.entryId) for m in request.message_ids)
            epoch = request.consumer_epoch if request.HasField("consumer_epoch") else None
            consumer.subscription.redeliver(consumer, ids if request.message_ids else None, epoch)

    async def _seek(self, session: Session, request: pb.CommandSeek) -> None:
        consumer = self._consumer(session, request.consumer_id)
        subscription = consumer.subscription
        if request.HasField("message_id"):
            at = request.message_id
            check_ack_set(at)
            ack_set = list(at.ack_set)
            await subscription.seek((_signed(at.ledgerId), _signed(at.entryId)), ack_set)
        elif request.HasField("message_publish_time"):
            await subscription.seek_to_time(request.message_publish_time)
        else:
            raise NotAllowedError("SEEK names neither a message id nor a publish time")
        session.send_success(request.request_id)

    def _consumer_stats(self, session: Session, request: pb.CommandConsumerStats) -> None:
        answer = C(type=C.CONSUMER_STATS_RESPONSE)
        response = answer.consumerStatsResponse
        response.request_id = request.request_id
        consumer = session.consumers.get(request.consumer_id)
        if consumer is None:
            response.error_code = pb.ConsumerNotFound
            response.error_message = f"consumer {request.consumer_id} is not on this connection"
        else:
            stats = consumer.stats()
            response.msgRateOut = stats["msgRateOut"]
            response.msgThroughputOut = stats["msgThroughputOut"]
            response.msgRateRedeliver = stats["msgRateRedeliver"]
            response.consumerName = consumer.name
            response.availablePermits = max(0, consumer.permits)
            response.unackedMessages = consumer.unacked
            response.blockedConsumerOnUnackedMsgs = stats["blockedConsumerOnUnackedMsgs"]
            response.address = session.address
            response.connectedSince = str(stats.get("connectedSince", ""))
            response.type = stats.get("subscriptionType", consumer.subscription.type_name)
            response.msgBacklog = consumer.subscription.backlog()
            response.messageAckRate = stats.get("messageAckRate", 0.0)
        session.send(answer)

    async def _last_message_id(self, session: Session, request: pb.CommandGetLastMessageId) -> None:
        consumer = self._consumer(session, request.consumer_id)
        topic = consumer.subscription.topic_log
        answer = C(type=C.GET_LAST_MESSAGE_ID_RESPONSE)
        response = answer.getLastMessageIdResponse
        if request.HasField("anabranch_wait_ms"):
            moved = await session.followed.moved(request.anabranch_wait_ms)
            response.anabranch_moved.extend(moved.ends)
            response.anabranch_has_more_moved = moved.has_more
            response.anabranch_is_followed = True
        elif request.anabranch_follow and isinstance(consumer.subscription, Subscription):
            response.anabranch_is_followed = consumer.subscription.follow_end(consumer, session.followed)
        last = topic.last
        if topic.is_hiding:  # At the same moment: who is told neither of them will ask no more.
            response.anabranch_is_hiding = True
        response.request_id = request.request_id
        position = response.last_message_id
        position.ledgerId, position.entryId = _unsigned(last[0]), _unsigned(last[1])
        position.partition = consumer.partition
        position.batch_index = -1
        response.anabranch_bytes = topic.size_bytes
        response.anabranch_entries = topic.count(topic.first, topic.end)
        if last[1] >= 0 and not response.anabranch_is_followed:
            _, entries = await topic.read(last, 1, 1)
            # What nobody can parse is one message to its reader, too.
            with contextlib.suppress(MalformedFrame):
                position.batch_index = last_slot(entries[0][2])
        marked = response.consumer_mark_delete_position
        before = consumer.subscription.mark_delete
        marked.ledgerId, marked.entryId = _unsigned(before[0]), _unsigned(before[1])
        session.send(answer)

    # -- schemas

    async def _producer_schema(self, name: TopicName, schema: pb.Schema | None) -> bytes:
        """The version a producer's schema has, which may be new; empty for none."""
        broker = self._broker
        policies = await broker.policies(name)
        if schema is None:
            if policies.schema_validation_enforced and await broker.schemas.versions(name):
                raise IncompatibleSchemaError(f"{name} has a schema, and producers here must name theirs")
            return b""
        number = await broker.schemas.add(name, schemas.from_wire(schema, broker.now_ms()), policies)
        return b"" if number is None else schemas.version_bytes(number)

    async def _consumer_schema(self, topic: Topic | NonPersistentTopic, schema: pb.Schema) -> None:
        """A consumer must be able to read what is there; on a topic that nobody uses yet it brings the schema."""
        if schema.type == pb.Schema.AutoConsume:
            return
        broker, name = self._broker, topic.name
        policies = await broker.policies(name)
        stored = schemas.from_wire(schema, broker.now_ms())
        if await broker.schemas.check_consumer(name, stored, policies):
            return
        if _is_used_without_schema(topic):
            raise IncompatibleSchemaError(f"{name} is in use without a schema")
        await broker.schemas.add(name, stored, policies)

    async def _get_schema(self, session: Session, request: pb.CommandGetSchema) -> None:
        answer = C(type=C.GET_SCHEMA_RESPONSE)
        response = answer.getSchemaResponse
        response.request_id = request.request_id
        try:
            name = naming.described(self._broker, request.topic)
            await self._broker.rights.lookup(session.role, name)
            version, schema = await self._broker.schemas.get(name, request.schema_version or None)
            response.schema.CopyFrom(schema.to_wire())
            response.schema_version = schemas.version_bytes(version)
        except AnabranchError as error:
            response.error_code = error.code or pb.UnknownError  # type: ignore[assignment]  # An int of ServerError.
            response.error_message = str(error)
        session.send(answer)

    async def _get_or_create_schema(self, session: Session, request: pb.CommandGetOrCreateSchema) -> None:
        answer = C(type=C.GET_OR_CREATE_SCHEMA_RESPONSE)
        response = answer.getOrCreateSchemaResponse
        response.request_id = request.request_id
        try:
            name = naming.described(self._broker, request.topic)
            await self._broker.rights.produce(session.role, name)
            if name.domain is Domain.TOPIC:
                await self._broker.check_scalable(name)
            else:
                await self._broker.attachable(name, create=True)
            response.schema_version = await self._producer_schema(name, request.schema)
        except AnabranchError as error:
            response.error_code = error.code or pb.UnknownError  # type: ignore[assignment]  # An int of ServerError.
            response.error_message = str(error)
        session.send(answer)


class ConsumerNotFoundError(BrokerError):
    code = pb.ConsumerNotFound


def _give_up_producer(session: Session, request: pb.CommandProducer) -> None:
    """Frees the id, unless the client has closed the producer, or has asked for another one with that id since."""
    if session.producers_asked.get(request.producer_id) is request:
        del session.producers_asked[request.producer_id]
        session.producers.pop(request.producer_id, None)


def _give_up_consumer(session: Session, request: pb.CommandSubscribe) -> None:
    """As for a producer, with what the client has acknowledged by it already."""
    if session.consumers_asked.get(request.consumer_id) is request:
        del session.consumers_asked[request.consumer_id]
        session.consumers.pop(request.consumer_id, None)
        session.early_acks.take(request.consumer_id)


def _is_used_without_schema(topic: Topic | NonPersistentTopic) -> bool:
    """Of a topic that has no schema. Consumers that take whatever schema there is are in nobody's way."""
    if topic.producers or (isinstance(topic, Topic) and topic.log.entries > 0):
        return True
    subscriptions = topic.subscriptions.values()
    return any(not consumer.takes_any_schema for one in subscriptions for consumer in one.consumers)


def _check_metadata(metadata: Iterable[pb.KeyValue], size_max: int) -> None:
    if not is_within(((item.key, item.value) for item in metadata), size_max):
        raise NotAllowedError(f"metadata has a max size of {size_max} bytes (maxConsumerMetadataSize)")


def _answer_ack(session: Session, request: pb.CommandAck, error: Exception | None) -> None:
    if not request.HasField("request_id"):
        return
    answer = C(type=C.ACK_RESPONSE)
    answer.ackResponse.consumer_id = request.consumer_id
    answer.ackResponse.request_id = request.request_id
    if error is not None:
        answer.ackResponse.error = getattr(error, "code", None) or pb.UnknownError
        answer.ackResponse.message = str(error)
    session.send(answer)


def _signed(value: int) -> int:
    """Ids are unsigned on the wire; clients write -1 (earliest) and the largest long (latest) into them."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _unsigned(value: int) -> int:
    return value & 0xFFFFFFFFFFFFFFFF
