"""The leader's rounds of shedding: gathers the loads, asks the rule, and has its moves made.

`balance.core.shed` decides; `move` performs. What the rule remembers between two rounds is this leader's: a new one
begins with what the channel tells of late moves.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol

from anabranch.balance.core.load import BrokerLoad, TopBundles
from anabranch.balance.core.owner_rules import OwnerRules
from anabranch.balance.core.settings import BalanceSettings
from anabranch.balance.core.shed import shed
from anabranch.balance.core.shed_verdict import BundleMove, ClusterLoad, ShedState, ShedVerdict
from anabranch.balance.core.states import BundleAction, BundleChange, BundleFlow
from anabranch.broker.balance.balance_log import BalanceAct, BalanceLog
from anabranch.broker.balance.counts import UNKNOWN, BalanceCounts, BalanceResult
from anabranch.errors import AnabranchError
from anabranch.model.bundles import BundleName

log = logging.getLogger(__name__)

SAFE_MODE = "SafeMode"
_MOVES = frozenset((BundleAction.TRANSFER, BundleAction.UNLOAD))


class SeenLoads(Protocol):
    """The leader's views."""

    @property
    def loads(self) -> Mapping[str, BrokerLoad]: ...

    @property
    def tops(self) -> Mapping[str, TopBundles]: ...


class ShedRecords(Protocol):
    """Load history, if it is kept."""

    def shed_decided(
        self,
        term: int,
        view: ClusterLoad,
        verdict: ShedVerdict,
        settings: BalanceSettings,
        failed: Collection[str],
    ) -> None: ...

    def bundle_moved(self, bundle: str, source: str, destination: str | None, at_ms: int) -> None: ...


class SheddingRounds:
    """`round` is to be called every `loadBalancerSheddingIntervalMinutes`, at every broker: only the leader's does
    anything."""

    def __init__(
        self,
        term: Callable[[], int],
        seen: SeenLoads,
        brokers: Callable[[], Collection[str]],
        states: Callable[[], Mapping[BundleName, BundleChange]],
        rules: Callable[[], OwnerRules],
        move: Callable[[BundleMove], Awaitable[None]],
        settings: Callable[[], BalanceSettings],
        now_ms: Callable[[], int],
        decisions: BalanceLog,
        counts: BalanceCounts,
        *,
        why_safe_mode: Callable[[], str | None] = lambda: None,
        history: ShedRecords | None = None,
    ) -> None:
        """`term` is that of this broker's leadership, 0 while it does not lead. `brokers` are those that may own
        bundles, `states` the last change of each bundle. `move` begins a transfer, or an unload if the move has no
        destination; it returns once the channel has the change, and raises AnabranchError if it will not have it."""
        self._term = term
        self._seen = seen
        self._brokers = brokers
        self._states = states
        self._rules = rules
        self._move = move
        self._settings = settings
        self._now_ms = now_ms
        self._decisions = decisions
        self._counts = counts
        self._why_safe_mode = why_safe_mode
        self._history = history
        self._state = ShedState()
        # The term of the leadership that the state is of.
        self._led = 0

    # -- what others moved

    def states_changed(self, changes: Sequence[BundleChange]) -> None:
        """To be called with what the channel accepts: bundles that an operator has moved stay where they are for a
        while, like those that the rule has moved."""
        for change in changes if self._led else ():
            name = str(change.bundle)
            if change.action in _MOVES and change.source is not None and name not in self._counts.deciding:
                to = None if change.to is None else change.to.broker
                self._state = self._state.noted(name, change.source.broker, to, change.at_ms)
                if self._history is not None:
                    self._history.bundle_moved(name, change.source.broker, to, change.at_ms)

    def _begin(self, term: int) -> None:
        """A leadership begins: what the channel tells of earlier moves is all that is known of them."""
        self._led = term
        self._state = ShedState.remembered(
            (str(change.bundle), "", change.to.broker, change.at_ms)
            for change in self._states().values()
            if change.flow is BundleFlow.TRANSFER and change.to is not None
        )

    # -- rounds

    async def round(self) -> None:
        term = self._term()
        if not term:
            self._led = 0
            return
        if term != self._led:
            self._begin(term)
        if (because := self._why_safe_mode()) is not None:
            self._decisions.left(BalanceAct.SHED, "", SAFE_MODE, because)
            self._counts.unload(BalanceResult.SKIP, SAFE_MODE)
            return
        settings = self._settings()
        view = self._look()
        verdict = shed(view, self._state, settings)
        self._state = verdict.state
        if settings.is_debugging:
            self._tell_debug(view, verdict)
        self._counts.load_mean, self._counts.load_std = verdict.mean, verdict.std
        if verdict.label is not None:
            self._decisions.left(BalanceAct.SHED, "", verdict.label.value, verdict.because)
            self._counts.unload(BalanceResult.SKIP, verdict.label.value)
        for left in verdict.not_moved:
            self._decisions.left(BalanceAct.SHED, left.what, left.label.value, left.because, is_detail=True)
        failed = await self._perform(verdict.moves, term)
        if self._history is not None:
            self._history.shed_decided(term, view, verdict, settings, failed)

    def _look(self) -> ClusterLoad:
        owners = {
            str(change.bundle): change.owner.broker
            for change in self._states().values()
            if not change.is_in_flight and change.owner is not None
        }
        return ClusterLoad(
            now_ms=self._now_ms(),
            brokers=self._brokers(),
            loads=self._seen.loads,
            tops=self._seen.tops,
            owners=owners,
            rules=self._rules(),
        )

    async def _perform(self, moves: Sequence[BundleMove], term: int) -> list[str]:
        """Has the moves made; the bundles whose moves failed."""
        gave: set[str] = set()
        failed: list[str] = []
        broken: set[frozenset[str | None]] = set()
        for move in moves:
            pair = frozenset((move.source, move.destination))
            if self._term() != term:
                failed.append(self._fail(move, "this broker does not lead any more"))
            elif move.is_swap and pair in broken:
                failed.append(self._fail(move, "another move of its swap has failed"))
            else:
                self._counts.deciding.add(move.bundle)
                try:
                    await self._move(move)
                except AnabranchError as error:
                    broken.add(pair)
                    failed.append(self._fail(move, str(error)))
                    continue
                finally:
                    self._counts.deciding.discard(move.bundle)
                gave.add(move.source)
                self._counts.unload(BalanceResult.SUCCESS, move.reason.value)
                self._decisions.done(
                    BalanceAct.TRANSFER if move.destination is not None else BalanceAct.UNLOAD,
                    move.bundle,
                    move.reason.value,
                    move.because,
                    source=move.source,
                    destination=move.destination or "",
                )
        self._counts.shed_brokers += len(gave)
        return failed

    def _fail(self, move: BundleMove, because: str) -> str:
        self._state = self._state.forgot(move.bundle)
        self._counts.unload(BalanceResult.FAILURE, UNKNOWN)
        self._decisions.left(BalanceAct.SHED, move.bundle, "Failure", because, failed=True)
        return move.bundle

    def _tell_debug(self, view: ClusterLoad, verdict: ShedVerdict) -> None:
        for broker in sorted(view.brokers):
            load, top = view.loads.get(broker), view.tops.get(broker)
            log.info("shedding: %s: %s, %d top bundles", broker, load, 0 if top is None else len(top.bundles))
        log.info("shedding: %s Hits: %d", verdict.because, verdict.state.hits)
