"""Sessions of stream and checkpoint consumers over client connections (PIP-468, commands 73 to 75).

The controller holds a session by the consumer's name, whatever becomes of connections; here is its end at one of them.
It has an id from the same space as ordinary consumers, so that

- CLOSE_CONSUMER with it means "I leave": the segments go to others at once, not after the grace period;
- ACK with it reports, by their ids, sealed segments that a checkpoint consumer has read to their end.

A session follows its controller: to a new one at this broker by itself, to another broker by sending the client there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakValueDictionary

from anabranch.broker.errors import BrokerError, NotAllowedError
from anabranch.broker.scalable.departures import Departures
from anabranch.broker.scalable.lost_acks import LostAcks
from anabranch.broker.scalable.naming import disabled, watchable
from anabranch.broker.scalable.subscription_limits import check_new
from anabranch.controller.errors import TopicMissing
from anabranch.controller.feed import Part
from anabranch.controller.ports import Assignment, NotLeader
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName
from anabranch.model.scalable import SubscriptionKind, consumer_path, scalable_name
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.connection import NO_REQUEST

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.session import Session
    from anabranch.controller.service import ScalableTopics

log = logging.getLogger(__name__)

C = pb.BaseCommand
T = TypeVar("T")
Key = tuple[TopicName, str, str]
SESSIONS_MAX: Final = 20_000  # On one connection.

_KINDS: Final = {pb.STREAM: SubscriptionKind.STREAM, pb.CHECKPOINT: SubscriptionKind.CHECKPOINT}


class TooManyError(BrokerError):
    code = pb.TooManyRequests


@dataclass(eq=False)
class ConsumerSession:
    """A consumer registered over one connection, as the controller sees it: an `AssignmentLink`."""

    id: int
    topic: TopicName
    subscription: str
    name: str
    kind: SubscriptionKind
    send: Callable[[pb.BaseCommand], None]
    # Done once the controller has answered, whatever it said.
    registered: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    is_over: bool = False
    is_answered: bool = False
    # The controller has changed since it was last seen that this session is held.
    is_in_doubt: bool = False
    is_returning: bool = False
    stop_listening: Callable[[], None] = lambda: None
    # Called whenever the client has been sent an assignment.
    told: Callable[[], None] = lambda: None
    # The last assignment that the client was sent.
    assigned: Assignment | None = None
    _waiting: Assignment | None = None

    @property
    def key(self) -> Key:
        return self.topic, self.subscription, self.name

    def send_assignment(self, topic: TopicName, consumer_id: int, assignment: Assignment) -> None:
        if self.is_over:
            return
        if not self.is_answered:
            # A client takes the answer for the newest word, so nothing may overtake it.
            self._waiting = assignment
            return
        command = C(type=C.SCALABLE_TOPIC_ASSIGNMENT_UPDATE)
        command.scalableTopicAssignmentUpdate.consumer_id = self.id
        self._fill(command.scalableTopicAssignmentUpdate.assignment, assignment)
        self.send(command)
        self.told()

    def answer(self, request_id: int, assignment: Assignment) -> None:
        """The answer to the registration, and whatever has waited for it."""
        command = C(type=C.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE)
        command.scalableTopicSubscribeResponse.request_id = request_id
        self._fill(command.scalableTopicSubscribeResponse.assignment, assignment)
        self.send(command)
        self.is_answered = True
        self.told()
        if (waiting := self._waiting) is not None:
            self._waiting = None
            self.send_assignment(self.topic, self.id, waiting)

    def _fill(self, message: pb.ScalableConsumerAssignment, assignment: Assignment) -> None:
        self.assigned = assignment
        message.layout_epoch = assignment.epoch
        for segment in assignment.segments:
            message.segments.add(
                segment_id=segment.id,
                hash_start=segment.range.start,
                hash_end=segment.range.end,
                segment_topic=str(segment.topic(self.topic)),
            )

    def end(self) -> None:
        self.is_over = True
        self.stop_listening()


class ConsumerSessions:
    """All sessions over connections to one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.per_connection_max = SESSIONS_MAX
        self.departures = Departures(broker, self._has_left)
        self.lost_acks = LostAcks(broker)
        # Registrations under way, also of connections that are gone: each must end in a session or in none. And looks
        # after consumers that came back.
        self._registering: set[asyncio.Task[Any]] = set()
        # Who registered last under each name. An older one has lost its session and must not take it back.
        self._newest: WeakValueDictionary[Key, ConsumerSession] = WeakValueDictionary()

    @property
    def _topics(self) -> ScalableTopics:
        topics = self._broker.scalable
        if topics is None:
            raise disabled()
        return topics

    async def close(self) -> None:
        for task in self._registering:
            task.cancel()
        await asyncio.gather(*self._registering, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        # Held in `_registering`, cancelled by `close`.
        task = asyncio.get_running_loop().create_task(work)
        self._registering.add(task)
        task.add_done_callback(self._registered)
        return task

    def _registered(self, task: asyncio.Task[Any]) -> None:
        self._registering.discard(task)
        # The connection that asked may be gone: then nobody is left to be told why it failed.
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("a registration failed: %s", error)

    # -- joining

    def subscribe(self, session: Session, request: pb.CommandScalableTopicSubscribe) -> None:
        try:
            consumer = self._new_session(session, request)
        except AnabranchError as error:
            session.send(_refusal(request.request_id, error))
            return
        if not session.spawn(request.request_id, self._register(session, consumer, request.request_id)):
            # Who closes it would wait for a registration that nobody has begun.
            self._forget(session, consumer)

    def _new_session(self, session: Session, request: pb.CommandScalableTopicSubscribe) -> ConsumerSession:
        number, topics = request.consumer_id, self._topics
        consumer = ConsumerSession(
            number,
            scalable_name(watchable(request.topic)),
            request.subscription,
            request.consumer_name,
            _KINDS[request.consumer_type],
            session.send,
        )
        if not consumer.subscription or not consumer.name:
            raise NotAllowedError("a consumer registers with the names of its subscription and of itself")
        sessions = session.sessions
        former = sessions.get(number)
        if number in session.consumers or (
            former is not None and (former.key, former.kind) != (consumer.key, consumer.kind)
        ):
            raise NotAllowedError(f"consumer id {number} is in use on this connection")
        if former is None and len(sessions) >= self.per_connection_max:
            raise TooManyError(
                f"more than {self.per_connection_max} consumers are registered on this connection"
            )
        if former is not None:
            former.end()
        sessions[number] = consumer
        # Before it registers, so that no change of the controller falls between the two.
        stop = topics.feed.listen(
            consumer.topic, lambda part: self._controller_changed(session, consumer, part)
        )
        consumer.stop_listening = stop
        if not session.connection.peer_features.supports_scalable_topics:
            # A client that knows how to leave says so.
            consumer.told = self.departures.observe(session, consumer)

            def stop_all() -> None:
                stop()
                self.departures.end(consumer)

            consumer.stop_listening = stop_all
        return consumer

    async def _register(self, session: Session, consumer: ConsumerSession, request_id: int) -> None:
        try:
            await self._broker.rights.consume(session.role, consumer.topic, consumer.subscription)
            if consumer.kind is not SubscriptionKind.CHECKPOINT:
                await check_new(self._broker, consumer.topic, consumer.subscription, is_by_use=True)
            path = consumer_path(consumer.topic, consumer.subscription, consumer.name)
            is_back = await self._broker.metadata.get(path) is not None
            # It goes on when the connection is lost meanwhile: only then is it known what to undo.
            assignment = await asyncio.shield(self._spawn(self._registration(consumer)))
        except Exception as error:
            if isinstance(error, AnabranchError):
                log.info("registration of %s refused: %s", consumer.name, error)
            else:
                log.exception("registration of %s failed", consumer.name)
            session.send(_refusal(request_id, error))
            self._forget(session, consumer)
            return
        finally:
            if not consumer.registered.done():
                consumer.registered.set_result(None)
        consumer.answer(request_id, assignment)
        if consumer.is_in_doubt:
            self._make_sure(session, consumer)
        knows = session.connection.peer_features.supports_scalable_topics
        if is_back and consumer.kind is SubscriptionKind.STREAM and not knows:
            self._spawn(self.lost_acks.watch(consumer))

    async def _registration(self, consumer: ConsumerSession) -> Assignment:
        topics = self._topics
        self._newest[consumer.key] = consumer
        assignment = await topics.register(
            consumer.topic, consumer.subscription, consumer.name, consumer.kind, consumer.id, consumer
        )
        if consumer.is_over:
            topics.disconnected(consumer.topic, consumer.subscription, consumer.name, consumer)
        return assignment

    def _forget(self, session: Session, consumer: ConsumerSession) -> None:
        consumer.end()
        if session.sessions.get(consumer.id) is consumer:
            del session.sessions[consumer.id]

    # -- leaving, finishing

    def leave(self, session: Session, request: pb.CommandCloseConsumer) -> None:
        """Answered once its segments are free for others."""
        consumer = session.sessions[request.consumer_id]
        session.spawn(request.request_id, self._leave(session, consumer, request.request_id))

    async def _leave(self, session: Session, consumer: ConsumerSession, request_id: int) -> None:
        await consumer.registered
        if session.sessions.get(consumer.id) is consumer:
            try:
                with contextlib.suppress(TopicMissing):
                    await self._check_leads(consumer)
                    await self._topics.leave(consumer.topic, consumer.subscription, consumer.name, consumer)
            finally:
                # Also while nobody leads: it must not be brought to the next leader, who will find its session without
                # a connection, and end it after the grace period.
                self._forget(session, consumer)
        session.send_success(request_id)

    async def _check_leads(self, consumer: ConsumerSession) -> None:
        """NotLeader if the session is with another broker, or on its way to one; TopicMissing if it has ended so."""
        if self._is_held(consumer):
            return
        leader = await self._topics.leader(consumer.topic)
        if leader != self._broker.service_url:
            await self._topics.view(consumer.topic)
            raise NotLeader(consumer.topic, leader)

    def _has_left(self, session: Session, consumer: ConsumerSession) -> None:
        async def leave() -> None:
            try:
                await self._topics.leave(consumer.topic, consumer.subscription, consumer.name, consumer)
            except AnabranchError as error:
                log.info("the session of %s could not be ended: %s", consumer.name, error)

        self._forget(session, consumer)
        self._spawn(leave())

    def ack(self, session: Session, request: pb.CommandAck) -> None:
        """The consumer has read these sealed segments to their end."""
        consumer = session.sessions[request.consumer_id]
        session.spawn(request.request_id, self._finish(session, consumer, request))

    async def _finish(self, session: Session, consumer: ConsumerSession, request: pb.CommandAck) -> None:
        answer = C(type=C.ACK_RESPONSE)
        answer.ackResponse.consumer_id = request.consumer_id
        answer.ackResponse.request_id = request.request_id
        try:
            if consumer.kind is not SubscriptionKind.CHECKPOINT or request.ack_type != request.Individual:
                raise NotAllowedError("only a checkpoint consumer reports segments, one by one, as finished")
            await consumer.registered
            if session.sessions.get(consumer.id) is not consumer:
                raise NotAllowedError("this consumer is not registered: it was refused, or has left")
            numbers = [message.ledgerId for message in request.message_id]
            await self._topics.finished(consumer.topic, consumer.subscription, consumer.name, numbers)
        except AnabranchError as error:
            answer.ackResponse.error = error.code or pb.UnknownError  # type: ignore[assignment]  # Of ServerError.
            answer.ackResponse.message = str(error)
        if request.HasField("request_id"):
            session.send(answer)

    def connection_lost(self, session: Session) -> None:
        for consumer in list(session.sessions.values()):
            if self.departures.has_left(consumer):
                self._has_left(session, consumer)
                continue
            consumer.end()
            if self._broker.scalable is not None:
                self._broker.scalable.disconnected(
                    consumer.topic, consumer.subscription, consumer.name, consumer
                )
        session.sessions.clear()

    # -- a controller that moves

    def _controller_changed(self, session: Session, consumer: ConsumerSession, part: Part) -> None:
        if Part.CONTROLLER not in part:
            return
        # Whether this broker still holds the session is seen only after the leader is known: its own controller may not
        # have heard yet that it is none any more. So one that is still registering is looked at afterwards.
        consumer.is_in_doubt = True
        if consumer.is_answered:
            self._make_sure(session, consumer)

    def _make_sure(self, session: Session, consumer: ConsumerSession) -> None:
        """That whoever leads now holds the session."""
        if not consumer.is_returning:
            consumer.is_returning = True
            self._spawn(self._return(session, consumer))

    def _is_held(self, consumer: ConsumerSession) -> bool:
        """Whether the controller at this broker still knows the session."""
        controller = self._topics.controllers.get(consumer.topic)
        coordinator = None if controller is None else controller.coordinators.get(consumer.subscription)
        held = None if coordinator is None else coordinator.group.sessions.get(consumer.name)
        return held is not None and held.link is consumer

    async def _return(self, session: Session, consumer: ConsumerSession) -> None:
        """Brings the session to whoever leads now: here without a word to the client, elsewhere by sending it there."""
        try:
            while consumer.is_in_doubt and not consumer.is_over:
                consumer.is_in_doubt = False
                leader = await self._topics.leader(consumer.topic)
                if consumer.is_over or not leader or self._newest.get(consumer.key) is not consumer:
                    continue  # While there is no leader, the next one's election is heard.
                if leader != self._broker.service_url:
                    self._send_away(session, consumer)
                    return
                if self._is_held(consumer):
                    continue
                assignment = await self._registration(consumer)
                consumer.send_assignment(consumer.topic, consumer.id, assignment)
        except AnabranchError as error:
            log.info("consumer %s of %s has to register again: %s", consumer.name, consumer.topic, error)
            self._send_away(session, consumer)
        finally:
            consumer.is_returning = False

    def expel(self, session: Session, consumer: ConsumerSession) -> None:
        """It may not consume any more: its segments go to others at once."""
        self._has_left(session, consumer)
        self._send_away(session, consumer)

    def _send_away(self, session: Session, consumer: ConsumerSession) -> None:
        self._forget(session, consumer)
        command = C(type=C.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = consumer.id
        command.close_consumer.request_id = NO_REQUEST
        session.send(command)
        if not session.connection.peer_features.supports_scalable_topics:
            # Pulsar's Java client looks for the controller anew only when its connection is lost.
            session.close()


def _refusal(request_id: int, error: Exception) -> pb.BaseCommand:
    answer = C(type=C.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE)
    response = answer.scalableTopicSubscribeResponse
    response.request_id = request_id
    response.error = getattr(error, "code", None) or pb.UnknownError
    response.message = str(error) or type(error).__name__
    return answer
