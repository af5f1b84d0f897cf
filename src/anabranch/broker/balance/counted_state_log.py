"""A bundle state channel that counts what this broker writes to it and reads from it, and keeps the reason of each
change that this broker makes: assignments, moves, splits and repairs all go through the channel.

The rules that decide by load tell of their own decisions (`BalanceCounts.deciding`); every other move and split was
asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from anabranch.balance.core.fold import Fold
from anabranch.balance.core.orphans import RepairKind
from anabranch.balance.core.states import BrokerRun, BundleAction, BundleChange, BundleState
from anabranch.broker.balance.balance_log import BalanceAct, BalanceLog
from anabranch.broker.balance.channel.state_log import ChangeRejected, StateLog, StatesListener
from anabranch.broker.balance.counts import ADMIN, BalanceCounts, BalanceResult, MoveTime, event_of
from anabranch.model.bundles import BundleName

_REPAIRS: Final = {
    BundleAction.OWN: RepairKind.REASSIGN,
    BundleAction.DISCARD: RepairKind.REMOVE,
    BundleAction.TOMBSTONE: RepairKind.FORGET,
}
_MOVES: Final = {
    BundleAction.TRANSFER: BalanceAct.TRANSFER,
    BundleAction.UNLOAD: BalanceAct.UNLOAD,
}


class CountedStateLog:
    """Implements `StateLog` over another one."""

    def __init__(
        self,
        log: StateLog,
        counts: BalanceCounts,
        decisions: BalanceLog,
        me: BrokerRun,
        clock: Callable[[], float],
    ) -> None:
        self.stored = log
        self._counts = counts
        self._decisions = decisions
        self._me = me
        self._clock = clock
        # When the moves of bundles began that this broker gives, and that it gets; and when it had let go of those.
        self._given_s: dict[BundleName, float] = {}
        self._released_s: dict[BundleName, float] = {}
        self._gotten_s: dict[BundleName, float] = {}
        self._stop: Callable[[], None] = lambda: None

    @property
    def fold(self) -> Fold:
        return self.stored.fold

    @property
    def is_following(self) -> bool:
        return self.stored.is_following

    @property
    def lag_s(self) -> float:
        return self.stored.lag_s

    async def start(self) -> None:
        self._stop = self.stored.on_change(self._read)
        await self.stored.start()

    async def close(self) -> None:
        self._stop()
        await self.stored.close()

    async def lead(self, term: int) -> None:
        await self.stored.lead(term)

    async def resign(self) -> None:
        await self.stored.resign()

    def on_change(self, callback: StatesListener) -> Callable[[], None]:
        return self.stored.on_change(callback)

    # -- what this broker writes

    async def append(self, change: BundleChange) -> None:
        try:
            await self.stored.append(change)
        except BaseException as error:
            self._failed(change, error)
            raise
        self._counts.published[event_of(change), BalanceResult.SUCCESS] += 1
        self._made(change)

    def _failed(self, change: BundleChange, error: BaseException) -> None:
        counts = self._counts
        counts.published[event_of(change), BalanceResult.FAILURE] += 1
        if _is_repair(change):
            counts.failed_repairs += 1
        elif change.action is BundleAction.OWN:
            # Another broker was first: the bundle has an owner all the same.
            is_second = isinstance(error, ChangeRejected)
            counts.assign(BalanceResult.SKIP if is_second else BalanceResult.FAILURE)
        elif str(change.bundle) in counts.deciding:
            pass
        elif change.action in _MOVES:
            counts.unload(BalanceResult.FAILURE)
        elif change.action is BundleAction.SPLIT:
            counts.split(BalanceResult.FAILURE)

    def _made(self, change: BundleChange) -> None:
        counts, name = self._counts, str(change.bundle)
        source = "" if change.source is None else change.source.broker
        to = "" if change.to is None else change.to.broker
        if _is_repair(change):
            kind = _REPAIRS[change.action]
            counts.repair(kind)
            self._decisions.done(
                BalanceAct.REPAIR, name, kind.value, change.reason, source=source, destination=to
            )
        elif change.action is BundleAction.OWN:
            counts.assign(BalanceResult.SUCCESS)
            self._decisions.done(BalanceAct.ASSIGN, name, "Success", change.reason, destination=to)
        elif name in counts.deciding:
            return
        elif (act := _MOVES.get(change.action)) is not None:
            counts.unload(BalanceResult.SUCCESS, ADMIN)
            self._decisions.done(act, name, ADMIN, change.reason, source=source, destination=to)
        elif change.action is BundleAction.SPLIT:
            counts.split(BalanceResult.SUCCESS, ADMIN)
            self._decisions.done(BalanceAct.SPLIT, name, ADMIN, change.reason, source=to)

    # -- what it does with bundles

    def released(self, bundle: BundleName) -> None:
        """All topics of a bundle that this broker gives are closed here."""
        begun_s, now_s = self._given_s.get(bundle), self._clock()
        if begun_s is not None and bundle not in self._released_s:
            self._released_s[bundle] = now_s
            self._counts.move_times[MoveTime.RELEASE].observe(1000 * (now_s - begun_s))

    # -- what it reads

    def _read(self, changes: Sequence[BundleChange]) -> None:
        now_s = self._clock()
        for change in changes:
            self._counts.read[event_of(change)] += 1
            if change.state is BundleState.ASSIGNING:
                if change.source == self._me:
                    self._given_s.setdefault(change.bundle, now_s)
                if change.to == self._me:
                    self._gotten_s.setdefault(change.bundle, now_s)
                continue
            for kind, began in (
                (MoveTime.UNLOAD, self._given_s),
                (MoveTime.DISCONNECT, self._released_s),
                (MoveTime.ASSIGN, self._gotten_s),
            ):
                if (begun_s := began.pop(change.bundle, None)) is not None:
                    self._counts.move_times[kind].observe(1000 * (now_s - begun_s))


def _is_repair(change: BundleChange) -> bool:
    return change.is_override or change.action is BundleAction.TOMBSTONE
