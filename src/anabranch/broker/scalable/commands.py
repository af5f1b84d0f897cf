"""What a client's commands about scalable topics mean (PIP-468, commands 70 to 78).

A connection may hold watches on layouts, watches on namespaces and sessions of consumers, in small tables of its own.
All end with it: watches for good, sessions with their grace period, which the controller counts. With scalable topics
switched off each command gets a clear error in the shape its client waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from anabranch.broker.errors import NotAllowedError
from anabranch.broker.scalable.consumer_sessions import ConsumerSessions, TooManyError
from anabranch.broker.scalable.creation import make_missing
from anabranch.broker.scalable.dag_watch import DagWatch, error_update
from anabranch.broker.scalable.layout_views import LayoutViews
from anabranch.broker.scalable.namespace_feed import NamespaceFeed
from anabranch.broker.scalable.namespace_watch import NamespaceWatch, namespace_error
from anabranch.broker.scalable.naming import disabled, watchable
from anabranch.errors import AnabranchError
from anabranch.model.names import NamespaceName
from anabranch.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.session import Session
    from anabranch.controller.service import ScalableTopics

C = pb.BaseCommand
# On one connection. A client that follows a whole namespace has one watch for each of its topics.
WATCHES_MAX: Final = 20_000


class ScalableCommands:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.watches_per_connection_max = WATCHES_MAX
        self.sessions = ConsumerSessions(broker)
        self._views: LayoutViews | None = None
        # Made when it is first needed.
        self.namespaces: NamespaceFeed | None = None

    @property
    def handlers(self) -> Mapping[int, tuple[str, Callable[[Session, Any], None]]]:
        return {
            C.SCALABLE_TOPIC_LOOKUP: ("scalableTopicLookup", self._lookup),
            C.SCALABLE_TOPIC_CLOSE: ("scalableTopicClose", self._close_watch),
            C.SCALABLE_TOPIC_SUBSCRIBE: ("scalableTopicSubscribe", self.sessions.subscribe),
            C.WATCH_SCALABLE_TOPICS: ("watchScalableTopics", self._watch_namespace),
            C.WATCH_SCALABLE_TOPICS_CLOSE: ("watchScalableTopicsClose", self._close_namespace_watch),
        }

    # -- layouts

    def _lookup(self, session: Session, request: pb.CommandScalableTopicLookup) -> None:
        number, watches, limit = request.session_id, session.watches, self.watches_per_connection_max
        try:
            if (topics := self._broker.scalable) is None:
                raise disabled()
            topic = watchable(request.topic)
            if number not in watches and len(watches) >= limit:
                raise TooManyError(f"more than {limit} topics are watched on this connection")
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
            self._views_of(topics),
            session.send,
            ended,
            admit=lambda: self._broker.rights.lookup(session.role, topic),
            make=make if request.create_if_missing else None,
        )
        watches[number] = watch
        watch.start()

    def _views_of(self, topics: ScalableTopics) -> LayoutViews:
        if self._views is None:
            self._views = LayoutViews(topics, self._broker.owners, self._broker.registry)
        return self._views

    def _close_watch(self, session: Session, request: pb.CommandScalableTopicClose) -> None:
        watch = session.watches.pop(request.session_id, None)
        if watch is not None:
            watch.close()

    def owners_changed(self) -> None:
        """Some topics have another owner: every watch looks again, and pushes if it sees a difference."""
        for session in self._broker.sessions:
            for watch in session.watches.values():
                watch.refresh()

    # -- namespaces

    def _watch_namespace(self, session: Session, request: pb.CommandWatchScalableTopics) -> None:
        number, watches, limit = request.watch_id, session.namespace_watches, self.watches_per_connection_max
        try:
            if (topics := self._broker.scalable) is None:
                raise disabled()
            namespace = NamespaceName.parse(request.namespace)
            if number in watches:
                raise NotAllowedError(
                    f"watch {number} is open on this connection; close it, or use another id"
                )
            if len(watches) >= limit:
                raise TooManyError(f"more than {limit} namespaces are watched on this connection")
        except AnabranchError as error:
            session.send(namespace_error(number, error))
            return

        async def admit() -> None:
            await self._broker.rights.list_topics(session.role, namespace)
            await self._broker.resources.policies(namespace)

        def over(watch: NamespaceWatch) -> None:
            if watches.get(number) is watch:
                del watches[number]

        watch = watches[number] = NamespaceWatch(
            number,
            namespace,
            self._namespaces_of(topics),
            session,
            ended=over,
            admit=admit,
            filters=[(pair.key, pair.value) for pair in request.property_filters],
            known_hash=request.current_hash,
            frame_bytes_max=self._broker.config.max_message_size,
        )
        watch.start()

    def _namespaces_of(self, topics: ScalableTopics) -> NamespaceFeed:
        if self.namespaces is None:
            self.namespaces = NamespaceFeed(topics.metadata, topics.feed)
        return self.namespaces

    def _close_namespace_watch(self, session: Session, request: pb.CommandWatchScalableTopicsClose) -> None:
        watch = session.namespace_watches.pop(request.watch_id, None)
        if watch is not None:
            watch.close()

    def link_writable(self, session: Session) -> None:
        """The client reads again: what its watches held back can go."""
        for watch in list(session.namespace_watches.values()):
            watch.writable()

    # -- the end

    def connection_lost(self, session: Session) -> None:
        for watch in session.watches.values():
            watch.close()
        session.watches.clear()
        for namespace_watch in session.namespace_watches.values():
            namespace_watch.close()
        session.namespace_watches.clear()
        self.sessions.connection_lost(session)

    async def close(self) -> None:
        await self.sessions.close()
        if self.namespaces is not None:
            self.namespaces.close()
