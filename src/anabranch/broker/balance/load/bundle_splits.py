"""A broker's rounds of splitting its own bundles: asks the rule with its own figures, and has the splits made.

`balance.core.split` decides which bundles, `balance.core.split_points` where. No leader is needed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from anabranch.balance.core.load import BundleLoad
from anabranch.balance.core.settings import BalanceSettings
from anabranch.balance.core.split import BundleSplit, SplitState, SplitVerdict, decide_splits
from anabranch.balance.core.split_points import NoPoints, TopicTraffic, automatic_points
from anabranch.balance.core.states import BrokerRun, BundleChange, BundleState
from anabranch.broker.balance.balance_log import BalanceAct, BalanceLog
from anabranch.broker.balance.counts import BalanceCounts, BalanceResult
from anabranch.broker.balance.load.bundle_figures import MeasuredTopic
from anabranch.broker.balance.load.shedding import SAFE_MODE
from anabranch.errors import AnabranchError
from anabranch.model.bundles import BundleName
from anabranch.model.names import NamespaceName

log = logging.getLogger(__name__)


class PerformSplit(Protocol):
    async def __call__(
        self, bundle: BundleName, edges: Sequence[int], reason: str, *, unloads: bool
    ) -> Sequence[BundleName]:
        """Splits the bundle at these hashes; its parts. With `unloads` they are offered to other brokers. Raises
        AnabranchError if it cannot be split there, or not now."""
        ...


class SplitRecords(Protocol):
    """Load history, if it is kept."""

    def bundles_measured(self, bundles: Iterable[BundleLoad]) -> None: ...

    def split_decided(
        self, bundle: str, label: str, because: str, children: Sequence[str], *, is_done: bool
    ) -> None: ...


class SplitRounds:
    """`round` is to be called every `loadBalancerSplitIntervalMinutes`, at every broker."""

    def __init__(
        self,
        me: BrokerRun,
        figures: Callable[[], Mapping[str, BundleLoad]],
        topics: Callable[[], Iterable[MeasuredTopic]],
        states: Callable[[], Mapping[BundleName, BundleChange]],
        bundle_counts: Callable[[], Mapping[NamespaceName, int]],
        split: PerformSplit,
        settings: Callable[[], BalanceSettings],
        decisions: BalanceLog,
        counts: BalanceCounts,
        *,
        why_safe_mode: Callable[[], str | None] = lambda: None,
        after_splits: Callable[[], None] = lambda: None,
        history: SplitRecords | None = None,
    ) -> None:
        """`figures` has the loads of bundles that were measured last, `topics` the open topics. `bundle_counts` says
        how many bundles each namespace has at all brokers."""
        self._me = me
        self._figures = figures
        self._topics = topics
        self._states = states
        self._bundle_counts = bundle_counts
        self._split = split
        self._settings = settings
        self._decisions = decisions
        self._counts = counts
        self._why_safe_mode = why_safe_mode
        self._after_splits = after_splits
        self._history = history
        self._state = SplitState()

    async def round(self) -> None:
        if (because := self._why_safe_mode()) is not None:
            self._decisions.left(BalanceAct.SPLIT, "", SAFE_MODE, because)
            return
        settings, states = self._settings(), self._states()
        mine = {str(one.bundle) for one in states.values() if self._is_mine(one)}
        bundles = [one for name, one in self._figures().items() if name in mine]
        if self._history is not None:
            self._history.bundles_measured(bundles)
        splitting = [str(one.bundle) for one in states.values() if one.state is BundleState.SPLITTING]
        counts = {str(namespace): count for namespace, count in self._bundle_counts().items()}
        verdict = decide_splits(bundles, counts, splitting, self._state, settings)
        self._state = verdict.state
        if settings.is_debugging:
            log.info("splitting: %d bundles, hits %s", len(bundles), dict(verdict.state.hits))
        self._tell_left(verdict, settings)
        is_split = [await self._perform(one, settings) for one in verdict.splits]
        if any(is_split):
            # The leader is to hear of the parts at once, so that it can move them.
            self._after_splits()

    def _is_mine(self, change: BundleChange) -> bool:
        return change.state is BundleState.ASSIGNED and change.to == self._me

    def _tell_left(self, verdict: SplitVerdict, settings: BalanceSettings) -> None:
        for left in verdict.not_divided:
            self._decisions.left(
                BalanceAct.SPLIT, left.bundle, left.label.value, left.because, is_detail=True
            )
        if not (settings.is_enabled and settings.is_splitting):
            self._decisions.left(BalanceAct.SPLIT, "", "Off", "Splitting is switched off.")
        elif not verdict.splits and not verdict.not_divided:
            because = "No bundle of this broker is over a threshold."
            self._decisions.left(BalanceAct.SPLIT, "", "NotNeeded", because)

    async def _perform(self, split: BundleSplit, settings: BalanceSettings) -> bool:
        """Whether the bundle was split."""
        bundle = BundleName.parse(split.bundle)
        found = automatic_points(bundle, self._traffic(bundle), split.room, settings)
        if isinstance(found, NoPoints):
            self._tell(split, "NoPoints", f"{split.because}, but {found.because}")
            return False
        because = f"{split.because}; {found.because}"
        self._counts.deciding.add(split.bundle)
        try:
            children = await self._split(
                bundle, found.points, because, unloads=settings.unloads_split_bundles
            )
        except AnabranchError as error:
            self._counts.split(BalanceResult.FAILURE)
            self._tell(split, "Failure", f"{because}, but it failed: {error}", failed=True)
            return False
        finally:
            self._counts.deciding.discard(split.bundle)
        self._counts.split(BalanceResult.SUCCESS, split.reason.value)
        self._decisions.done(
            BalanceAct.SPLIT, split.bundle, split.reason.value, because, source=self._me.broker
        )
        if self._history is not None:
            told = [str(child) for child in children]
            self._history.split_decided(split.bundle, split.reason.value, because, told, is_done=True)
        return True

    def _tell(self, split: BundleSplit, label: str, because: str, *, failed: bool = False) -> None:
        self._decisions.left(BalanceAct.SPLIT, split.bundle, label, because, failed=failed)
        if self._history is not None:
            self._history.split_decided(split.bundle, label, because, (), is_done=False)

    def _traffic(self, bundle: BundleName) -> list[TopicTraffic]:
        """The open topics of the bundle."""
        found = []
        for topic in self._topics():
            if bundle.holds(topic.name):
                messages, size = topic.rates_in
                for subscription in topic.subscriptions.values():
                    for consumer in subscription.consumers:
                        messages += consumer.rates[0]
                        size += consumer.rates[1]
                found.append(TopicTraffic.of(topic.name, messages, size))
        return found
