"""Sessions of stream and checkpoint consumers over client connections (PIP-468, commands 73 to 75).

The controller holds a session by the consumer's name, independently of connections; this module holds the connection's
side of it. A session has an id from the same space as ordinary consumers, so that

- CLOSE_CONSUMER with this id means "I leave": the segments go to others at once, not after the grace period;
- ACK with this id reports, by their ids, sealed segments that a checkpoint consumer has read to their end; an entry
  above 0 stands for one bucket of a segment that it shares, which has the number before it.

A session follows its controller: to a new controller at this broker by itself, to another broker by redirecting the
client.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from anabranch.broker.errors import BrokerError, NotAllowedError
from anabranch.broker.scalable.naming import disabled, watchable
from anabranch.broker.scalable.owner.subscription_limits import SubscriptionLimits
from anabranch.broker.scalable.ports import Opened
from anabranch.broker.scalable.sessions.capability import can_share
from anabranch.broker.scalable.sessions.consumer_session import ConsumerSession, SessionKey
from anabranch.broker.scalable.sessions.departures import Departures
from anabranch.broker.scalable.sessions.link import ScalableLink
from anabranch.broker.scalable.sessions.lost_acks import LostAcks
from anabranch.broker.scalable.sessions.reading import ElsewhereReaders
from anabranch.broker.security.rights import Rights
from anabranch.controller.core.errors import NotLeader, TopicMissing
from anabranch.controller.feed import StalePart
from anabranch.controller.ports import Assignment
from anabranch.controller.service import ScalableTopics
from anabranch.errors import AnabranchError
from anabranch.metadata.port import MetadataStore
from anabranch.model.scalable import SubscriptionKind, consumer_path, scalable_name
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.connection import NO_REQUEST

log = logging.getLogger(__name__)

C = pb.BaseCommand
T = TypeVar("T")
SESSIONS_MAX: Final = 20_000  # On one connection.

_KINDS: Final = {pb.STREAM: SubscriptionKind.STREAM, pb.CHECKPOINT: SubscriptionKind.CHECKPOINT}


class TooManyError(BrokerError):
    code = pb.TooManyRequests


class ConsumerSessions:
    """All sessions over connections to one broker. `scalable` is None while scalable topics are turned off."""

    def __init__(
        self,
        scalable: ScalableTopics | None,
        metadata: MetadataStore,
        rights: Rights,
        limits: SubscriptionLimits,
        opened: Opened,
        loop: asyncio.AbstractEventLoop,
        *,
        service_url: str,
        elsewhere: ElsewhereReaders | None = None,
    ) -> None:
        self._scalable = scalable
        self._metadata = metadata
        self._rights = rights
        self._limits = limits
        self._service_url = service_url
        self.per_connection_max = SESSIONS_MAX
        self.departures = Departures(
            loop, opened, self._has_left, elsewhere, self._spawn, self._sharing_refused
        )
        self.lost_acks = LostAcks(opened, elsewhere)
        # Registrations under way, including those of lost connections: each must end with or without a session. Also
        # the watches of consumers that came back.
        self._registering: set[asyncio.Task[Any]] = set()
        # Consumers that were found room for, until the controller counts them.
        self._joining: set[SessionKey] = set()
        # The last consumer that registered under each name. An older one has lost its session and must not take it
        # back.
        self._newest: WeakValueDictionary[SessionKey, ConsumerSession] = WeakValueDictionary()

    @property
    def _topics(self) -> ScalableTopics:
        if self._scalable is None:
            raise disabled()
        return self._scalable

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
        # The connection that asked may be gone: then no client is left to be sent the error.
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("registering a consumer failed: %s", error)

    # -- joining

    def subscribe(self, session: ScalableLink, request: pb.CommandScalableTopicSubscribe) -> None:
        try:
            consumer = self._new_session(session, request)
        except AnabranchError as error:
            session.send(_refusal(request.request_id, error))
            return
        if not session.spawn(request.request_id, self._register(session, consumer, request.request_id)):
            # The registration will never begin, and closing the consumer would wait for it.
            self._forget(session, consumer)

    def _new_session(
        self, session: ScalableLink, request: pb.CommandScalableTopicSubscribe
    ) -> ConsumerSession:
        number, topics = request.consumer_id, self._topics
        consumer = ConsumerSession(
            number,
            scalable_name(watchable(request.topic)),
            request.subscription,
            request.consumer_name,
            _KINDS[request.consumer_type],
            session.send,
            request.anabranch_knows_buckets or _shares_by_version(session, request),
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
        # Before registering, so that no change of the controller falls between the two.
        stop = topics.feed.listen(
            consumer.topic, lambda part: self._controller_changed(session, consumer, part)
        )
        consumer.stop_listening = stop
        if not session.connection.peer_features.supports_scalable_topics:
            # Only for clients without our extension: others send a command when they leave.
            consumer.told = self.departures.observe(session, consumer)

            def stop_all() -> None:
                stop()
                self.departures.end(consumer)

            consumer.stop_listening = stop_all
        return consumer

    async def _register(self, session: ScalableLink, consumer: ConsumerSession, request_id: int) -> None:
        try:
            await self._rights.consume(session.role, consumer.topic, consumer.subscription)
            if consumer.kind is not SubscriptionKind.CHECKPOINT:
                await self._limits.check_new(consumer.topic, consumer.subscription, is_by_use=True)
            await self._find_room(consumer)
            path = consumer_path(consumer.topic, consumer.subscription, consumer.name)
            is_back = await self._metadata.get(path) is not None
            # Continues if the connection is lost meanwhile: only the result tells what to undo.
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
            self._joining.discard(consumer.key)
            if not consumer.registered.done():
                consumer.registered.set_result(None)
        consumer.answer(request_id, assignment)
        if consumer.is_in_doubt:
            self._make_sure(session, consumer)
        knows = session.connection.peer_features.supports_scalable_topics
        if is_back and consumer.kind is SubscriptionKind.STREAM and not knows:
            self._spawn(self.lost_acks.watch(consumer))

    async def _find_room(self, consumer: ConsumerSession) -> None:
        """Raises if the topic or its subscription has as many consumers as it may have. Segments do not tell: each has
        some of the consumers. One that comes back within its grace period has its place."""
        limits = await self._limits.of(consumer.topic)
        if not (limits.consumers_max or limits.consumers_per_subscription_max):
            return
        controller = await self._topics.leading(consumer.topic)
        found = {
            (name, session) for name, one in controller.coordinators.items() for session in one.group.sessions
        }
        found |= {(name, session) for topic, name, session in self._joining if topic == consumer.topic}
        if (consumer.subscription, consumer.name) in found:
            return
        beside = sum(name == consumer.subscription for name, _ in found)
        is_group = consumer.kind is SubscriptionKind.CHECKPOINT
        limits.check_session(len(found), None if is_group else beside)
        self._joining.add(consumer.key)

    async def _registration(self, consumer: ConsumerSession) -> Assignment:
        topics = self._topics
        self._newest[consumer.key] = consumer
        assignment = await topics.register(
            consumer.topic,
            consumer.subscription,
            consumer.name,
            consumer.kind,
            consumer.id,
            consumer,
            knows_buckets=consumer.knows_buckets,
        )
        if consumer.is_over:
            topics.disconnected(consumer.topic, consumer.subscription, consumer.name, consumer)
        return assignment

    def _forget(self, session: ScalableLink, consumer: ConsumerSession) -> None:
        consumer.end()
        if session.sessions.get(consumer.id) is consumer:
            del session.sessions[consumer.id]

    # -- leaving, finishing

    def leave(self, session: ScalableLink, request: pb.CommandCloseConsumer) -> None:
        """Answers once the consumer's segments are free for others."""
        consumer = session.sessions[request.consumer_id]
        session.spawn(request.request_id, self._leave(session, consumer, request.request_id))

    async def _leave(self, session: ScalableLink, consumer: ConsumerSession, request_id: int) -> None:
        await consumer.registered
        if session.sessions.get(consumer.id) is consumer:
            try:
                with contextlib.suppress(TopicMissing):
                    await self._check_leads(consumer)
                    await self._topics.leave(consumer.topic, consumer.subscription, consumer.name, consumer)
            finally:
                # Also while there is no leader: the session must not be brought to the next leader, which will find it
                # without a connection, and end it after the grace period.
                self._forget(session, consumer)
        session.send_success(request_id)

    async def _check_leads(self, consumer: ConsumerSession) -> None:
        """Raises NotLeader if the session is held by another broker, or moving to one; TopicMissing if the topic is
        gone."""
        if self._is_held(consumer):
            return
        leader = await self._topics.leader(consumer.topic)
        if leader != self._service_url:
            await self._topics.view(consumer.topic)
            raise NotLeader(consumer.topic, leader)

    def _has_left(self, session: ScalableLink, consumer: ConsumerSession) -> None:
        async def leave() -> None:
            try:
                await self._topics.leave(consumer.topic, consumer.subscription, consumer.name, consumer)
            except AnabranchError as error:
                log.info("ending the session of consumer %s failed: %s", consumer.name, error)

        self._forget(session, consumer)
        self._spawn(leave())

    def _sharing_refused(self, consumer: ConsumerSession) -> None:
        log.info("consumer %s of %s does not share segments", consumer.name, consumer.topic)
        consumer.knows_buckets = False
        self._topics.sharing_refused(consumer.topic, consumer.subscription, consumer.name, consumer)

    def ack(self, session: ScalableLink, request: pb.CommandAck) -> None:
        """The consumer has read these sealed segments to their end."""
        consumer = session.sessions[request.consumer_id]
        session.spawn(request.request_id, self._finish(session, consumer, request))

    async def _finish(self, session: ScalableLink, consumer: ConsumerSession, request: pb.CommandAck) -> None:
        answer = C(type=C.ACK_RESPONSE)
        answer.ackResponse.consumer_id = request.consumer_id
        answer.ackResponse.request_id = request.request_id
        try:
            if consumer.kind is not SubscriptionKind.CHECKPOINT or request.ack_type != request.Individual:
                raise NotAllowedError("only a checkpoint consumer reports segments, one by one, as finished")
            await consumer.registered
            if session.sessions.get(consumer.id) is not consumer:
                raise NotAllowedError("this consumer is not registered: it was refused, or has left")
            numbers = [message.ledgerId for message in request.message_id if not message.entryId]
            parts: dict[int, set[int]] = {}
            for message in request.message_id:
                if message.entryId:
                    parts.setdefault(message.ledgerId, set()).add(message.entryId - 1)
            await self._topics.finished(consumer.topic, consumer.subscription, consumer.name, numbers, parts)
        except AnabranchError as error:
            answer.ackResponse.error = error.code or pb.UnknownError  # type: ignore[assignment]  # Of ServerError.
            answer.ackResponse.message = str(error)
        if request.HasField("request_id"):
            session.send(answer)

    def connection_lost(self, session: ScalableLink) -> None:
        for consumer in list(session.sessions.values()):
            if self.departures.has_left(consumer):
                self._has_left(session, consumer)
                continue
            consumer.end()
            if self._scalable is not None:
                self._scalable.disconnected(consumer.topic, consumer.subscription, consumer.name, consumer)
        session.sessions.clear()

    # -- a controller that moves

    def _controller_changed(self, session: ScalableLink, consumer: ConsumerSession, part: StalePart) -> None:
        if StalePart.CONTROLLER not in part:
            return
        # Whether this broker still holds the session is known only after the leader is: its own controller may not have
        # noticed yet that it was deposed. So a session that is still registering is checked afterwards.
        consumer.is_in_doubt = True
        if consumer.is_answered:
            self._make_sure(session, consumer)

    def _make_sure(self, session: ScalableLink, consumer: ConsumerSession) -> None:
        """Makes sure that the present leader holds the session."""
        if not consumer.is_returning:
            consumer.is_returning = True
            self._spawn(self._return(session, consumer))

    def _is_held(self, consumer: ConsumerSession) -> bool:
        """Whether the controller at this broker still knows the session."""
        controller = self._topics.controllers.get(consumer.topic)
        coordinator = None if controller is None else controller.coordinators.get(consumer.subscription)
        held = None if coordinator is None else coordinator.group.sessions.get(consumer.name)
        return held is not None and held.link is consumer

    async def _return(self, session: ScalableLink, consumer: ConsumerSession) -> None:
        """Brings the session to the present leader: at this broker without notifying the client, else by redirecting
        it."""
        try:
            while consumer.is_in_doubt and not consumer.is_over:
                consumer.is_in_doubt = False
                leader = await self._topics.leader(consumer.topic)
                if consumer.is_over or not leader or self._newest.get(consumer.key) is not consumer:
                    continue  # While there is no leader, the next election sets `is_in_doubt`.
                if leader != self._service_url:
                    self._send_away(session, consumer)
                    return
                if self._is_held(consumer):
                    continue
                assignment = await self._registration(consumer)
                consumer.send_assignment(consumer.topic, consumer.id, assignment)
        except AnabranchError as error:
            log.info("consumer %s of %s must register again: %s", consumer.name, consumer.topic, error)
            self._send_away(session, consumer)
        finally:
            consumer.is_returning = False

    def expel(self, session: ScalableLink, consumer: ConsumerSession) -> None:
        """The consumer may not consume any more: its segments go to others at once."""
        self._has_left(session, consumer)
        self._send_away(session, consumer)

    def _send_away(self, session: ScalableLink, consumer: ConsumerSession) -> None:
        self._forget(session, consumer)
        command = C(type=C.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = consumer.id
        command.close_consumer.request_id = NO_REQUEST
        session.send(command)
        if not session.connection.peer_features.supports_scalable_topics:
            # Pulsar's Java client looks for the controller again only when its connection is lost.
            session.close()


def _shares_by_version(session: ScalableLink, request: pb.CommandScalableTopicSubscribe) -> bool:
    """Whether a client shares that does not say so. Java's checkpoint consumers take no notice of buckets."""
    return request.consumer_type == pb.STREAM and can_share(session.connection.peer_name)


def _refusal(request_id: int, error: Exception) -> pb.BaseCommand:
    answer = C(type=C.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE)
    response = answer.scalableTopicSubscribeResponse
    response.request_id = request_id
    response.error = getattr(error, "code", None) or pb.UnknownError
    response.message = str(error) or type(error).__name__
    return answer
