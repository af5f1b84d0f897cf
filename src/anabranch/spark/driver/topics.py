"""The topics of a query on the driver, a `DriverTopic` for each: opened as topics join, closed as they leave.

Named topics that do not exist are looked for repeatedly, if several are named. A namespace is watched. Changes take
effect when `settle` is called, before each batch, so that a batch is planned over one set of topics.

The topic's own watch decides whether it was deleted, or created again. A namespace's watch says which topics join, and
which no longer have the required properties: a name that is missing in its answer proves nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping
from typing import Final

from anabranch.client.errors import TopicDeleted, TopicMadeAgain
from anabranch.client.transport.attachment import Backoff, keep_trying, never, unless_lost
from anabranch.client.transport.core.topic_diff import TopicChange
from anabranch.client.transport.namespace_watch import NamespaceWatch, watch_backoff
from anabranch.client.transport.pool import Connections
from anabranch.model.cut import Cut
from anabranch.spark.driver.latest import Following
from anabranch.spark.driver.topic import DriverTopic, InTime
from anabranch.spark.options.source import Options

log = logging.getLogger(__name__)

# How many are opened at once, so that a large namespace does not send all its requests in one moment.
OPENING_MAX: Final = 50
# How often a named topic that does not exist is looked for.
MISSING_EVERY_S: Final = 1.0


class Feeds:
    """Call `open`, then `settle` before each use of `current`; `close` at the end."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._chance = random.Random()
        self.connections = Connections(options.service_url, options.security)
        self.following = Following()
        self._opening = asyncio.Semaphore(OPENING_MAX)
        self._current: dict[str, DriverTopic] = {}
        # Topics that left, by name, until an offset without them was given.
        self._left: dict[str, DriverTopic] = {}
        # Opened for a batch that is run again, though the query does not read them any more.
        self._former: dict[str, DriverTopic] = {}
        self._watch: NamespaceWatch | None = None
        self._watched: frozenset[str] = frozenset()
        self._missing_asked_s = 0.0
        self._ended: Exception | None = None

    @property
    def current(self) -> Mapping[str, DriverTopic]:
        return self._current

    @property
    def left(self) -> frozenset[str]:
        """Includes topics that were deleted and created again: they join like others once `forget` was called."""
        return frozenset(self._left)

    async def open(self) -> None:
        """Raises TopicDeleted if the only named topic does not exist."""
        choice = self._options.choice
        if choice.is_named:
            await self._open_all(choice.names, may_be_missing=len(choice.names) > 1)
        else:
            self._watched = await self._first_names()
            await self._open_all(choice.of_those(self._watched))

    async def close(self) -> None:
        if self._watch is not None:
            await self._watch.close()
        feeds = [*self._current.values(), *self._left.values(), *self._former.values()]
        await asyncio.gather(*(feed.close() for feed in feeds))
        await self.following.close()
        await self.connections.close()

    # -- a namespace

    async def _first_names(self) -> frozenset[str]:
        namespace = self._options.choice.namespace
        self._watch = NamespaceWatch(
            self.connections,
            namespace,
            dict(self._options.choice.filters),
            changed=self._changed,
            ended=self._has_ended,
            backoff=watch_backoff(self._chance),
        )
        async with InTime(self._options, f"which topics there are in {namespace}"):
            return await keep_trying(
                self._watch.start, watch_backoff(self._chance), f"the topics of {namespace}", unless_lost
            )

    def _changed(self, change: TopicChange) -> None:
        assert self._watch is not None
        self._watched = self._watch.topics
        self.following.note()

    def _has_ended(self, error: Exception) -> None:
        self._ended = error
        self.following.note()

    # -- the current topics

    async def settle(self) -> None:
        """Follows all changes so far."""
        if self._ended is not None:
            raise self._ended
        choice = self._options.choice
        wanted = choice.of_those(choice.names or self._watched)
        for name, feed in list(self._current.items()):
            # A single topic is all that the query has: without it the query fails at the topic's next use.
            is_gone = feed.is_deleted and choice.names != (name,)
            if is_gone or (name not in wanted and not choice.is_by_name(name)):
                await self._leave(name)
        absent = wanted - self._current.keys() - self._left.keys()
        if absent and (not choice.is_named or self._is_time_to_look()):
            self._missing_asked_s = asyncio.get_running_loop().time()
            await self._open_all(absent)

    @property
    def is_one_due(self) -> bool:
        """Whether a named topic is missing and is to be looked for: no event announces it."""
        names = self._options.choice.names
        return any(name not in self._current for name in names) and self._is_time_to_look()

    def _is_time_to_look(self) -> bool:
        """Spark asks a hundred times a second what is new: brokers need not be asked as often."""
        return asyncio.get_running_loop().time() - self._missing_asked_s >= MISSING_EVERY_S

    async def _leave(self, name: str) -> None:
        feed = self._current.pop(name)
        await feed.close()
        self._left[name] = feed

    def forget(self, name: str) -> DriverTopic | None:
        """Forgets a topic that left, once an offset is given without it, and returns it. The topic may join again
        then."""
        return self._left.pop(name, None)

    async def of(self, name: str) -> DriverTopic:
        """The topic, even if the query does not read it any more. Raises TopicDeleted if it does not exist."""
        feed = self._current.get(name) or self._former.get(name)
        if feed is None:
            feed = self._former[name] = await self._opened(name)
        return feed

    async def admin_url(self) -> str:
        """The address for admin requests; "" if no broker gives it."""
        if self._options.admin_url is not None:
            return self._options.admin_url
        async with InTime(self._options, "where brokers answer admin requests"):
            connection = await keep_trying(
                self.connections.service, Backoff(self._chance), "a broker's admin address", never
            )
            return connection.http_url

    async def exists(self, name: str, cut: Cut) -> bool:
        """Whether the cut's own topic exists: another topic of its name does not count.

        If its name alone says that the query reads it, it is among the current ones from here on.
        """
        try:
            feed = await self._opened(name)
        except TopicDeleted:
            return False
        try:
            await feed.check(cut)
        except TopicMadeAgain:
            await feed.close()
            return False
        if self._options.choice.is_by_name(name):
            self._current[name] = feed
        else:
            await feed.close()
        return True

    async def _open_all(self, names: Iterable[str], *, may_be_missing: bool = True) -> None:
        ordered = sorted(names)
        found = await asyncio.gather(*(self._opened(name) for name in ordered), return_exceptions=True)
        errors: list[BaseException] = []
        for name, feed in zip(ordered, found, strict=True):
            if isinstance(feed, DriverTopic):
                self._current[name] = feed
            elif isinstance(feed, TopicDeleted) and may_be_missing:
                log.info("topic %s does not exist: %s", name, feed)
            else:
                errors.append(feed)
        if errors:
            raise errors[0]

    async def _opened(self, name: str) -> DriverTopic:
        feed = DriverTopic(self._options, self.connections, name, self._chance, self.following)
        async with self._opening:
            await feed.open()
        return feed
