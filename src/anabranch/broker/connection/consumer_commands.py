"""Performs a client's commands about its consumers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from anabranch.broker.catalog.properties import check_properties, is_within
from anabranch.broker.compaction.entries import last_slot
from anabranch.broker.connection.ports import Attachable
from anabranch.broker.connection.schema_commands import SchemaCommands
from anabranch.broker.connection.session import ClientSession
from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.errors import BrokerError, NotAllowedError, NotReadyError
from anabranch.broker.observe.subscription_stats import consumer_stats
from anabranch.broker.scalable.naming import TopicNaming
from anabranch.broker.scalable.sessions.consumer_sessions import ConsumerSessions
from anabranch.broker.security.rights import Rights
from anabranch.broker.subscription.acknowledging import check_ack_set
from anabranch.broker.subscription.subscription import Subscription
from anabranch.errors import MalformedFrame
from anabranch.model.names import check_given
from anabranch.wire import pulsar_pb2 as pb

C = pb.BaseCommand


class ConsumerNotFoundError(BrokerError):
    code = pb.ConsumerNotFound


class ConsumerCommands:
    def __init__(
        self,
        naming: TopicNaming,
        rights: Rights,
        schemas: SchemaCommands,
        registered: ConsumerSessions,
        attachable: Attachable,
        *,
        metadata_bytes_max: int,
    ) -> None:
        """`registered` are the consumers of scalable topics, which share the id space."""
        self._naming = naming
        self._rights = rights
        self._schemas = schemas
        self._registered = registered
        self._attachable = attachable
        self._metadata_bytes_max = metadata_bytes_max

    def subscribe(self, session: ClientSession, request: pb.CommandSubscribe) -> None:
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
        if not session.spawn(request.request_id, self._create(session, request)):
            _give_up(session, request)

    async def _create(self, session: ClientSession, request: pb.CommandSubscribe) -> None:
        try:
            name = self._naming.servable(request.topic)
            check_given("subscription", request.subscription)
            check_given("consumer", request.consumer_name)
            _check_metadata(request.metadata, self._metadata_bytes_max)
            check_properties((item.key, item.value) for item in request.subscription_properties)
            self._registered.departures.attaching(session, name, request)
            await self._rights.consume(session.role, name, request.subscription)
            topic = await self._attachable(name, create=request.force_topic_creation)
            if request.HasField("schema"):
                await self._schemas.of_consumer(topic, request.schema)
            consumer = await topic.subscribe(session, request)
            if session.consumers_asked.get(request.consumer_id) is not request:
                # The client closed the consumer, or disconnected, while it was being created.
                consumer.subscription.remove_consumer(consumer)
                return
            del session.consumers_asked[request.consumer_id]
            session.consumers[request.consumer_id] = consumer
            self._registered.departures.consumer_attached(consumer)
            session.send_success(request.request_id)
            for ack in session.early_acks.take(request.consumer_id):
                self.ack(session, ack)
            consumer.subscription.consumer_ready(consumer)
        except BaseException:
            _give_up(session, request)
            raise

    def _consumer(self, session: ClientSession, consumer_id: int) -> AttachedConsumer:
        consumer = session.consumers.get(consumer_id)
        if consumer is None:
            raise ConsumerNotFoundError(f"consumer {consumer_id} is not on this connection")
        return consumer

    def close(self, session: ClientSession, request: pb.CommandCloseConsumer) -> None:
        if request.consumer_id in session.sessions:
            self._registered.leave(session, request)
            return
        consumer = session.consumers.pop(request.consumer_id, None)
        session.consumers_asked.pop(request.consumer_id, None)
        if consumer is None:
            session.send_success(request.request_id)
            return
        consumer.subscription.remove_consumer(consumer)
        self._registered.departures.consumer_closed(consumer)
        # A client that is notified that its consumer is closed may rely on the consumer's acknowledgements.
        consumer.subscription.when_stored(lambda _: session.send_success(request.request_id))

    async def unsubscribe(self, session: ClientSession, request: pb.CommandUnsubscribe) -> None:
        consumer = self._consumer(session, request.consumer_id)
        await consumer.subscription.unsubscribe(consumer, force=request.force)
        # The id may belong to another consumer by now.
        if session.consumers.get(request.consumer_id) is consumer:
            del session.consumers[request.consumer_id]
        session.send_success(request.request_id)

    def flow(self, session: ClientSession, request: pb.CommandFlow) -> None:
        consumer = session.consumers.get(request.consumer_id)
        if consumer is not None:
            consumer.subscription.flow(consumer, request.messagePermits)

    def ack(self, session: ClientSession, request: pb.CommandAck) -> None:
        consumer = session.consumers.get(request.consumer_id)
        if consumer is not None:
            consumer.subscription.ack(consumer, request, lambda error: _answer_ack(session, request, error))
        elif request.consumer_id in session.consumers and session.early_acks.keep(request):
            pass  # It is performed once the consumer exists.
        elif request.consumer_id in session.sessions:
            self._registered.ack(session, request)
        elif request.HasField("request_id"):
            _answer_ack(session, request, ConsumerNotFoundError("this consumer is not on this connection"))

    def redeliver(self, session: ClientSession, request: pb.CommandRedeliverUnacknowledgedMessages) -> None:
        consumer = session.consumers.get(request.consumer_id)
        if consumer is not None:
            ids = ((m.ledgerId, m.entryId) for m in request.message_ids)
            epoch = request.consumer_epoch if request.HasField("consumer_epoch") else None
            consumer.subscription.redeliver(consumer, ids if request.message_ids else None, epoch)

    async def seek(self, session: ClientSession, request: pb.CommandSeek) -> None:
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

    def stats(self, session: ClientSession, request: pb.CommandConsumerStats) -> None:
        answer = C(type=C.CONSUMER_STATS_RESPONSE)
        response = answer.consumerStatsResponse
        response.request_id = request.request_id
        consumer = session.consumers.get(request.consumer_id)
        if consumer is None:
            response.error_code = pb.ConsumerNotFound
            response.error_message = f"consumer {request.consumer_id} is not on this connection"
        else:
            stats = consumer_stats(consumer)
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
            response.msgBacklog = consumer.subscription.backlog_messages()
            response.messageAckRate = stats.get("messageAckRate", 0.0)
        session.send(answer)

    async def last_message_id(self, session: ClientSession, request: pb.CommandGetLastMessageId) -> None:
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
        # Both are read at the same moment: a client that sees neither new nor hidden entries stops asking.
        last = topic.last
        if topic.is_hiding:
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
            # A batch that cannot be parsed counts as one message for its reader, too.
            with contextlib.suppress(MalformedFrame):
                position.batch_index = last_slot(entries[0][2])
        marked = response.consumer_mark_delete_position
        before = consumer.subscription.mark_delete
        marked.ledgerId, marked.entryId = _unsigned(before[0]), _unsigned(before[1])
        session.send(answer)


def _give_up(session: ClientSession, request: pb.CommandSubscribe) -> None:
    """Frees the id as for a producer, and drops the acknowledgements that were kept for the consumer."""
    if session.consumers_asked.get(request.consumer_id) is request:
        del session.consumers_asked[request.consumer_id]
        session.consumers.pop(request.consumer_id, None)
        session.early_acks.take(request.consumer_id)


def _check_metadata(metadata: Iterable[pb.KeyValue], size_max: int) -> None:
    if not is_within(((item.key, item.value) for item in metadata), size_max):
        raise NotAllowedError(f"metadata has a max size of {size_max} bytes (maxConsumerMetadataSize)")


def _answer_ack(session: ClientSession, request: pb.CommandAck, error: Exception | None) -> None:
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
