"""A client's view of the names in a namespace that match its pattern, kept up to date (commands 64 to 67)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final, Protocol

from anabranch.broker.connection.topic_patterns import Pattern
from anabranch.broker.scalable.watch.namespace_watch import WatchLink
from anabranch.model.names import InvalidName, NamespaceName
from anabranch.model.topic_hash import topic_hash
from anabranch.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)

WINDOW_S: Final = 0.05
NAMES_PER_UPDATE: Final = 10_000

C = pb.BaseCommand


class ListedNames(Protocol):
    """The names that a watch reports; `TopicLists` implements it."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def names(self, namespace: NamespaceName) -> AbstractSet[str]:
        """The topics of a namespace that is watched."""

    def hash_of(self, key: tuple[NamespaceName, str], matching: AbstractSet[str]) -> str:
        """The hash of all names that match that namespace's pattern now."""


class TopicListWatch:
    """One watch of one client."""

    def __init__(
        self,
        lists: ListedNames,
        link: WatchLink,
        request: pb.CommandWatchTopicList,
        ended: Callable[[TopicListWatch], None],
    ) -> None:
        """`ended` is called if the watch ends for a reason of its own."""
        self.id = request.watcher_id
        self.namespace = NamespaceName.parse(request.namespace)
        self.pattern = Pattern(request.topics_pattern)
        self.key = self.namespace, request.topics_pattern
        self._lists = lists
        self._link = link
        self._ended = ended
        self._told: set[str] = set()
        # Names that were added or removed since; None: any may have been.
        self._changed: set[str] | None = set()
        self._window: asyncio.TimerHandle | None = None
        self._is_held = False

    def begin(self, request_id: int, known_hash: str) -> None:
        """Answers with the whole list, or with none if the client has that list already."""
        names = self.pattern.matching(self._lists.names(self.namespace))
        self._told = set(names)
        self._changed = set()
        answer = C(type=C.WATCH_TOPIC_LIST_SUCCESS)
        success = answer.watchTopicListSuccess
        success.request_id, success.watcher_id = request_id, self.id
        success.topics_hash = self._lists.hash_of(self.key, self._told)
        if success.topics_hash != known_hash:
            success.topic.extend(names)
        self._link.send(answer)

    def changed(self, name: str | None) -> None:
        """That name was added or removed; None for any number of names."""
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
        if not self._link.is_writable:
            self._is_held = True
            return
        try:
            added, removed = self._difference()
        except InvalidName as error:
            # The protocol has no command for this.
            log.info("ending a topic list watch of %s: %s", self.namespace, error)
            self._ended(self)
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
            self._link.send(update)

    def _difference(self) -> tuple[list[str], list[str]]:
        """Names that exist and were not sent, and names that were sent and do not exist any more."""
        names = self._lists.names(self.namespace)
        changed, self._changed = self._changed, set()
        if changed is None:
            now = set(self.pattern.matching(names))
            return sorted(now - self._told), sorted(self._told - now)
        added = self.pattern.matching((changed & names) - self._told)
        return sorted(added), sorted((changed & self._told) - names)
