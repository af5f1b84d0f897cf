"""Performs a client's commands about scalable topics (PIP-468, commands 70 to 78).

A connection may hold watches on layouts, watches on namespaces and sessions of consumers, in small tables of its own.
All end with it: watches at once, sessions after their grace period, which the controller counts. With scalable topics
switched off each command gets a clear error in the form that its client waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from anabranch.broker.catalog.owners import Owners
from anabranch.broker.catalog.registry import BrokerRegistry
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.errors import NotAllowedError
from anabranch.broker.scalable.creation import make_missing
from anabranch.broker.scalable.naming import disabled, watchable
from anabranch.broker.scalable.sessions.consumer_sessions import ConsumerSessions, TooManyError
from anabranch.broker.scalable.sessions.link import ScalableLink
from anabranch.broker.scalable.watch.dag_watch import DagWatch, error_update
from anabranch.broker.scalable.watch.layout_views import LayoutViews
from anabranch.broker.scalable.watch.namespace_feed import NamespaceFeed
from anabranch.broker.scalable.watch.namespace_watch import ServedNamespaceWatch, namespace_error
from anabranch.broker.security.rights import Rights
from anabranch.broker.topics.creation import NewTopics
from anabranch.controller.service import ScalableTopics
from anabranch.errors import AnabranchError
from anabranch.model.bundles import BundleName
from anabranch.model.names import NamespaceName
from anabranch.wire import pulsar_pb2 as pb

C = pb.BaseCommand
# The most watches on one connection. A client that follows a whole namespace has one for each of its topics.
WATCHES_MAX: Final = 20_000


class ScalableCommands:
    """`scalable` is None while scalable topics are turned off."""

    def __init__(
        self,
        scalable: ScalableTopics | None,
        sessions: ConsumerSessions,
        links: Iterable[ScalableLink],
        rights: Rights,
        resources: Resources,
        new_topics: NewTopics,
        owners: Owners,
        registry: BrokerRegistry,
        *,
        default_segments: int,
        frame_bytes_max: int,
    ) -> None:
        """`links` are the connections that are open at the time of each iteration."""
        self._scalable = scalable
        self.sessions = sessions
        self._links = links
        self._rights = rights
        self._resources = resources
        self._new_topics = new_topics
        self._owners = owners
        self._registry = registry
        self._default_segments = default_segments
        self._frame_bytes_max = frame_bytes_max
        self.watches_per_connection_max = WATCHES_MAX
        self._views: LayoutViews | None = None
        # Created on first use.
        self.namespaces: NamespaceFeed | None = None

    @property
    def handlers(self) -> Mapping[int, tuple[str, Callable[[ScalableLink, Any], None]]]:
        return {
            C.SCALABLE_TOPIC_LOOKUP: ("scalableTopicLookup", self._lookup),
            C.SCALABLE_TOPIC_CLOSE: ("scalableTopicClose", self._close_watch),
            C.SCALABLE_TOPIC_SUBSCRIBE: ("scalableTopicSubscribe", self.sessions.subscribe),
            C.WATCH_SCALABLE_TOPICS: ("watchScalableTopics", self._watch_namespace),
            C.WATCH_SCALABLE_TOPICS_CLOSE: ("watchScalableTopicsClose", self._close_namespace_watch),
        }

    # -- layouts

    def _lookup(self, session: ScalableLink, request: pb.CommandScalableTopicLookup) -> None:
        number, watches, limit = request.session_id, session.watches, self.watches_per_connection_max
        try:
            if (topics := self._scalable) is None:
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
            is_short = "://" not in request.topic
            await make_missing(self._new_topics, topics, topic, self._default_segments, is_short=is_short)

        watch = DagWatch(
            number,
            topic,
            self._views_of(topics),
            session.send,
            ended,
            admit=lambda: self._rights.lookup(session.role, topic),
            make=make if request.create_if_missing else None,
        )
        watches[number] = watch
        watch.start()

    def _views_of(self, topics: ScalableTopics) -> LayoutViews:
        if self._views is None:
            self._views = LayoutViews(topics, self._owners, self._registry)
        return self._views

    def _close_watch(self, session: ScalableLink, request: pb.CommandScalableTopicClose) -> None:
        watch = session.watches.pop(request.session_id, None)
        if watch is not None:
            watch.close()

    def owners_changed(self, bundles: frozenset[BundleName]) -> None:
        """The topics of these bundles have another owner: the watches of their namespaces check again, and push if
        there is a difference."""
        spaces = {bundle.namespace for bundle in bundles}
        for session in self._links:
            for watch in session.watches.values():
                if watch.topic.namespace in spaces:
                    watch.refresh()

    # -- namespaces

    def _watch_namespace(self, session: ScalableLink, request: pb.CommandWatchScalableTopics) -> None:
        number, watches, limit = request.watch_id, session.namespace_watches, self.watches_per_connection_max
        try:
            if (topics := self._scalable) is None:
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
            await self._rights.list_topics(session.role, namespace)
            await self._resources.policies(namespace)

        def over(watch: ServedNamespaceWatch) -> None:
            if watches.get(number) is watch:
                del watches[number]

        watch = watches[number] = ServedNamespaceWatch(
            number,
            namespace,
            self._namespaces_of(topics),
            session,
            ended=over,
            admit=admit,
            filters=[(pair.key, pair.value) for pair in request.property_filters],
            known_hash=request.current_hash,
            frame_bytes_max=self._frame_bytes_max,
        )
        watch.start()

    def _namespaces_of(self, topics: ScalableTopics) -> NamespaceFeed:
        if self.namespaces is None:
            self.namespaces = NamespaceFeed(topics.metadata, topics.feed)
        return self.namespaces

    def _close_namespace_watch(
        self, session: ScalableLink, request: pb.CommandWatchScalableTopicsClose
    ) -> None:
        watch = session.namespace_watches.pop(request.watch_id, None)
        if watch is not None:
            watch.close()

    def link_writable(self, session: ScalableLink) -> None:
        """The client reads again: sends what its watches held back."""
        for watch in list(session.namespace_watches.values()):
            watch.writable()

    # -- the end

    def connection_lost(self, session: ScalableLink) -> None:
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
