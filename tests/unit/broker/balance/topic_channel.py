"""The bundle state channel on a real topic: brokers on one memory medium, of which a test says who leads.

Calls between the brokers are made directly, and fail while a broker is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from anabranch.balance.core.states import BrokerRun
from anabranch.balance.core.transfer import LeaderHand
from anabranch.broker.balance.channel.channel_calls import AppendState, ReadStates, StateAppended, StatesRead
from anabranch.broker.balance.channel.topic_state_log import TopicStateLog
from anabranch.broker.catalog.owners import BrokerAddress
from anabranch.broker.peers.errors import PeerUnavailable
from anabranch.broker.topic.topic import Topic
from anabranch.model.leaders_topics import CHANNEL_TOPIC
from anabranch.model.names import TopicName
from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.memory import MemoryLogStore
from anabranch.storage.port import LedgerState
from unit.broker.scalable.cluster import NOW_MS, Cluster, Node, running

T = TypeVar("T")


@dataclass
class Elected:
    """Implements `KnownLeader`: the broker that the test wants."""

    found: BrokerRun | None = None
    listeners: list[Callable[[], None]] = field(default_factory=list)

    def leader(self) -> BrokerRun | None:
        return self.found

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(callback)
        return lambda: self.listeners.remove(callback)

    def tell(self, leader: BrokerRun | None) -> None:
        self.found = leader
        for callback in list(self.listeners):
            callback()


class DirectCalls:
    """Implements `ChannelCalls` without a link between."""

    def __init__(self, me: BrokerRun, members: dict[BrokerRun, Member]) -> None:
        self._me = me
        self._members = members
        self._is_cut = asyncio.Event()

    def cut(self) -> None:
        self._is_cut.set()

    def restore(self) -> None:
        self._is_cut.clear()

    async def append(self, leader: BrokerRun, request: AppendState) -> StateAppended:
        return await self._call(self._at(leader).log.append_for(self._me.broker, request))

    async def read(self, leader: BrokerRun, request: ReadStates) -> StatesRead:
        return await self._call(self._at(leader).log.read_for(self._me.broker, request))

    def _at(self, leader: BrokerRun) -> Member:
        if leader not in self._members or self._is_cut.is_set():
            raise PeerUnavailable(f"{leader} cannot be reached")
        return self._members[leader]

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        asked, cut = asyncio.ensure_future(work), asyncio.ensure_future(self._is_cut.wait())
        try:
            await asyncio.wait([asked, cut], return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                raise PeerUnavailable("the connection was lost")
            return await asked
        finally:
            # As over a link: what the other broker has begun goes on.
            cut.cancel()
            asked.add_done_callback(lambda done: done.cancelled() or done.exception())


@dataclass
class Member:
    """One broker."""

    run: BrokerRun
    number: int
    node: Node
    election: Elected
    calls: DirectCalls
    log: TopicStateLog


class SilentMoves:
    """Implements `CallsOfMoves`: no other broker answers."""

    async def last_word(self, incarnation: Incarnation, ledger: LedgerId, path: str) -> LedgerState | None:
        return None

    async def tell_open(self, owner: BrokerAddress, topics: Sequence[TopicName]) -> None:
        raise PeerUnavailable("no answer")


class TopicChannel:
    """Implements the `Channel` of the contract."""

    def __init__(self, brokers: int = 3, *, is_silent: bool = False, **settings: int | float) -> None:
        """`is_silent`: a former leader releases nothing, so that the next one must fence it. `settings` are those of
        `TopicStateLog`."""
        self.brokers = brokers
        self.moves = SilentMoves() if is_silent else None
        self.settings: dict[str, Any] = settings
        self.members: dict[BrokerRun, Member] = {}
        self.term = 0
        self.leader: BrokerRun | None = None
        self.stack = contextlib.AsyncExitStack()
        self.cluster: Cluster | None = None

    async def _started(self) -> Cluster:
        if self.cluster is None:
            self.cluster = await self.stack.enter_async_context(
                running(self.brokers, moves=lambda nodes: self.moves)
            )
        return self.cluster

    async def join(self, broker: BrokerRun) -> TopicStateLog:
        cluster = await self._started()
        number = len(self.members)
        node = cluster.nodes[number]

        async def open_topic() -> Topic:
            await node.broker.new_topics.create(CHANNEL_TOPIC)
            return await node.broker.topic(CHANNEL_TOPIC)

        election, calls = Elected(self.leader), DirectCalls(broker, self.members)
        log = TopicStateLog(broker, election, calls, open_topic, lambda: NOW_MS, **self.settings)
        self.members[broker] = Member(broker, number, node, election, calls, log)
        await log.start()
        return log

    def tell(self, leader: BrokerRun | None, *brokers: BrokerRun) -> None:
        """These brokers, or all, hear that this one leads."""
        for broker in brokers or tuple(self.members):
            self.members[broker].election.tell(leader)

    async def elect(self, broker: BrokerRun) -> LeaderHand:
        cluster = await self._started()
        self.term += 1
        former, self.leader = self.leader, broker
        cluster.move(CHANNEL_TOPIC, self.members[broker].number)
        self.tell(broker)
        if former is not None and former in self.members:
            await self.members[former].log.resign()
        await self.members[broker].log.lead(self.term)
        return LeaderHand(broker, self.term)

    async def cut(self, broker: BrokerRun) -> None:
        self.members[broker].calls.cut()

    async def restore(self, broker: BrokerRun) -> None:
        self.members[broker].calls.restore()

    def believe(self, owner: BrokerRun, *brokers: BrokerRun) -> None:
        """These brokers take that one for the owner of the channel's topic, and are not told of it."""
        assert self.cluster is not None
        for broker in brokers:
            self.cluster.owners[self.members[broker].number].moved[CHANNEL_TOPIC] = self.members[owner].number

    def kill(self, broker: BrokerRun) -> None:
        """What is not confirmed is lost, and this broker confirms nothing more."""
        store = self.members[broker].node.broker.log
        assert isinstance(store, MemoryLogStore)
        store.fail()
        self.members[broker].calls.cut()
        self.members[broker].election.tell(None)

    def topic(self, broker: BrokerRun) -> Topic:
        """The channel's topic, which is open at that broker."""
        found = self.members[broker].node.broker.opened(CHANNEL_TOPIC)
        assert found is not None
        return found

    async def close(self) -> None:
        for member in self.members.values():
            await member.log.close()
        await self.stack.aclose()
