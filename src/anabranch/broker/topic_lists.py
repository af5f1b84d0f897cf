"""The topics of a namespace whose names match a pattern, told once or kept fresh (commands 32 and 64 to 67).

What consumers by pattern ask for. A watch is told the whole list first and what came and went from then on, gathered
over a short window. The store's own watch says what to look at: one for the whole broker, and only names of namespaces
that somebody watches are looked up, and only those are held against patterns again. A client that does not read its
connection is told nothing until it does, and then one difference.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

from anabranch.broker.authorization import NotAuthorizedError
from anabranch.broker.errors import NotAllowedError
from anabranch.broker.resources import MANAGED_LEDGERS
from anabranch.metadata.port import Changes
from anabranch.model.names import Domain, InvalidName, NamespaceName, TopicName, decode_local
from anabranch.model.topic_hash import topic_hash
from anabranch.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.session import Session

log = logging.getLogger(__name__)

WINDOW_S: Final = 0.05
# Pulsar's limit for what a broker looks at.
PATTERN_CHARS_MAX: Final = 256
PATTERN_BYTES_MAX: Final = 1 << 20
# Of the processor's time: most names take some microseconds.
LOOK_MAX_S: Final = 0.05
NAME_MAX_S: Final = 50e-6
WATCHES_MAX: Final = 1_000
NAMES_PER_UPDATE: Final = 10_000

C = pb.BaseCommand


class Pattern:
    """A pattern for names without their domain and without the suffix of a partition.

    In the language of RE2, as in Pulsar's brokers: a name is matched in a time that grows with its length and no
    faster. Python's own patterns can take for ever, and the event loop with them. Long patterns and long names together
    still take milliseconds each, so that there is an end to it all.
    """

    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_CHARS_MAX:
            raise InvalidName(f"a pattern of {len(text)} characters, the limit is {PATTERN_CHARS_MAX}")
        # Loaded with the first pattern.
        import re2

        options = re2.Options()
        options.log_errors = False
        options.max_mem = PATTERN_BYTES_MAX
        try:
            self._regex = re2.compile(_without_domain(text), options)
        except (re2.error, UnicodeError) as error:
            why = error.args[0].decode() if isinstance(error.args[0], bytes) else error
            raise InvalidName(f"the pattern {text!r} cannot be read here: {why}") from None
        self._text = text

    def matching(self, topics: Collection[str]) -> list[str]:
        """InvalidName where it takes too long."""
        matches, found = self._regex.fullmatch, []
        end_s = time.thread_time() + LOOK_MAX_S + len(topics) * NAME_MAX_S
        for topic in topics:
            if matches(_without_partition(_without_domain(topic))) is not None:
                found.append(topic)
            if time.thread_time() > end_s:
                raise InvalidName(
                    f"the pattern {self._text!r} cannot be used here: it takes too long for the names that there are"
                )
        return found


class TopicListWatch:
    def __init__(self, lists: TopicLists, session: Session, request: pb.CommandWatchTopicList) -> None:
        self.id = request.watcher_id
        self.namespace = NamespaceName.parse(request.namespace)
        self.pattern = Pattern(request.topics_pattern)
        self.key = self.namespace, request.topics_pattern
        self._lists = lists
        self._session = session
        self._told: set[str] = set()
        # Names that came or went since; None: any may have.
        self._changed: set[str] | None = set()
        self._window: asyncio.TimerHandle | None = None
        self._is_held = False

    def begin(self, request_id: int, known_hash: str) -> None:
        """Answers with the whole list, or none if it is the one that the client has."""
        names = self.pattern.matching(self._lists.names(self.namespace))
        self._told = set(names)
        self._changed = set()
        answer = C(type=C.WATCH_TOPIC_LIST_SUCCESS)
        success = answer.watchTopicListSuccess
        success.request_id, success.watcher_id = request_id, self.id
        success.topics_hash = self._lists.hash_of(self.key, self._told)
        if success.topics_hash != known_hash:
            success.topic.extend(names)
        self._session.send(answer)

    def changed(self, name: str | None) -> None:
        """That name came or went; None for any number of them."""
        if name is None:
            self._changed = None
        elif self._changed is not None:
            self._changed.add(name)
        if self._window is None and not self._is_held:
            self._window = self._lists.loop.call_later(WINDOW_S, self._tell)

    def writable(self) -> None:
        if self._is_held:
            self._is_held = False
            self._tell()

    def close(self) -> None:
        if self._window is not None:
            self._window.cancel()
            self._window = None

    def _tell(self) -> None:
        self._window = None
        if not self._session.is_writable:
            self._is_held = True
            return
        try:
            added, removed = self._difference()
        except InvalidName as error:
            # The protocol has no word for it.
            log.info("a watch of %s was ended: %s", self.namespace, error)
            self._lists.end(self._session, self)
            return
        while added or removed:
            update = C(type=C.WATCH_TOPIC_UPDATE)
            body = update.watchTopicUpdate
            body.watcher_id = self.id
            body.deleted_topics.extend(removed[:NAMES_PER_UPDATE])
            body.new_topics.extend(added[:NAMES_PER_UPDATE])
            self._told.difference_update(removed[:NAMES_PER_UPDATE])
            self._told.update(added[:NAMES_PER_UPDATE])
            added, removed = added[NAMES_PER_UPDATE:], removed[NAMES_PER_UPDATE:]
            is_all = not (added or removed)
            body.topics_hash = self._lists.hash_of(self.key, self._told) if is_all else topic_hash(self._told)
            self._session.send(update)

    def _difference(self) -> tuple[list[str], list[str]]:
        """What there is and was not told, and what was told and is not there any more."""
        names = self._lists.names(self.namespace)
        changed, self._changed = self._changed, set()
        if changed is None:
            now = set(self.pattern.matching(names))
            return sorted(now - self._told), sorted(self._told - now)
        added = self.pattern.matching((changed & names) - self._told)
        return sorted(added), sorted((changed & self._told) - names)


class TopicLists:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.loop = broker.loop
        self._names: dict[NamespaceName, set[str]] = {}
        self._watches: dict[NamespaceName, list[TopicListWatch]] = {}
        # Of what matches each pattern, until something changes: many consumers have the same one.
        self._hashes: dict[tuple[NamespaceName, str], str] = {}
        # What is read later is newer.
        self._reading = asyncio.Lock()

    @property
    def watching(self) -> int:
        """How many watches are told of changes."""
        return sum(map(len, self._watches.values()))

    def names(self, namespace: NamespaceName) -> AbstractSet[str]:
        """Of a namespace that is watched."""
        return self._names.get(namespace, frozenset())

    def hash_of(self, key: tuple[NamespaceName, str], matching: AbstractSet[str]) -> str:
        """Of all names that match that namespace's pattern now."""
        found = self._hashes.get(key)
        if found is None:
            found = self._hashes[key] = topic_hash(matching)
        return found

    # -- commands

    async def list(self, session: Session, request: pb.CommandGetTopicsOfNamespace) -> None:
        """GET_TOPICS_OF_NAMESPACE."""
        modes = pb.CommandGetTopicsOfNamespace
        topics: Sequence[str] = []
        namespace = NamespaceName.parse(request.namespace)
        await self._broker.rights.list_topics(session.role, namespace)
        if request.mode in (modes.PERSISTENT, modes.ALL):
            # A namespace that is not there has no topics; clients ask again and again if told otherwise.
            topics = await self._listed(namespace)
        if request.mode in (modes.NON_PERSISTENT, modes.ALL):
            topics = [*topics, *map(str, self._broker.non_persistent.names(namespace))]
        answer = C(type=C.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        response = answer.getTopicsOfNamespaceResponse
        response.request_id = request.request_id
        if request.HasField("topics_pattern"):
            try:
                topics = Pattern(request.topics_pattern).matching(topics)
                response.filtered = True
            except InvalidName:
                # Not a pattern this language knows, or one that takes too long: the client filters by itself.
                pass
        response.topics_hash = topic_hash(topics)
        response.changed = response.topics_hash != request.topics_hash
        if response.changed:
            response.topics.extend(topics)
        session.send(answer)

    async def watch(self, session: Session, request: pb.CommandWatchTopicList) -> None:
        """WATCH_TOPIC_LIST; again with the same id: the list as it is now."""
        watch = session.topic_watches.get(request.watcher_id)
        if watch is None:
            watch = await self._new_watch(session, request)
        try:
            async with self._reading:
                await self._read_all(watch.namespace)
            if session.topic_watches.get(watch.id) is watch:
                watch.begin(request.request_id, request.topics_hash)
            else:
                raise NotAllowedError(f"watch {watch.id} was closed before it was answered")
        except BaseException:
            self.end(session, watch)
            raise

    async def _new_watch(self, session: Session, request: pb.CommandWatchTopicList) -> TopicListWatch:
        made = TopicListWatch(self, session, request)
        await self._broker.rights.list_topics(session.role, made.namespace)
        await self._broker.resources.policies(made.namespace)
        # The same id may have been asked for again meanwhile, and so may others.
        if (other := session.topic_watches.get(made.id)) is not None:
            return other
        if len(session.topic_watches) >= WATCHES_MAX:
            raise NotAllowedError(f"a connection may have {WATCHES_MAX} topic list watches")
        self._watches.setdefault(made.namespace, []).append(made)
        session.topic_watches[made.id] = made
        return made

    def close(self, session: Session, request: pb.CommandWatchTopicListClose) -> None:
        """WATCH_TOPIC_LIST_CLOSE."""
        if (watch := session.topic_watches.get(request.watcher_id)) is not None:
            self.end(session, watch)
        session.send_success(request.request_id)

    async def take_back(self, session: Session, is_meant: Callable[[NamespaceName], bool]) -> None:
        """Ends watches of namespaces that the client may not look into any more. The protocol has no word for it."""
        for watch in [one for one in session.topic_watches.values() if is_meant(one.namespace)]:
            try:
                await self._broker.rights.list_topics(session.role, watch.namespace)
            except NotAuthorizedError:
                self.end(session, watch)

    def connection_lost(self, session: Session) -> None:
        for watch in list(session.topic_watches.values()):
            self.end(session, watch)

    def link_writable(self, session: Session) -> None:
        for watch in list(session.topic_watches.values()):
            watch.writable()

    def end(self, session: Session, watch: TopicListWatch) -> None:
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

    # -- what there is

    async def follow(self) -> None:
        """Until the store is closed."""
        with self._broker.metadata.watch(MANAGED_LEDGERS) as changes:
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
            is_there = await self._broker.resources.topic_exists(name)
            if is_there != (str(name) in names):
                (names.add if is_there else names.discard)(str(name))
                self._tell(name.namespace, str(name))

    async def _listed(self, namespace: NamespaceName) -> Sequence[str]:
        """Without the brokers' own: who consumes by pattern does not mean those."""
        names = await self._broker.resources.topic_names(namespace)
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


def _without_domain(text: str) -> str:
    return text.split("://", 1)[-1]


def _without_partition(text: str) -> str:
    return re.sub(r"-partition-\d+$", "", text)
