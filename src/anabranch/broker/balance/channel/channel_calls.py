"""How other brokers write to the bundle state channel, and read it: requests to the leader over the links."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from anabranch.balance.core.states import BrokerRun
from anabranch.broker.peers.methods import PeerMethod
from anabranch.broker.peers.peers import Peers

# How long the leader waits for news before it answers that there are none.
NEWS_S: Final = 5.0


class ToldChange(msgspec.Struct, frozen=True, array_like=True):
    """A change of a bundle, as in the channel's topic."""

    bundle: str
    change: bytes


class AppendState(msgspec.Struct, frozen=True):
    change: ToldChange


class StateAppended(msgspec.Struct, frozen=True):
    # Where the change is; None if it was not appended.
    at: tuple[int, int] | None = None
    # Why it is not valid. If there is no reason either, the broker does not lead.
    refused: str = ""


class ReadStates(msgspec.Struct, frozen=True):
    """Asks for what came after a position, or for all states."""

    since: tuple[int, int] | None = None
    # Of a list of all states that is read in parts: its name, and how many of them were read.
    image: str = ""
    offset: int = 0
    # Whether to answer at once, also if there is nothing new.
    is_urgent: bool = False


class StatesRead(msgspec.Struct, frozen=True):
    """Changes after the position that was asked for, or a part of all states."""

    # With these changes, or with all states of the list, everything up to here is read.
    at: tuple[int, int]
    term: int
    changes: list[ToldChange] = []
    # Of a list of all states: its name, where these begin in it, and how many there are.
    image: str = ""
    offset: int = 0
    total: int = 0


BALANCE_APPEND: Final = PeerMethod("balance.append", AppendState, StateAppended)
BALANCE_READ: Final = PeerMethod("balance.read", ReadStates, StatesRead, answer_max_s=2 * NEWS_S)


class ChannelCalls(Protocol):
    """Requests to the leader. Both raise AnabranchError if there is no answer: the change may have been stored then."""

    async def append(self, leader: BrokerRun, request: AppendState) -> StateAppended: ...

    async def read(self, leader: BrokerRun, request: ReadStates) -> StatesRead: ...


class ServedChannel(Protocol):
    """What a broker does for others while it leads."""

    async def append_for(self, peer: str, request: AppendState) -> StateAppended: ...

    async def read_for(self, peer: str, request: ReadStates) -> StatesRead: ...


class LinkedChannel:
    """Implements `ChannelCalls` over links."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def append(self, leader: BrokerRun, request: AppendState) -> StateAppended:
        return await self._peers.call(leader.broker, BALANCE_APPEND, request)

    async def read(self, leader: BrokerRun, request: ReadStates) -> StatesRead:
        return await self._peers.call(leader.broker, BALANCE_READ, request)

    def serve(self, served: ServedChannel) -> None:
        """From now on other brokers' requests go there."""
        self._peers.handlers.add(BALANCE_APPEND, served.append_for)
        self._peers.handlers.add(BALANCE_READ, served.read_for)
