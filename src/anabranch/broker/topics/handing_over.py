"""Topics that move to another broker: how their former owner lets go of them, and where it sends their clients.

A hand-over is pulled. The broker that opens a topic asks the former owner to release it. The former owner confirms what
it has accepted, closes the topic and its ledger, and answers with the ledger's final state, so that the new owner need
neither fence nor recover anything. A broker that loses topics with clients asks the new owner to open them, which then
pulls them.

None of this decides who may write. A ledger that was released is never opened again, and the topic's record changes
only by compare-and-set. A request that comes late, twice, or from a broker that is mistaken about the owner costs time
and nothing else. Two brokers that disagree about the owner wait for their views to agree: the one that has the topic
open keeps it meanwhile, so that it does not go back and forth between them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from typing import Final
from weakref import WeakValueDictionary

from anabranch.broker.catalog.owners import BrokerAddress, Owners
from anabranch.broker.config.listeners import Addresses
from anabranch.broker.errors import NotReadyError
from anabranch.broker.runtime.background import Background
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topics.open_topics import OpenTopics
from anabranch.errors import AnabranchError
from anabranch.model.bundles import BundleName
from anabranch.model.names import TopicName
from anabranch.model.position import LedgerId
from anabranch.storage.port import LedgerState, LogError, LogStore

log = logging.getLogger(__name__)

# How many topics are asked for with one request, and how many requests to one broker are under way: the new owner has
# the next wave when it has opened one. A wave that is not opened in time is closed as a whole, so it must be small, and
# not wait for those of other bundles. Bundles that move at the same time take turns, wave by wave.
WAVE_TOPICS: Final = 16
WAVES_AT_ONCE: Final = 2
# How many topics the new owner opens at once for others. A topic is closed at its former owner only when the new one
# opens it, and its clients wait for those that are opened at the same time. More of them would hardly be faster: two
# loops and the metadata process have enough to do with two. A single one that takes long would hold up the others.
OPENED_AT_ONCE: Final = 2
# How long a broker waits for its view of the owners to become the other one's.
AGREE_MAX_S: Final = 1.0
# How long the new owner may take to open a wave of topics.
OPEN_MAX_S: Final = 5.0

# The broker that a topic goes to, or has gone to; None if there is none, or it is not known.
Destination = Callable[[TopicName], BrokerAddress | None]
# Asks a broker to open topics. Returns once it has opened those that it could.
TellOpen = Callable[[BrokerAddress, Sequence[TopicName]], Awaitable[None]]


async def tell_none(owner: BrokerAddress, topics: Sequence[TopicName]) -> None:
    """Asks no broker: topics are opened by their clients' requests."""


class HandOver:
    def __init__(
        self,
        open_topics: OpenTopics,
        owners: Owners,
        log_store: LogStore,
        background: Background,
        tell_open: TellOpen = tell_none,
        *,
        destination: Destination | None = None,
        names_owners: bool = True,
        agree_max_s: float = AGREE_MAX_S,
        open_max_s: float = OPEN_MAX_S,
    ) -> None:
        """`destination` gives the broker that a topic goes to; by default its owner."""
        self._open_topics = open_topics
        self._owners = owners
        self._log = log_store
        self._background = background
        self._tell_open = tell_open
        self._destination = destination or owners.owner
        # Whether clients can reach other brokers at their own addresses.
        self._names_owners = names_owners
        self._agree_max_s = agree_max_s
        self._open_max_s = open_max_s
        self._opening = asyncio.Semaphore(OPENED_AT_ONCE)
        self._waves: WeakValueDictionary[BrokerAddress, asyncio.Semaphore] = WeakValueDictionary()
        # The topics that are being moved, each with the end of its move.
        self._moving: dict[Topic, asyncio.Future[None]] = {}

    # -- for other brokers

    async def release(self, name: TopicName, ledger: LedgerId) -> LedgerState | None:
        """Lets go of a topic for a broker that opens it: the final state of the topic's ledger there, which is closed
        now. The same request later has the same answer.

        None if this broker cannot give it, and the ledger must be fenced. NotReadyError if the topic belongs here: the
        other broker must not open it."""
        if not await self._agree(lambda: not self._owners.is_mine(name)):
            raise NotReadyError(f"{name} is served by another broker: look it up again")
        topic = await self._open_topics.settled(name)
        if topic is not None and topic.log.ledger == ledger:
            await topic.close(self.moved_to(name))
        try:
            return (await self._log.release([ledger])).get(ledger)
        except LogError as error:
            log.warning("%s: ledger %s cannot be released, it will be fenced: %s", name, ledger, error)
            return None

    async def open(self, names: Iterable[TopicName]) -> None:
        """Opens topics that another broker has lost to this one. What cannot be opened is left to its clients."""
        await asyncio.gather(*(self._open(name) for name in names))

    async def _open(self, name: TopicName) -> None:
        try:
            if await self._agree(lambda: self._owners.is_mine(name)):
                async with self._opening:
                    await self._open_topics.topic(name)
        except AnabranchError as error:
            log.info("%s: not opened before its clients ask for it: %s", name, error)

    async def _agree(self, claim: Callable[[], bool]) -> bool:
        """Whether the claim about owners is true, or becomes true before the time is over."""
        if claim():
            return True
        changed = asyncio.Event()
        stop = self._owners.on_change(lambda _: changed.set())
        try:
            async with asyncio.timeout(self._agree_max_s):
                while not claim():
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            return claim()
        finally:
            stop()
        return True

    # -- topics that this broker loses

    def owners_changed(self, bundles: Collection[BundleName]) -> None:
        """Moves the topics that this broker does not own any more."""
        spaces = {bundle.namespace for bundle in bundles}
        self._begin(self._lost(lambda name: name.namespace in spaces))

    async def let_go(self, holds: Callable[[TopicName], bool]) -> None:
        """Returns once none of these topics is open here that belongs to another broker. Those with clients are with
        that broker then, as far as it could open them. A caller that is cancelled stops none of it."""
        while lost := self._lost(holds):
            self._begin(lost)
            ends = dict.fromkeys(self._moving[topic] for topic in lost)
            await asyncio.gather(*(asyncio.shield(end) for end in ends))
            # Those that something else closes at the same time.
            await asyncio.gather(*(topic.wait_closed() for topic in lost if topic.is_closed))

    def here(self, holds: Callable[[TopicName], bool]) -> int:
        """How many of these topics are open here."""
        return sum(1 for name in self._open_topics.all() if holds(name))

    def left(self, holds: Callable[[TopicName], bool]) -> int:
        """How many of these topics are open here, though they belong to another broker."""
        return len(self._lost(holds))

    async def give_away(self) -> None:
        """Moves all topics: this broker is about to end, and the owners say so."""
        await self._agree(lambda: len(self._lost()) == len(self._open_topics.all()))
        await self.let_go(lambda name: True)

    def _lost(self, holds: Callable[[TopicName], bool] = lambda name: True) -> list[Topic]:
        return [
            topic
            for name, topic in self._open_topics.all().items()
            if holds(name) and not self._owners.is_mine(name)
        ]

    def _begin(self, topics: Sequence[Topic]) -> None:
        """Begins to move those of the topics that are not on their way already."""
        if moved := [topic for topic in topics if topic not in self._moving]:
            end = asyncio.get_running_loop().create_future()
            self._moving |= dict.fromkeys(moved, end)
            self._background.run(self._move(moved, end))

    async def _move(self, moved: Sequence[Topic], end: asyncio.Future[None]) -> None:
        try:
            used: dict[BrokerAddress, list[Topic]] = {}
            idle: list[Topic] = []
            for topic in moved:
                owner = self._destination(topic.name)
                if owner is None or not topic.has_clients:
                    idle.append(topic)
                else:
                    used.setdefault(owner, []).append(topic)
            await asyncio.gather(*(self._move_to(owner, some) for owner, some in used.items()))
            for wave in _waves(idle):
                await self._close(wave)
        finally:
            for topic in moved:
                del self._moving[topic]
            end.set_result(None)

    async def _move_to(self, owner: BrokerAddress, topics: Sequence[Topic]) -> None:
        waves = iter(_waves(topics))
        gate = self._waves.setdefault(owner, asyncio.Semaphore(WAVES_AT_ONCE))
        await asyncio.gather(*(self._move_waves(owner, waves, gate) for _ in range(WAVES_AT_ONCE)))

    async def _move_waves(
        self, owner: BrokerAddress, waves: Iterator[Sequence[Topic]], gate: asyncio.Semaphore
    ) -> None:
        """Moves what is left of the waves, which others take from as well."""
        for wave in waves:
            async with gate:
                await self._move_wave(owner, wave)

    async def _move_wave(self, owner: BrokerAddress, wave: Sequence[Topic]) -> None:
        names = [topic.name for topic in wave if self._is_lost(topic)]
        try:
            if names:
                async with asyncio.timeout(self._open_max_s):
                    await self._tell_open(owner, names)
        except (AnabranchError, OSError, TimeoutError) as error:
            log.warning("%s did not open %d topics: %r", owner.service_url, len(names), error)
        # The new owner has released most of them by opening them.
        await self._close(wave)

    async def _close(self, topics: Sequence[Topic]) -> None:
        lost = [topic for topic in topics if self._is_lost(topic)]
        closings = [topic.close(self.moved_to(topic.name)) for topic in lost]
        for topic, done in zip(lost, await asyncio.gather(*closings, return_exceptions=True), strict=True):
            if isinstance(done, Exception):
                log.error("%s: closing it failed", topic.name, exc_info=done)

    def _is_lost(self, topic: Topic) -> bool:
        """Not one that has come back meanwhile."""
        return not topic.is_closed and not self._owners.is_mine(topic.name)

    def moved_to(self, name: TopicName) -> Addresses | None:
        """Where the clients of a topic that is closed here go, if that is known."""
        if not self._names_owners or self._owners.is_mine(name):
            return None
        owner = self._destination(name)
        return None if owner is None else owner.for_clients


def _waves(topics: Sequence[Topic]) -> Iterable[Sequence[Topic]]:
    return (topics[first : first + WAVE_TOPICS] for first in range(0, len(topics), WAVE_TOPICS))
