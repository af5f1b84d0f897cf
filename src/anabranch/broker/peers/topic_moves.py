"""Topics that move between brokers, over the links: the new owner asks the former one to release a topic, and a broker
that loses topics asks their new owner to open them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import msgspec

from anabranch.broker.catalog.owners import BrokerAddress
from anabranch.broker.catalog.resources import MANAGED_LEDGERS
from anabranch.broker.errors import NotReadyError
from anabranch.broker.peers.methods import Nothing, PeerMethod
from anabranch.broker.peers.peers import Peers
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName
from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.port import LedgerState

log = logging.getLogger(__name__)

# A former owner that takes longer is fenced.
RELEASE_MAX_S: Final = 2.0
OPEN_MAX_S: Final = 5.0


class ReleaseTopic(msgspec.Struct, frozen=True):
    topic: str
    ledger: int


class ToldLedger(msgspec.Struct, frozen=True):
    """`LedgerState`, on its way."""

    entries_end: int
    snapshot: bytes | None = None
    deltas: tuple[bytes, ...] = ()
    size: int = 0
    messages: int = -1


class ReleasedTopic(msgspec.Struct, frozen=True):
    # None: the ledger must be fenced.
    ledger: ToldLedger | None = None


class OpenThese(msgspec.Struct, frozen=True):
    topics: list[str]


RELEASE_TOPIC: Final = PeerMethod("topics.release", ReleaseTopic, ReleasedTopic, answer_max_s=RELEASE_MAX_S)
OPEN_TOPICS: Final = PeerMethod("topics.open", OpenThese, Nothing, answer_max_s=OPEN_MAX_S)


class MovingTopics(Protocol):
    """What a broker does with its topics for others; `HandOver` implements it."""

    async def release(self, name: TopicName, ledger: LedgerId) -> LedgerState | None: ...

    async def open(self, names: Iterable[TopicName]) -> None: ...


class CallsOfMoves(Protocol):
    """This broker's calls to others, as `LastWord` and `TellOpen` say."""

    async def last_word(
        self, incarnation: Incarnation, ledger: LedgerId, path: str
    ) -> LedgerState | None: ...

    async def tell_open(self, owner: BrokerAddress, topics: Sequence[TopicName]) -> None: ...


class TopicMoves:
    """Implements `CallsOfMoves` over links."""

    def __init__(self, peers: Peers, writer_of: Callable[[Incarnation], str | None]) -> None:
        """`writer_of` gives the id of the living broker that writes the log of that incarnation."""
        self._peers = peers
        self._writer_of = writer_of

    async def last_word(self, incarnation: Incarnation, ledger: LedgerId, path: str) -> LedgerState | None:
        """NotReadyError if that broker keeps the topic; None if it has ended, cannot be reached, or cannot say."""
        writer = self._writer_of(incarnation)
        if writer is None:
            return None
        name = TopicName.from_storage_path(path.removeprefix(f"{MANAGED_LEDGERS}/"))
        try:
            answer = await self._peers.call(writer, RELEASE_TOPIC, ReleaseTopic(str(name), ledger))
        except NotReadyError:
            raise
        except AnabranchError as error:
            log.warning("%s: %s does not release it and is fenced: %s", name, writer, error)
            return None
        if (told := answer.ledger) is None:
            return None
        return LedgerState(told.entries_end, told.snapshot, told.deltas, told.size, told.messages)

    async def tell_open(self, owner: BrokerAddress, topics: Sequence[TopicName]) -> None:
        await self._peers.call(owner.service_url, OPEN_TOPICS, OpenThese([str(name) for name in topics]))


class ServedMoves:
    """The other end: what this broker does for others."""

    def __init__(self, topics: MovingTopics) -> None:
        self._topics = topics

    def serve(self, peers: Peers) -> None:
        peers.handlers.add(RELEASE_TOPIC, self._release)
        peers.handlers.add(OPEN_TOPICS, self._open)

    async def _release(self, peer: str, request: ReleaseTopic) -> ReleasedTopic:
        state = await self._topics.release(TopicName.parse(request.topic), LedgerId(request.ledger))
        if state is None:
            return ReleasedTopic()
        return ReleasedTopic(
            ToldLedger(state.entries_end, state.snapshot, state.deltas, state.bytes, state.messages)
        )

    async def _open(self, peer: str, request: OpenThese) -> Nothing:
        await self._topics.open([TopicName.parse(name) for name in request.topics])
        return Nothing()
