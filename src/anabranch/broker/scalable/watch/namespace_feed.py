"""The scalable topics of the watched namespaces, read once for all watches.

One listener at the broker's feed of topic records serves every watch; a watch joins the list of its namespace and
leaves it, and a list without watches is dropped. Each list has one reader, so that a later read of a topic is never
older than an earlier one. It follows changes of the topics' own records only: splits and merges change those too, and
the nodes below them (controllers, subscriptions, sessions, loads) are ignored.

The store only reports what to read again. After a change of a topic that topic is read, after a gap in the reports all
of them, and failed reads are retried until they succeed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from anabranch.broker.scalable.watch.membership import Listed, listed
from anabranch.controller.feed import TopicFeed
from anabranch.errors import AnabranchError
from anabranch.metadata.port import MetadataStore
from anabranch.model.names import NamespaceName, TopicName
from anabranch.model.scalable import BadRecord, namespace_path, topic_of_path, topic_path

log = logging.getLogger(__name__)

Listener = Callable[[str, Listed | None], None]
RETRY_S: Final = 1.0
# A store across the network answers many reads at a time as fast as one.
READ_AT_ONCE: Final = 64


class NamespaceTopics:
    """The known topics of one namespace: every scalable topic by its full name."""

    def __init__(self, metadata: MetadataStore, namespace: NamespaceName, retry_s: float) -> None:
        self.namespace = namespace
        self.topics: dict[str, Listed] = {}
        self.listeners: dict[object, Listener] = {}
        self._metadata = metadata
        self._retry_s = retry_s
        self._stale: set[TopicName] = set()
        self._is_all_stale = False
        # Callers that wait for a read of everything that has not begun.
        self._waiting: list[asyncio.Future[None]] = []
        self._reading: asyncio.Task[None] | None = None

    async def read(self) -> None:
        """Returns once every topic has been read after this call. Waits for as long as the store does not answer."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self.changed(None)
        await done

    def changed(self, topic: TopicName | None) -> None:
        """Reads that topic again; None for all."""
        if topic is None:
            self._is_all_stale = True
        else:
            self._stale.add(topic)
        if self._reading is None:
            # Cancelled by `close`; handles its own failures.
            self._reading = asyncio.get_running_loop().create_task(self._catch_up())

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def _catch_up(self) -> None:
        while self._is_all_stale or self._stale:
            try:
                await (self._read_all() if self._is_all_stale else self._read_changed())
                continue
            except AnabranchError as error:
                log.warning("%s: reading its scalable topics failed, trying again: %s", self.namespace, error)
            except Exception:
                log.exception("%s: reading its scalable topics failed, trying again", self.namespace)
            await asyncio.sleep(self._retry_s)
        self._reading = None

    async def _read_all(self) -> None:
        # Changes from here on are read once more: this read may miss them.
        waiting, self._waiting = self._waiting, []
        self._is_all_stale = False
        self._stale.clear()
        try:
            folder = namespace_path(self.namespace)
            paths = (f"{folder}/{child}" for child in await self._metadata.children(folder))
            found = {str(topic): topic for path in paths if (topic := topic_of_path(path)) is not None}
            for name in [name for name in self.topics if name not in found]:
                self._set(name, None)
            await self._read(list(found.values()))
        except BaseException:
            self._is_all_stale = True
            self._waiting = waiting + self._waiting
            raise
        for done in waiting:
            if not done.done():  # Else its watch was closed.
                done.set_result(None)

    async def _read_changed(self) -> None:
        changed, self._stale = self._stale, set()
        try:
            await self._read(sorted(changed))
        except BaseException:
            self._stale |= changed
            raise

    async def _read(self, topics: list[TopicName]) -> None:
        for first in range(0, len(topics), READ_AT_ONCE):
            some = topics[first : first + READ_AT_ONCE]
            nodes = await asyncio.gather(*(self._metadata.get(topic_path(topic)) for topic in some))
            for topic, node in zip(some, nodes, strict=True):
                try:
                    self._set(str(topic), None if node is None else listed(node.value))
                except BadRecord as error:
                    # An unreadable record does not affect the others, and the topic keeps its last state.
                    log.warning("%s is left out of watches of its namespace: %s", topic, error)

    def _set(self, name: str, found: Listed | None) -> None:
        if self.topics.get(name) == found:
            return
        if found is None:
            del self.topics[name]
        else:
            self.topics[name] = found
        for listener in list(self.listeners.values()):
            try:
                listener(name, found)
            except Exception:
                log.exception("%s: a namespace watch failed at topic %s", self.namespace, name)


class NamespaceFeed:
    def __init__(self, metadata: MetadataStore, feed: TopicFeed, retry_s: float = RETRY_S) -> None:
        self._metadata = metadata
        self._retry_s = retry_s
        self._namespaces: dict[NamespaceName, NamespaceTopics] = {}
        self._stop = feed.listen_everywhere(self._changed)

    @property
    def listeners(self) -> int:
        return sum(len(topics.listeners) for topics in self._namespaces.values())

    @property
    def namespaces(self) -> int:
        """How many namespaces are kept up to date."""
        return len(self._namespaces)

    def join(self, namespace: NamespaceName, key: object, listener: Listener) -> NamespaceTopics:
        """Calls `listener` at every change from now on, until `key` leaves. Join first, then `read`."""
        topics = self._namespaces.get(namespace)
        if topics is None:
            topics = self._namespaces[namespace] = NamespaceTopics(self._metadata, namespace, self._retry_s)
        topics.listeners[key] = listener
        return topics

    def leave(self, namespace: NamespaceName, key: object) -> None:
        """Does nothing if `key` has left before."""
        topics = self._namespaces.get(namespace)
        if topics is None:
            return
        topics.listeners.pop(key, None)
        if not topics.listeners:
            topics.close()
            del self._namespaces[namespace]

    def close(self) -> None:
        self._stop()
        for topics in self._namespaces.values():
            topics.close()
        self._namespaces.clear()

    def _changed(self, topic: TopicName | None) -> None:
        if topic is None:
            for topics in self._namespaces.values():
                topics.changed(None)
        elif (found := self._namespaces.get(topic.namespace)) is not None:
            found.changed(topic)
