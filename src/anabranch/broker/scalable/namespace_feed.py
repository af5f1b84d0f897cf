"""The scalable topics of the namespaces that somebody watches, read once for all who do.

One listener at the broker's feed of topic records serves every watch; a watch joins the list of its namespace and
leaves it, and a list that nobody is on any more is gone. Each list is kept by one reader, so that what is read of a
topic is never older than what was read before. It hears of changes of the topics' own records only: splits and merges
change those too, and what lies below them (controllers, subscriptions, sessions, loads) is not looked at.

The store only says "read again". A change is answered by a read of that topic, trouble by a read of all of them, and
what cannot be read is tried again until it can.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from anabranch.broker.scalable.membership import Listed, listed
from anabranch.controller.feed import TopicFeed
from anabranch.errors import AnabranchError
from anabranch.metadata.port import MetadataStore
from anabranch.model.names import NamespaceName, TopicName
from anabranch.model.scalable import BadRecord, namespace_path, topic_of_path, topic_path

log = logging.getLogger(__name__)

Listener = Callable[[str, Listed | None], None]
RETRY_S: Final = 1.0
# A store across the network answers many at a time as fast as one.
READ_AT_ONCE: Final = 64


class NamespaceTopics:
    """What is known of one namespace: every scalable topic by its full name."""

    def __init__(self, metadata: MetadataStore, namespace: NamespaceName, retry_s: float) -> None:
        self.namespace = namespace
        self.topics: dict[str, Listed] = {}
        self.listeners: dict[object, Listener] = {}
        self._metadata = metadata
        self._retry_s = retry_s
        self._stale: set[TopicName] = set()
        self._is_all_stale = False
        # Those who wait for a reading of everything that has not begun.
        self._waiting: list[asyncio.Future[None]] = []
        self._reading: asyncio.Task[None] | None = None

    async def read(self) -> None:
        """Returns once every topic has been read after this call. Waits for as long as the store does not answer."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self.changed(None)
        await done

    def changed(self, topic: TopicName | None) -> None:
        """Read that topic again; None for all."""
        if topic is None:
            self._is_all_stale = True
        else:
            self._stale.add(topic)
        if self._reading is None:
            # Cancelled by `close`; it answers for its own failures.
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
                log.warning(
                    "the scalable topics of %s cannot be read, trying again: %s", self.namespace, error
                )
            except Exception:
                log.exception("reading the scalable topics of %s failed; it is tried again", self.namespace)
            await asyncio.sleep(self._retry_s)
        self._reading = None

    async def _read_all(self) -> None:
        # Whatever changes from here on is read once more: this reading may miss it.
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
                    # One that nobody can read keeps the others from nothing, and stays what it was.
                    log.warning("%s is left out of its namespace's watches: %s", topic, error)

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
                log.exception("a watch of %s failed at %s", self.namespace, name)


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
        """How many are kept up to date."""
        return len(self._namespaces)

    def join(self, namespace: NamespaceName, key: object, listener: Listener) -> NamespaceTopics:
        """Tell `listener` of every change from now on, until `key` leaves. Join first, then `read`."""
        topics = self._namespaces.get(namespace)
        if topics is None:
            topics = self._namespaces[namespace] = NamespaceTopics(self._metadata, namespace, self._retry_s)
        topics.listeners[key] = listener
        return topics

    def leave(self, namespace: NamespaceName, key: object) -> None:
        """Harmless for one that has left."""
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
