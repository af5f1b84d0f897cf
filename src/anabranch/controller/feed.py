"""One watch on every scalable topic's records, shared by all listeners.

Ten thousand topics need one watch, not ten thousand. A listener is notified of the part of its topic to read again; it
may be notified without a change, and after trouble with the store it is notified of all parts. Records about topics
that are stored elsewhere are followed by one more watch for each such folder.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from enum import Flag, auto

from anabranch.metadata.port import MetadataStore, Watch
from anabranch.model.names import TopicName
from anabranch.model.scalable import (
    CONSUMERS,
    CONTROLLER,
    SUBSCRIPTIONS,
    TOPICS,
    segment_of_load_path,
    subscription_path,
    topic_of_path,
    topic_path,
)

log = logging.getLogger(__name__)


class StalePart(Flag):
    """The parts of a topic to read again."""

    RECORD = auto()
    CONTROLLER = auto()
    SUBSCRIPTIONS = auto()
    # The load of its segments. Only listeners to all topics are notified of it: it changes often, and few need it.
    LOAD = auto()
    # The number of partitions of the classic topic of that name.
    PARTITIONS = auto()
    ALL = RECORD | CONTROLLER | SUBSCRIPTIONS


Listener = Callable[[StalePart], None]
TopicAt = Callable[[str], TopicName | None]


class TopicFeed:
    """Notifies listeners of changes. Call `start`, then `listen`. Listeners run on the event loop and must not wait."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._listeners: dict[str, list[Listener]] = {}
        # By the folder of a subscription's consumers.
        self._of_consumers: dict[str, list[Callable[[], None]]] = {}
        self._everywhere: list[tuple[StalePart, Callable[[TopicName | None], None]]] = []
        self._folders: list[tuple[str, TopicAt, StalePart]] = []
        self._following: dict[asyncio.Task[None], Watch] = {}

    @property
    def listeners(self) -> int:
        return sum(map(len, self._listeners.values()))

    def follow(self, folder: str, topic_at: TopicAt, part: StalePart) -> None:
        """Call before `start`: a change below that folder is a change of that part of the topic that `topic_at`
        names."""
        self._folders.append((folder, topic_at, part))

    def start(self) -> None:
        watch = self._metadata.watch(TOPICS)
        self._following[asyncio.create_task(self._follow(watch))] = watch  # Awaited by `close`.
        for folder, topic_at, part in self._folders:
            watch = self._metadata.watch(folder)
            work = self._follow_folder(watch, topic_at, part)
            self._following[asyncio.create_task(work)] = watch  # Awaited by `close`.

    async def close(self) -> None:
        for watch in self._following.values():
            watch.close()
        await asyncio.gather(*self._following)

    def listen(self, topic: TopicName, listener: Listener) -> Callable[[], None]:
        """Notifies `listener` of every change to that topic from now on; the result ends that. Listen first, then
        read."""
        path = topic_path(topic)
        self._listeners.setdefault(path, []).append(listener)

        def stop() -> None:
            kept = self._listeners.get(path, [])
            if listener in kept:
                kept.remove(listener)
            if not kept:
                self._listeners.pop(path, None)

        return stop

    def listen_to_consumers(
        self, topic: TopicName, subscription: str, listener: Callable[[], None]
    ) -> Callable[[], None]:
        """Notifies `listener` of every change to the stored consumers of that subscription; the result ends that."""
        folder = f"{subscription_path(topic, subscription)}/{CONSUMERS}"
        self._of_consumers.setdefault(folder, []).append(listener)

        def stop() -> None:
            kept = self._of_consumers.get(folder, [])
            if listener in kept:
                kept.remove(listener)
            if not kept:
                self._of_consumers.pop(folder, None)

        return stop

    def listen_everywhere(
        self, listener: Callable[[TopicName | None], None], part: StalePart = StalePart.RECORD
    ) -> Callable[[], None]:
        """Notifies `listener` of the name of every topic whose part changed; None means any of them."""
        entry = (part, listener)
        self._everywhere.append(entry)
        return lambda: self._everywhere.remove(entry) if entry in self._everywhere else None

    async def _follow(self, watch: Watch) -> None:
        async for changes in watch:
            if changes.everything:
                for path in list(self._listeners):
                    self._tell(path, StalePart.ALL)
                self._tell_of_consumers(self._of_consumers)
                self._tell_everywhere(None, StalePart.ALL | StalePart.LOAD)
                continue
            parts: dict[str, StalePart] = {}
            for changed in sorted(changes.paths):  # The same order everywhere, since a set has none.
                topic = topic_of_path(changed)
                if topic is None:
                    continue
                path = topic_path(topic)
                part = (
                    StalePart.LOAD
                    if segment_of_load_path(changed) is not None
                    else _part(changed[len(path) + 1 :])
                )
                if part is not StalePart.LOAD:
                    parts[path] = parts.get(path, StalePart(0)) | part
                self._tell_everywhere(topic, part)
            for path, part in parts.items():
                self._tell(path, part)
            if self._of_consumers:
                self._tell_of_consumers(sorted({path.rpartition("/")[0] for path in changes.paths}))

    async def _follow_folder(self, watch: Watch, topic_at: TopicAt, part: StalePart) -> None:
        async for changes in watch:
            named = {topic_path(topic) for path in changes.paths if (topic := topic_at(path)) is not None}
            for path in list(self._listeners) if changes.everything else sorted(named):
                self._tell(path, part)

    def _tell(self, path: str, part: StalePart) -> None:
        for listener in list(self._listeners.get(path, ())):
            try:
                listener(part)
            except Exception:
                log.exception("a listener of %s failed", path)

    def _tell_of_consumers(self, folders: Iterable[str]) -> None:
        for listener in [one for folder in folders for one in self._of_consumers.get(folder, ())]:
            try:
                listener()
            except Exception:
                log.exception("a listener of consumers failed")

    def _tell_everywhere(self, topic: TopicName | None, part: StalePart) -> None:
        for wanted, listener in list(self._everywhere):
            if not wanted & part:
                continue
            try:
                listener(topic)
            except Exception:
                log.exception("a listener of all topics failed at %s", topic)


def _part(rest: str) -> StalePart:
    if rest == "":
        return StalePart.RECORD
    if rest == CONTROLLER:
        return StalePart.CONTROLLER
    folder, _, name = rest.partition("/")
    # The leader itself writes the sessions below a subscription. Owners of shared segments listen to those by
    # themselves.
    return StalePart.SUBSCRIPTIONS if folder == SUBSCRIPTIONS and name and "/" not in name else StalePart(0)
