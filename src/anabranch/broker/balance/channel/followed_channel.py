"""The other brokers' half of the bundle state channel: they read it from the leader, again and again.

The leader answers when there is something new. A broker that is too far behind, or has just started, reads all states
in parts first. Positions are those of the topic, so that reading goes on where it was when another broker leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from anabranch.balance.core.codec import BadChange, decode_change, encode_change
from anabranch.balance.core.fold import Fold
from anabranch.balance.core.states import BrokerRun, BundleChange
from anabranch.broker.balance.channel.channel_calls import ChannelCalls, ReadStates, StatesRead, ToldChange
from anabranch.errors import AnabranchError
from anabranch.model.position import Position

log = logging.getLogger(__name__)

RETRY_S: Final = 0.1


def told(change: BundleChange) -> ToldChange:
    return ToldChange(str(change.bundle), encode_change(change))


def changes_in(told: Sequence[ToldChange]) -> list[BundleChange]:
    """BadChange if one of them cannot be read."""
    return [decode_change(one.bundle, one.change) for one in told]


class FollowedChannel:
    """What was read from leaders, into the fold that is given."""

    def __init__(
        self, calls: ChannelCalls, fold: Fold, changed: Callable[[Sequence[BundleChange]], None]
    ) -> None:
        """`changed` is called with the accepted changes of each answer, and with the states that are others than before
        when all were read."""
        self._calls = calls
        self._fold = fold
        self._changed = changed
        # Everything up to here was read; None if nothing was.
        self.at: Position | None = None
        # A list of all states of which a part was read.
        self._image = ""
        self._parts: list[BundleChange] = []
        self._is_heard = False
        self._last_heard_s = asyncio.get_running_loop().time()
        self._waiting: list[tuple[Position, asyncio.Future[None]]] = []
        self._trouble = ""  # What was logged last.

    @property
    def is_heard(self) -> bool:
        """Whether the leader has answered last, and everything that it had was read."""
        return self._is_heard and self.at is not None

    @property
    def silent_s(self) -> float:
        return 0.0 if self.is_heard else asyncio.get_running_loop().time() - self._last_heard_s

    def lost(self) -> None:
        """There is no leader to read from, or another one."""
        if self._is_heard:
            self._is_heard = False
            self._last_heard_s = asyncio.get_running_loop().time()

    def stands_at(self, at: Position) -> None:
        """This broker has read everything up to there by itself."""
        self._image, self._parts = "", []
        self._passed(at)

    def _passed(self, at: Position) -> None:
        self.at = at
        for wanted, done in self._waiting:
            if at >= wanted and not done.done():
                done.set_result(None)

    async def follow(self, leader: BrokerRun) -> None:
        """Reads from that broker until cancelled."""
        while True:
            # A broker that does not know whether the leader answers wants to know it at once.
            request = ReadStates(self.at, self._image, len(self._parts), is_urgent=not self._is_heard)
            try:
                answer = await self._calls.read(leader, request)
                self._take(answer)
            except (AnabranchError, BadChange) as error:
                self.lost()
                self._note(f"the states of bundles cannot be read from {leader}: {error}")
                await asyncio.sleep(RETRY_S)

    def _note(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            log.info("%s", trouble)

    async def reached(self, at: Position) -> None:
        """Returns once everything up to that position was read."""
        if self.at is not None and self.at >= at:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((at, done))
        try:
            await done
        finally:
            self._waiting.remove((at, done))

    # -- answers

    def _take(self, answer: StatesRead) -> None:
        if answer.image:
            self._take_part(answer)
        else:
            self._take_news(answer)
        self._trouble = ""

    def _take_news(self, answer: StatesRead) -> None:
        accepted: list[BundleChange] = []
        for change in changes_in(answer.changes):
            refused = self._fold.apply(change)
            if refused is not None:
                # The leader has accepted it: what was read before must be wrong.
                self.at = None
                self._changed(accepted)
                raise BadChange(f"{change.bundle} differs from what the leader has: {refused}")
            accepted.append(change)
        self._fold.lead(answer.term)
        self._is_heard = True
        if accepted:
            self._changed(accepted)
        self._passed(answer.at)

    def _take_part(self, answer: StatesRead) -> None:
        if answer.image != self._image or answer.offset != len(self._parts):
            # Another list than the one of which a part was read.
            self._image, self._parts = answer.image, []
            if answer.offset:
                return
        self._parts += changes_in(answer.changes)
        if len(self._parts) < answer.total:
            return
        different = self._fold.become(Fold.restored(answer.term, self._parts))
        self._is_heard = True
        if different:
            self._changed(different)
        self.stands_at(answer.at)
