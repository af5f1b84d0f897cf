"""What a client's commands about scalable topics mean (PIP-468, commands 70 to 75), one method for each.

A connection may hold watches on layouts and sessions of stream and checkpoint consumers. Both live in a small object
attached to the connection and end with it: watches for good, sessions with their grace period, which the controller
counts. The session of a consumer has an id from the same space as ordinary consumers, so that

- CLOSE_CONSUMER with it means "I leave": the segments go to others at once, not after the grace period;
- ACK with it reports, by their ids, sealed segments that a checkpoint consumer has read to their end.

With scalable topics switched off each command gets a clear error in the shape its client waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from anabranch.broker.errors import BrokerError, NotAllowedError
from anabranch.broker.scalable.creation import make_missing
from anabranch.broker.scalable.dag_watch import DagWatch, error_update
from anabranch.broker.scalable.naming import disabled
from anabranch.controller.ports import Assignment
from anabranch.errors import AnabranchError
from anabranch.model.names import Domain, TopicName
from anabranch.model.scalable import SubscriptionKind, scalable_name
from anabranch.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.session import Session
    from anabranch.controller.service import ScalableTopics

log = logging.getLogger(__name__)

C = pb.BaseCommand
# On one connection. A client that follows a whole namespace has one watch for each of its topics.
WATCHES_MAX: Final = 20_000
SESSIONS_MAX: Final = 20_000

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
    _is_answered: bool = False
    _waiting: Assignment | None = None

    @property
    def key(self) -> tuple[TopicName, str, str, SubscriptionKind]:
        return self.topic, self.subscription, self.name, self.kind

    def send_assignment(self, topic: TopicName, consumer_id: int, assignment: Assignment) -> None:
        if self.is_over:
            return
        if not self._is_answered:
            # A client takes the answer for the newest word, so nothing may overtake it.
            self._waiting = assignment
            return
        command = C(type=C.SCALABLE_TOPIC_ASSIGNMENT_UPDATE)
        command.scalableTopicAssignmentUpdate.consumer_id = self.id
        fill_assignment(command.scalableTopicAssignmentUpdate.assignment, self.topic, assignment)
        self.send(command)

    def answered(self) -> None:
        self._is_answered = True
        if (waiting := self._waiting) is not None:
            self._waiting = None
            self.send_assignment(self.topic, self.id, waiting)


@dataclass
class Attached:
    """What one connection holds."""

    watches: dict[int, DagWatch] = field(default_factory=dict)
    sessions: dict[int, ConsumerSession] = field(default_factory=dict)


class ScalableCommands:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.watches_max = WATCHES_MAX
        self.sessions_max = SESSIONS_MAX
        # Registrations under way, also of connections that are gone: each must end in a session or in none.
        self._registering: set[asyncio.Task[Assignment]] = set()

    @property
    def handlers(self) -> Mapping[int, tuple[str, Callable[[Session, Any], None]]]:
        return {
            C.SCALABLE_TOPIC_LOOKUP: ("scalableTopicLookup", self._lookup),
            C.SCALABLE_TOPIC_CLOSE: ("scalableTopicClose", self._close_watch),
            C.SCALABLE_TOPIC_SUBSCRIBE: ("scalableTopicSubscribe", self._subscribe),
            C.WATCH_SCALABLE_TOPICS: ("watchScalableTopics", self._watch_namespace),
            C.WATCH_SCALABLE_TOPICS_CLOSE: ("watchScalableTopicsClose", lambda session, request: None),
        }

    @property
    def _topics(self) -> ScalableTopics:
        topics = self._broker.scalable
        if topics is None:
            raise disabled()
        return topics

    # -- layouts

    def _lookup(self, session: Session, request: pb.CommandScalableTopicLookup) -> None:
        number = request.session_id
        try:
            topics = self._topics
            topic = _topic_name(request.topic)
            watches = attached(session).watches
            if number not in watches and len(watches) >= self.watches_max:
                raise TooManyError(f"more than {self.watches_max} topics are watched on this connection")
        except AnabranchError as error:
            session.send(error_update(number, error))
            return
        if (former := watches.get(number)) is not None:
            former.close()

        def ended(watch: DagWatch) -> None:
            if watches.get(number) is watch:
                del watches[number]

        async def make() -> None:
            await make_missing(self._broker, topics, topic)

        watch = DagWatch(
            number,
            topic,
            topics,
            self._broker.owners,
            self._broker.registry,
            session.send,
            ended,
            admit=lambda: self._broker.rights.lookup(session.role, topic),
            make=make if request.create_if_missing else None,
        )
        watches[number] = watch
        watch.start()

    def _close_watch(self, session: Session, request: pb.CommandScalableTopicClose) -> None:
        watch = attached(session).watches.pop(request.session_id, None)
        if watch is not None:
            watch.close()

    def owners_changed(self) -> None:
        """Some topics have another owner: every watch looks again, and pushes if it sees a difference."""
        for session in self._broker.sessions:
            if session.scalable is not None:
                for watch in session.scalable.watches.values():
                    watch.refresh()

    def _watch_namespace(self, session: Session, request: pb.CommandWatchScalableTopics) -> None:
        answer = C(type=C.WATCH_SCALABLE_TOPICS_UPDATE)
        update = answer.watchScalableTopicsUpdate
        update.watch_id = request.watch_id
        update.error = pb.NotAllowedError
        if self._broker.scalable is None:
            update.message = str(disabled())
        else:
            update.message = "this broker does not watch namespaces for scalable topics; name the topics"
        session.send(answer)

    # -- sessions of consumers

    def _subscribe(self, session: Session, request: pb.CommandScalableTopicSubscribe) -> None:
        try:
            consumer = self._new_session(session, request)
        except AnabranchError as error:
            session.send(_refusal(request.request_id, error))
            return
        session.spawn(request.request_id, self._register(session, consumer, request.request_id))

    def _new_session(self, session: Session, request: pb.CommandScalableTopicSubscribe) -> ConsumerSession:
        number = request.consumer_id
        consumer = ConsumerSession(
            number,
            scalable_name(_topic_name(request.topic)),
            request.subscription,
            request.consumer_name,
            _KINDS[request.consumer_type],
            session.send,
        )
        if self._broker.scalable is None:
            raise disabled()
        if not consumer.subscription or not consumer.name:
            raise NotAllowedError("a consumer registers with the names of its subscription and of itself")
        sessions = attached(session).sessions
        former = sessions.get(number)
        if number in session.consumers or (former is not None and former.key != consumer.key):
            raise NotAllowedError(f"consumer id {number} is in use on this connection")
        if former is None and len(sessions) >= self.sessions_max:
            raise TooManyError(f"more than {self.sessions_max} consumers are registered on this connection")
        if former is not None:
            former.is_over = True
        sessions[number] = consumer
        return consumer

    async def _register(self, session: Session, consumer: ConsumerSession, request_id: int) -> None:
        try:
            try:
                await self._broker.rights.consume(session.role, consumer.topic, consumer.subscription)
                # It goes on when the connection is lost meanwhile: only then is it known what to undo.
                task = asyncio.get_running_loop().create_task(self._registration(consumer))
                self._registering.add(task)
                task.add_done_callback(self._registering.discard)
                assignment = await asyncio.shield(task)
            except AnabranchError as error:
                log.info("registration of %s refused: %s", consumer.name, error)
                session.send(_refusal(request_id, error))
                self._forget(session, consumer)
                return
            except Exception as error:
                log.exception("registration of %s failed", consumer.name)
                session.send(_refusal(request_id, error))
                self._forget(session, consumer)
                return
        finally:
            if not consumer.registered.done():
                consumer.registered.set_result(None)
        answer = C(type=C.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE)
        response = answer.scalableTopicSubscribeResponse
        response.request_id = request_id
        fill_assignment(response.assignment, consumer.topic, assignment)
        session.send(answer)
        consumer.answered()

    async def _registration(self, consumer: ConsumerSession) -> Assignment:
        topics = self._topics
        assignment = await topics.register(
            consumer.topic, consumer.subscription, consumer.name, consumer.kind, consumer.id, consumer
        )
        if consumer.is_over:
            topics.disconnected(consumer.topic, consumer.subscription, consumer.name, consumer)
        return assignment

    def _forget(self, session: Session, consumer: ConsumerSession) -> None:
        sessions = attached(session).sessions
        if sessions.get(consumer.id) is consumer:
            del sessions[consumer.id]

    def holds(self, session: Session, consumer_id: int) -> bool:
        """Whether that id belongs to a registered consumer rather than to an ordinary one."""
        return session.scalable is not None and consumer_id in session.scalable.sessions

    def close_consumer(self, session: Session, request: pb.CommandCloseConsumer) -> None:
        """The consumer leaves; answered once its segments are free for others."""
        consumer = attached(session).sessions[request.consumer_id]
        session.spawn(request.request_id, self._leave(session, consumer, request.request_id))

    async def _leave(self, session: Session, consumer: ConsumerSession, request_id: int) -> None:
        await consumer.registered
        if attached(session).sessions.get(consumer.id) is consumer:
            # It counts as registered until this succeeds, so that the client can ask again.
            await self._topics.leave(consumer.topic, consumer.subscription, consumer.name, consumer)
            consumer.is_over = True
            self._forget(session, consumer)
        session.send_success(request_id)

    def ack(self, session: Session, request: pb.CommandAck) -> None:
        """The consumer has read these sealed segments to their end."""
        consumer = attached(session).sessions[request.consumer_id]
        session.spawn(request.request_id, self._finish(session, consumer, request))

    async def _finish(self, session: Session, consumer: ConsumerSession, request: pb.CommandAck) -> None:
        answer = C(type=C.ACK_RESPONSE)
        answer.ackResponse.consumer_id = request.consumer_id
        answer.ackResponse.request_id = request.request_id
        try:
            if consumer.kind is not SubscriptionKind.CHECKPOINT or request.ack_type != request.Individual:
                raise NotAllowedError("only a checkpoint consumer reports segments, one by one, as finished")
            await consumer.registered
            numbers = [message.ledgerId for message in request.message_id]
            await self._topics.finished(consumer.topic, consumer.subscription, consumer.name, numbers)
        except AnabranchError as error:
            answer.ackResponse.error = error.code or pb.UnknownError  # type: ignore[assignment]  # Of ServerError.
            answer.ackResponse.message = str(error)
        if request.HasField("request_id"):
            session.send(answer)

    # -- the end of a connection

    def connection_lost(self, session: Session) -> None:
        if session.scalable is None:
            return
        held, session.scalable = session.scalable, None
        for watch in held.watches.values():
            watch.close()
        for consumer in held.sessions.values():
            consumer.is_over = True
            if self._broker.scalable is not None:
                self._broker.scalable.disconnected(
                    consumer.topic, consumer.subscription, consumer.name, consumer
                )

    async def close(self) -> None:
        for task in self._registering:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._registering, return_exceptions=True)


def attached(session: Session) -> Attached:
    if session.scalable is None:
        session.scalable = Attached()
    return session.scalable


def fill_assignment(message: pb.ScalableConsumerAssignment, topic: TopicName, assignment: Assignment) -> None:
    message.layout_epoch = assignment.epoch
    for segment in assignment.segments:
        message.segments.add(
            segment_id=segment.id,
            hash_start=segment.range.start,
            hash_end=segment.range.end,
            segment_topic=str(segment.topic(topic)),
        )


def _refusal(request_id: int, error: Exception) -> pb.BaseCommand:
    answer = C(type=C.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE)
    response = answer.scalableTopicSubscribeResponse
    response.request_id = request_id
    response.error = getattr(error, "code", None) or pb.UnknownError
    response.message = str(error) or type(error).__name__
    return answer


def _topic_name(text: str) -> TopicName:
    """A topic that clients of scalable topics may name: `topic://`, or a classic topic as a whole."""
    name = TopicName.parse(text)
    if name.domain not in (Domain.TOPIC, Domain.PERSISTENT):
        raise NotAllowedError(
            f"{name}: scalable topics are named topic://, or persistent:// for classic ones"
        )
    if name.is_partition:
        raise NotAllowedError(f"{name} is one partition; name the whole topic, {name.base}")
    return name
