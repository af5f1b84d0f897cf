"""The election of the leader: the broker whose ephemeral node stands at `/loadbalance/leader`.

    /loadbalance/leader     {"brokerId": "host:port", "run": "…", "term": 7}
    /counters/leader        the terms that were given

A broker takes its term after it has won, so that a later winner has a higher one; until then the node's term is 0
and there is no leader. The term, and not the node, keeps a former leader from doing harm: the bundle state channel
refuses what leaders of earlier terms write. So two brokers may believe for a moment that they lead.

When the node goes, the brokers stand one after the other, in an order that changes with each term. Brokers that are
about to end resign and do not stand.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from anabranch.balance.core.states import BrokerRun
from anabranch.broker.catalog.registry import BrokerRegistry
from anabranch.metadata.errors import AlreadyExists, MetadataError, VersionConflict
from anabranch.metadata.followed import FollowedRecords
from anabranch.metadata.port import MetadataStore, SessionState, Versioned

log = logging.getLogger(__name__)

LEADER: Final = "/loadbalance/leader"
TERMS: Final = "/counters/leader"
# How much later than the one before it each broker stands.
STEP_S: Final = 0.15
# How long to wait before repeating what the store refused.
RETRY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    broker: BrokerRun
    term: int  # 0: elected, and about to take its term.

    def encode(self) -> bytes:
        value = {"brokerId": self.broker.broker, "run": self.broker.run, "term": self.term}
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, stored: bytes) -> LeaderRecord | None:
        try:
            value: dict[str, Any] = json.loads(stored)
            return cls(BrokerRun(str(value["brokerId"]), str(value["run"])), int(value["term"]))
        except (ValueError, KeyError, TypeError):
            return None


def standing_order(brokers: Iterable[str], term: int) -> list[str]:
    """In which order brokers stand after the leader of that term."""
    return sorted(brokers, key=lambda broker: blake2b(f"{term} {broker}".encode(), digest_size=8).digest())


class Leadership:
    """The registry must have been started before."""

    def __init__(self, metadata: MetadataStore, registry: BrokerRegistry, *, step_s: float = STEP_S) -> None:
        self._metadata = metadata
        self._registry = registry
        self._step_s = step_s
        self._me = BrokerRun(registry.me.id, registry.me.run_id)
        self._followed = FollowedRecords(metadata, LEADER, self._node_read, with_itself=True)
        # What was last read, and since when there was no node, by the loop's time.
        self._node: Versioned | None = None
        self._record: LeaderRecord | None = None
        self._vacant_since = 0.0
        self._term = 0
        # This broker has resigned, and there has been no other leader since.
        self._has_resigned = False
        self._told: tuple[BrokerRun | None, int] = (None, 0)
        self._listeners: list[Callable[[], None]] = []
        self._stops: list[Callable[[], None]] = []
        self._woken = asyncio.Event()
        self._standing: asyncio.Task[None] | None = None

    # -- life

    async def start(self) -> None:
        """Reads who leads. This broker stands if no broker does. A MetadataError of the first read is raised."""
        self._vacant_since = asyncio.get_running_loop().time()
        self._stops.append(self._metadata.session.on_change(self._session_changed))
        self._stops.append(self._registry.on_change(self._woken.set))
        await self._followed.start()
        self._standing = asyncio.create_task(self._stand_until_closed())  # Awaited by `close`.

    async def close(self) -> None:
        for stop in self._stops:
            stop()
        if self._standing is not None:
            self._standing.cancel()
            await asyncio.gather(self._standing, return_exceptions=True)
        with contextlib.suppress(MetadataError):
            await self.resign()
        await self._followed.close()

    # -- questions

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads, for all that it knows. A broker whose session was lost does not."""
        return self.leader() == self._me

    def leader(self) -> BrokerRun | None:
        """The broker that leads, as last read. It may have ended since."""
        if self._record is None or self._record.term == 0:
            return None
        if self._record.broker == self._me and not self._is_ours:
            return None
        return self._record.broker

    @property
    def term(self) -> int:
        """The newest term that was read: of the leader, or of the last one; 0 before the first one."""
        return self._term

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls `callback`, on the event loop, whenever `leader` or `term` has changed. Returns a function to stop."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    @property
    def _is_ours(self) -> bool:
        """Whether the node is of this broker's present session."""
        session = self._metadata.session
        is_ours = self._node is not None and self._node.owner == session.id
        return is_ours and session.state is not SessionState.LOST

    # -- standing

    async def resign(self) -> None:
        """Gives the leadership up, if this broker has it. It stands after all others from then on, until another
        broker has led."""
        node = self._node
        if node is None or not self._is_ours:
            return
        self._has_resigned = True
        with contextlib.suppress(VersionConflict):
            await self._metadata.delete(LEADER, if_version=node.version)
        self._take(None)

    async def _stand_until_closed(self) -> None:
        while True:
            self._woken.clear()
            try:
                wait_s = await self._step()
            except MetadataError as error:
                log.info("the election of a leader is repeated: %s", error)
                wait_s = RETRY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()

    async def _step(self) -> float | None:
        """Does what is to be done now. Returns after how long to look again if nothing changes before."""
        if self._metadata.session.state is not SessionState.CONNECTED:
            return None
        if self._is_ours:
            if self._registry.me.is_draining:
                await self.resign()
            elif not self.is_leader:
                await self._begin()
        elif self._node is not None:
            if self._record is not None and self._record.broker.broker == self._me.broker:
                # A former run of this broker, or a former session: it is over, and its node ends with its session.
                await self._metadata.delete(LEADER, if_version=self._node.version)
        elif self._registry.is_registered and not self._registry.me.is_draining:
            left_s = self._vacant_since + self._delay_s() - asyncio.get_running_loop().time()
            if left_s > 0:
                return left_s
            await self._stand()
        return None

    def _delay_s(self) -> float:
        able = [one.id for one in self._registry.living().values() if not one.is_draining]
        order = standing_order(able, self._term)
        rank = order.index(self._me.broker) if self._me.broker in order else len(order)
        return self._step_s * (rank + len(order) if self._has_resigned else rank)

    async def _stand(self) -> None:
        try:
            self._take(
                await self._metadata.create(LEADER, LeaderRecord(self._me, 0).encode(), ephemeral=True)
            )
        except AlreadyExists:
            self._take(await self._metadata.get(LEADER))
            return
        await self._begin()

    async def _begin(self) -> None:
        """Takes a term, and tells the others. Also where the node has another broker's record: that one had won with a
        session that it has lost, and has written here before it knew."""
        node = self._node
        assert node is not None, "this broker has won"
        term = await self._metadata.next_id(TERMS) + 1
        stored: Versioned | None
        try:
            stored = await self._metadata.put(
                LEADER, LeaderRecord(self._me, term).encode(), if_version=node.version
            )
        except VersionConflict:
            stored = await self._metadata.get(LEADER)
        self._take(stored)
        if self.is_leader:
            log.info("this broker leads from now on, term %d", term)

    # -- what is read

    def _node_read(self, records: Mapping[str, Versioned | None]) -> None:
        if LEADER in records:
            self._take(records[LEADER])

    def _take(self, node: Versioned | None) -> None:
        before, self._node = self._node, node
        self._record = None if node is None else LeaderRecord.decode(node.value)
        if node is None and before is not None:
            self._vacant_since = asyncio.get_running_loop().time()
        if self._record is not None:
            self._term = max(self._term, self._record.term)
            self._has_resigned = self._has_resigned and self._record.broker == self._me
        self._woken.set()
        self._tell()

    def _session_changed(self, state: SessionState) -> None:
        self._woken.set()
        self._tell()

    def _tell(self) -> None:
        now = (self.leader(), self._term)
        if now != self._told:
            self._told = now
            for callback in list(self._listeners):
                callback()
