"""The topics of a query on the driver, a feed for each: opened as topics join, closed as they leave.

Of several named topics those that are not there are looked for again and again. A namespace is watched. What joins or
leaves shows when `settle` is called, before each batch, so that a batch is planned over one set of topics.

Whether a topic was deleted, or made again, is the word of its own feed. A namespace's watch says which topics join, and
which no longer have the properties that are asked for: that a name is missing in its answer proves nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping
from typing import Final

from anabranch.client.connections import Backoff, Connections
from anabranch.client.errors import ConnectionLost, TopicDeleted, TopicMadeAgain
from anabranch.client.namespace_watch import NamespaceWatch, watch_backoff
from anabranch.client.topic_set import Change
from anabranch.errors import AnabranchError
from anabranch.model.cut import Cut
from anabranch.spark.ends import Following
from anabranch.spark.feed import InTime, TopicFeed
from anabranch.spark.options import Options

log = logging.getLogger(__name__)

# At once, so that a large namespace does not ask everything in one moment.
OPENING_MAX: Final = 50
# How often a topic is looked for that is named and not there.
MISSING_EVERY_S: Final = 1.0


class Feeds:
    """`open`, then `settle` before each look at `current`; `close` in the end."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._chance = random.Random()
        self.connections = Connections(options.service_url, options.security)
        self.following = Following()
        self._opening = asyncio.Semaphore(OPENING_MAX)
        self._current: dict[str, TopicFeed] = {}
        # Those that left, by name, until an offset without them was given.
        self._left: dict[str, TopicFeed] = {}
        # Opened for a batch that is run again, though the query reads them no more.
        self._former: dict[str, TopicFeed] = {}
        self._watch: NamespaceWatch | None = None
        self._watched: frozenset[str] = frozenset()
        self._missing_asked_s = 0.0
        self._ended: Exception | None = None

    @property
    def current(self) -> Mapping[str, TopicFeed]:
        return self._current

    @property
    def left(self) -> frozenset[str]:
        """Also those that were deleted and made again: they join as others do once they were let go."""
        return frozenset(self._left)

    async def open(self) -> None:
        """TopicDeleted if the one topic that is named does not exist."""
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
        backoff = watch_backoff(self._chance)
        async with InTime(self._options, f"which topics there are in {self._options.choice.namespace}"):
            while True:
                self._watch = NamespaceWatch(
                    self.connections,
                    self._options.choice.namespace,
                    dict(self._options.choice.filters),
                    changed=self._changed,
                    ended=self._has_ended,
                    backoff=watch_backoff(self._chance),
                )
                try:
                    return await self._watch.start()
                except ConnectionLost as error:
                    log.debug("the topics of %s are asked again: %s", self._options.choice.namespace, error)
                await backoff.wait()

    def _changed(self, change: Change) -> None:
        assert self._watch is not None
        self._watched = self._watch.topics
        self.following.note()

    def _has_ended(self, error: Exception) -> None:
        self._ended = error
        self.following.note()

    # -- what there is

    async def settle(self) -> None:
        """Follows all changes so far."""
        if self._ended is not None:
            raise self._ended
        choice = self._options.choice
        wanted = choice.of_those(choice.names or self._watched)
        for name, feed in list(self._current.items()):
            # One topic alone is all the query has: it fails without it, when it is next looked at.
            is_gone = feed.is_deleted and choice.names != (name,)
            if is_gone or (name not in wanted and not choice.is_by_name(name)):
                await self._leave(name)
        absent = wanted - self._current.keys() - self._left.keys()
        if absent and (not choice.is_named or self._is_time_to_look()):
            self._missing_asked_s = asyncio.get_running_loop().time()
            await self._open_all(absent)

    @property
    def is_one_due(self) -> bool:
        """Whether a topic that is named is not there and is to be looked for: nobody tells when it comes."""
        names = self._options.choice.names
        return any(name not in self._current for name in names) and self._is_time_to_look()

    def _is_time_to_look(self) -> bool:
        """Spark asks a hundred times a second what is new: nobody else needs to be asked as often."""
        return asyncio.get_running_loop().time() - self._missing_asked_s >= MISSING_EVERY_S

    async def _leave(self, name: str) -> None:
        feed = self._current.pop(name)
        await feed.close()
        self._left[name] = feed

    def forget(self, name: str) -> TopicFeed | None:
        """Of a topic that left: what is known of it, once an offset is given without it. It may join again then."""
        return self._left.pop(name, None)

    async def of(self, name: str) -> TopicFeed:
        """Also of a topic that the query reads no more. TopicDeleted if there is none."""
        feed = self._current.get(name) or self._former.get(name)
        if feed is None:
            feed = self._former[name] = await self._opened(name)
        return feed

    async def admin_url(self) -> str:
        """Where a broker answers admin requests; "" if none tells."""
        if self._options.admin_url is not None:
            return self._options.admin_url
        backoff = Backoff(self._chance)
        async with InTime(self._options, "where brokers answer admin requests"):
            while True:
                try:
                    return (await self.connections.service()).http_url
                except (AnabranchError, OSError) as error:
                    log.debug("a broker's address is asked for again: %s", error)
                await backoff.wait()

    async def exists(self, name: str, cut: Cut) -> bool:
        """Whether the topic that the cut is of is there: no other one of its name counts.

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
            if isinstance(feed, TopicFeed):
                self._current[name] = feed
            elif isinstance(feed, TopicDeleted) and may_be_missing:
                log.info("%s is not there: %s", name, feed)
            else:
                errors.append(feed)
        if errors:
            raise errors[0]

    async def _opened(self, name: str) -> TopicFeed:
        feed = TopicFeed(self._options, self.connections, name, self._chance, self.following)
        async with self._opening:
            await feed.open()
        return feed
