"""The topics of a namespace whose names match a pattern, sent once or kept up to date (commands 32 and 64 to 67).

Consumers by pattern use these commands. A watch sends the whole list first and then what was added and removed,
gathered over a short window. One watch of the store for the whole broker reports which names to check: only names of
watched namespaces are looked up, and only those are matched with patterns again. A client that does not read its
connection is sent nothing until it does, and then one difference.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from anabranch.broker.catalog.resources import MANAGED_LEDGERS, Resources
from anabranch.broker.connection.session import ClientSession
from anabranch.broker.connection.topic_list_watch import TopicListWatch
from anabranch.broker.connection.topic_patterns import Pattern
from anabranch.broker.errors import NotAllowedError
from anabranch.broker.non_persistent.topics import NonPersistentTopics
from anabranch.broker.runtime.shared_reads import SharedReads
from anabranch.broker.security.rights import NotAuthorizedError, Rights
from anabranch.metadata.port import Changes, MetadataStore
from anabranch.model.names import Domain, InvalidName, NamespaceName, TopicName, decode_local
from anabranch.model.topic_hash import topic_hash
from anabranch.wire import pulsar_pb2 as pb

WATCHES_MAX: Final = 1_000

C = pb.BaseCommand


class TopicLists:
    """Implements `ListedNames` for its watches."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        metadata: MetadataStore,
        resources: Resources,
        rights: Rights,
        non_persistent: NonPersistentTopics,
        unstored_elsewhere: Callable[[NamespaceName], Awaitable[list[str]]],
    ) -> None:
        """`unstored_elsewhere` lists the non-persistent topics of other brokers, as far as those answer."""
        self.loop = loop
        self._metadata = metadata
        self._resources = resources
        self._rights = rights
        self._non_persistent = non_persistent
        self._names: dict[NamespaceName, set[str]] = {}
        self._watches: dict[NamespaceName, list[TopicListWatch]] = {}
        # The hashes of what matches each pattern, until something changes: many consumers have the same pattern.
        self._hashes: dict[tuple[NamespaceName, str], str] = {}
        # Reads are made one at a time, so that a later one is never older.
        self._reading = asyncio.Lock()
        # Lists are made one a turn: a pattern may take 50 ms, and a client may ask for hundreds of lists at once.
        self._answering = asyncio.Lock()
        self._lists = SharedReads(self._read_list)
        self._unstored_lists = SharedReads(unstored_elsewhere)

    @property
    def watching(self) -> int:
        """How many watches are open."""
        return sum(map(len, self._watches.values()))

    def names(self, namespace: NamespaceName) -> AbstractSet[str]:
        """The topics of a namespace that is watched."""
        return self._names.get(namespace, frozenset())

    def hash_of(self, key: tuple[NamespaceName, str], matching: AbstractSet[str]) -> str:
        """The hash of all names that match that namespace's pattern now."""
        found = self._hashes.get(key)
        if found is None:
            found = self._hashes[key] = topic_hash(matching)
        return found

    # -- commands

    async def list(self, session: ClientSession, request: pb.CommandGetTopicsOfNamespace) -> None:
        """Performs GET_TOPICS_OF_NAMESPACE."""
        modes = pb.CommandGetTopicsOfNamespace
        topics: Sequence[str] = []
        namespace = NamespaceName.parse(request.namespace)
        await self._rights.list_topics(session.role, namespace)
        if request.mode in (modes.PERSISTENT, modes.ALL):
            # A namespace that does not exist is answered with no topics; at an error clients ask again and again.
            topics = await self._listed(namespace)
        if request.mode in (modes.NON_PERSISTENT, modes.ALL):
            mine = map(str, self._non_persistent.names(namespace))
            topics = list(dict.fromkeys((*topics, *mine, *await self._unstored_lists.get(namespace))))
        async with self._answering:
            self._answer(session, request, topics)
            await asyncio.sleep(0)

    def _answer(
        self, session: ClientSession, request: pb.CommandGetTopicsOfNamespace, topics: Sequence[str]
    ) -> None:
        answer = C(type=C.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        response = answer.getTopicsOfNamespaceResponse
        response.request_id = request.request_id
        if request.HasField("topics_pattern"):
            try:
                topics = Pattern(request.topics_pattern).matching(topics)
                response.filtered = True
            except InvalidName:
                # Not a valid RE2 pattern, or one that takes too long: the client filters by itself.
                pass
        response.topics_hash = topic_hash(topics)
        response.changed = response.topics_hash != request.topics_hash
        if response.changed:
            response.topics.extend(topics)
        session.send(answer)

    async def watch(self, session: ClientSession, request: pb.CommandWatchTopicList) -> None:
        """Performs WATCH_TOPIC_LIST; the same id again answers with the present list."""
        watch = session.topic_watches.get(request.watcher_id)
        if watch is None:
            watch = await self._new_watch(session, request)
        try:
            async with self._reading:
                await self._read_all(watch.namespace)
            if session.topic_watches.get(watch.id) is watch:
                async with self._answering:
                    watch.begin(request.request_id, request.topics_hash)
                    await asyncio.sleep(0)
            else:
                raise NotAllowedError(f"watch {watch.id} was closed before it was answered")
        except BaseException:
            self.end(session, watch)
            raise

    async def _new_watch(self, session: ClientSession, request: pb.CommandWatchTopicList) -> TopicListWatch:
        made = TopicListWatch(self, session, request, lambda watch: self.end(session, watch))
        await self._rights.list_topics(session.role, made.namespace)
        await self._resources.policies(made.namespace)
        # The same id may have been used again meanwhile, and so may others.
        if (other := session.topic_watches.get(made.id)) is not None:
            return other
        if len(session.topic_watches) >= WATCHES_MAX:
            raise NotAllowedError(f"a connection may have {WATCHES_MAX} topic list watches")
        self._watches.setdefault(made.namespace, []).append(made)
        session.topic_watches[made.id] = made
        return made

    def close(self, session: ClientSession, request: pb.CommandWatchTopicListClose) -> None:
        """Performs WATCH_TOPIC_LIST_CLOSE."""
        if (watch := session.topic_watches.get(request.watcher_id)) is not None:
            self.end(session, watch)
        session.send_success(request.request_id)

    async def take_back(self, session: ClientSession, is_meant: Callable[[NamespaceName], bool]) -> None:
        """Ends watches of namespaces that the client may no longer list. The protocol has no command to notify it."""
        for watch in [one for one in session.topic_watches.values() if is_meant(one.namespace)]:
            try:
                await self._rights.list_topics(session.role, watch.namespace)
            except NotAuthorizedError:
                self.end(session, watch)

    def connection_lost(self, session: ClientSession) -> None:
        for watch in list(session.topic_watches.values()):
            self.end(session, watch)

    def link_writable(self, session: ClientSession) -> None:
        for watch in list(session.topic_watches.values()):
            watch.writable()

    def end(self, session: ClientSession, watch: TopicListWatch) -> None:
        watch.close()
        if session.topic_watches.get(watch.id) is watch:
            del session.topic_watches[watch.id]
        watches = self._watches.get(watch.namespace, [])
        if watch in watches:
            watches.remove(watch)
        if not any(one.key == watch.key for one in watches):
            self._hashes.pop(watch.key, None)
        if not watches:
            self._watches.pop(watch.namespace, None)
            self._names.pop(watch.namespace, None)

    # -- the topics of namespaces

    async def follow(self) -> None:
        """Follows changes of topics until the store is closed."""
        with self._metadata.watch(MANAGED_LEDGERS) as changes:
            async for change in changes:
                if self._watches:
                    async with self._reading:
                        await self._look(change)

    async def _look(self, change: Changes) -> None:
        if change.everything:
            for namespace in list(self._watches):
                await self._read_all(namespace)
            return
        for path in change.paths:
            name = _topic_at(path)
            if name is None or name.is_system or (names := self._names.get(name.namespace)) is None:
                continue
            is_there = await self._resources.topic_exists(name)
            if is_there != (str(name) in names):
                (names.add if is_there else names.discard)(str(name))
                self._tell(name.namespace, str(name))

    async def _listed(self, namespace: NamespaceName) -> Sequence[str]:
        """The topics of the namespace. Excludes system topics."""
        return await self._lists.get(namespace)

    async def _read_list(self, namespace: NamespaceName) -> Sequence[str]:
        names = await self._resources.topic_names(namespace)
        return [str(name) for name in names if not name.is_system]

    async def _read_all(self, namespace: NamespaceName) -> None:
        found = set(await self._listed(namespace))
        if namespace in self._watches and found != self._names.get(namespace):
            self._names[namespace] = found
            self._tell(namespace, None)

    def _tell(self, namespace: NamespaceName, name: str | None) -> None:
        for watch in self._watches.get(namespace, ()):
            self._hashes.pop(watch.key, None)
            watch.changed(name)


def _topic_at(path: str) -> TopicName | None:
    """The persistent topic whose record lies there."""
    parts = path.removeprefix(MANAGED_LEDGERS + "/").split("/")
    if len(parts) != 4 or parts[2] != Domain.PERSISTENT.value:
        return None
    return TopicName(Domain.PERSISTENT, NamespaceName(parts[0], parts[1]), decode_local(parts[3]))
