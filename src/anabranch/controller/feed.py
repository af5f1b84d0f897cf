"""One watch on every scalable topic's records, shared by all who follow one of them.

Ten thousand topics need one watch, not ten thousand. A listener is told which part of its topic to read again; it may
be told more often than anything changed, and after trouble with the store it is told everything. What is stored
elsewhere about topics is followed by one more watch for each such folder.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Flag, auto

from anabranch.metadata.port import MetadataStore, Watch
from anabranch.model.names import TopicName
from anabranch.model.scalable import (
    CONTROLLER,
    SUBSCRIPTIONS,
    TOPICS,
    segment_of_load_path,
    topic_of_path,
    topic_path,
)

log = logging.getLogger(__name__)


class Part(Flag):
    """What to read again."""

    RECORD = auto()
    CONTROLLER = auto()
    SUBSCRIPTIONS = auto()
    # The load of its segments. Only those hear of it who listen everywhere: it changes often, and few care.
    LOAD = auto()
    # How many partitions the classic topic of that name has.
    PARTITIONS = auto()
    ALL = RECORD | CONTROLLER | SUBSCRIPTIONS


Listener = Callable[[Part], None]
TopicAt = Callable[[str], TopicName | None]


class TopicFeed:
    """`start`, then `listen`. Listeners run on the event loop and must not wait."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._listeners: dict[str, list[Listener]] = {}
        self._everywhere: list[tuple[Part, Callable[[TopicName | None], None]]] = []
        self._folders: list[tuple[str, TopicAt, Part]] = []
        self._following: dict[asyncio.Task[None], Watch] = {}

    @property
    def listeners(self) -> int:
        return sum(map(len, self._listeners.values()))

    def follow(self, folder: str, topic_at: TopicAt, part: Part) -> None:
        """Before `start`: whatever changes below that folder is that part of the topic which `topic_at` names."""
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
        """Tell `listener` of every change to that topic from now on; the result ends it. Listen first, then read."""
        path = topic_path(topic)
        self._listeners.setdefault(path, []).append(listener)

        def stop() -> None:
            kept = self._listeners.get(path, [])
            if listener in kept:
                kept.remove(listener)
            if not kept:
                self._listeners.pop(path, None)

        return stop

    def listen_everywhere(
        self, listener: Callable[[TopicName | None], None], part: Part = Part.RECORD
    ) -> Callable[[], None]:
        """Tell `listener` the name of every topic of which that part changed; None for "any of them"."""
        entry = (part, listener)
        self._everywhere.append(entry)
        return lambda: self._everywhere.remove(entry) if entry in self._everywhere else None

    async def _follow(self, watch: Watch) -> None:
        async for changes in watch:
            if changes.everything:
                for path in list(self._listeners):
                    self._tell(path, Part.ALL)
                self._tell_everywhere(None, Part.ALL | Part.LOAD)
                continue
            parts: dict[str, Part] = {}
            for changed in sorted(changes.paths):  # The same order everywhere, whatever a set makes of it.
                topic = topic_of_path(changed)
                if topic is None:
                    continue
                path = topic_path(topic)
                part = (
                    Part.LOAD
                    if segment_of_load_path(changed) is not None
                    else _part(changed[len(path) + 1 :])
                )
                if part is not Part.LOAD:
                    parts[path] = parts.get(path, Part(0)) | part
                self._tell_everywhere(topic, part)
            for path, part in parts.items():
                self._tell(path, part)

    async def _follow_folder(self, watch: Watch, topic_at: TopicAt, part: Part) -> None:
        async for changes in watch:
            named = {topic_path(topic) for path in changes.paths if (topic := topic_at(path)) is not None}
            for path in list(self._listeners) if changes.everything else sorted(named):
                self._tell(path, part)

    def _tell(self, path: str, part: Part) -> None:
        for listener in list(self._listeners.get(path, ())):
            try:
                listener(part)
            except Exception:
                log.exception("a listener of %s failed", path)

    def _tell_everywhere(self, topic: TopicName | None, part: Part) -> None:
        for wanted, listener in list(self._everywhere):
            if not wanted & part:
                continue
            try:
                listener(topic)
            except Exception:
                log.exception("a listener of all topics failed at %s", topic)


def _part(rest: str) -> Part:
    if rest == "":
        return Part.RECORD
    if rest == CONTROLLER:
        return Part.CONTROLLER
    folder, _, name = rest.partition("/")
    # The sessions below a subscription are the leader's own writing: nobody else needs to hear of them.
    return Part.SUBSCRIPTIONS if folder == SUBSCRIPTIONS and name and "/" not in name else Part(0)
