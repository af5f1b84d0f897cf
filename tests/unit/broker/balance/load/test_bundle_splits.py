"""A broker's rounds of splitting: its own figures become splits, and every round leaves a reason."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from anabranch.balance.core.fold import Fold
from anabranch.balance.core.load import BundleLoad
from anabranch.balance.core.split_points import children
from anabranch.balance.core.states import BrokerRun, BundleChange
from anabranch.balance.core.transfer import duty_of, ended, owned
from anabranch.broker.balance.balance_log import BalanceLog
from anabranch.broker.balance.counts import BalanceCounts, BalanceResult
from anabranch.broker.balance.load.bundle_figures import bundle_figures
from anabranch.broker.balance.load.bundle_splits import SplitRounds
from anabranch.broker.balance.load.history import BalanceHistory
from anabranch.broker.errors import NotAllowedError
from anabranch.model.bundles import BundleName, bundle_ranges
from anabranch.model.names import NamespaceName, TopicName
from unit.broker.balance.load.rig import Situation
from unit.broker.balance.load.traffic import Traffic

ME, OTHER = BrokerRun("me:1", "r1"), BrokerRun("other:1", "r2")
SPACE = NamespaceName.parse("public/default")
HALVES = bundle_ranges(("0x00000000", "0x80000000", "0xffffffff"))
FIRST, SECOND = HALVES.bundles(SPACE)
HITS = 3


def topics_in(bundle: BundleName, count: int) -> list[TopicName]:
    names = (TopicName.parse(f"persistent://{SPACE}/t{number}") for number in range(10_000))
    return [name for name in names if bundle.holds(name)][:count]


@dataclass
class Owner:
    """A broker with both halves of a namespace, whose topics a test sets, and the splits that it makes."""

    situation: Situation = field(default_factory=Situation)
    fold: Fold = field(default_factory=Fold)
    topics: list[Traffic] = field(default_factory=list)
    figures: dict[str, BundleLoad] = field(default_factory=dict)
    bundles: int = 2
    split: list[tuple[BundleName, tuple[int, ...], bool]] = field(default_factory=list)
    is_refusing: bool = False
    doubt: list[str] = field(default_factory=list)
    counts: BalanceCounts = field(default_factory=BalanceCounts)
    records: list[dict[str, Any]] = field(default_factory=list)
    told: int = 0

    def __post_init__(self) -> None:
        self.decisions = BalanceLog(self.situation.now_ms)
        for bundle, run in ((FIRST, ME), (SECOND, ME)):
            self.give(bundle, run)
        self.rounds = SplitRounds(
            ME,
            lambda: self.figures,
            lambda: self.topics,
            self.states,
            lambda: {SPACE: self.bundles},
            self.perform,
            self.situation.current,
            self.decisions,
            self.counts,
            why_safe_mode=lambda: self.doubt[0] if self.doubt else None,
            after_splits=self.tell,
            history=BalanceHistory(self, self.situation.now_ms),
        )

    def give(self, bundle: BundleName, run: BrokerRun) -> None:
        assert self.fold.apply(owned(bundle, 1, run, run, 0, "asked")) is None
        before = self.fold.bundles[bundle]
        duty = duty_of(run, before)
        assert duty is not None
        assert self.fold.apply(ended(duty, before, run, 0)) is None

    def states(self) -> Mapping[BundleName, BundleChange]:
        return self.fold.bundles

    async def perform(
        self, bundle: BundleName, edges: Sequence[int], reason: str, *, unloads: bool
    ) -> Sequence[BundleName]:
        if self.is_refusing:
            raise NotAllowedError("the channel does not take it")
        self.split.append((bundle, tuple(edges), unloads))
        return children(bundle, edges)

    def tell(self) -> None:
        self.told += 1

    def balance(self, at_ms: int, **found: Any) -> None:
        self.records.append(found)

    async def busy(self, bundle: BundleName, *, topics: int = 4, rate: float = 10_000.0) -> None:
        self.topics = [Traffic(name, (rate, rate * 100)) for name in topics_in(bundle, topics)]
        self.figures = await bundle_figures(self.topics, HALVES.of, [FIRST, SECOND])

    async def after(self) -> list[BundleName]:
        """The bundles that the next round splits."""
        self.situation.ms += 60_000
        before = len(self.split)
        await self.rounds.round()
        return [bundle for bundle, _, _ in self.split[before:]]


async def test_a_bundle_that_stays_too_busy_is_split() -> None:
    owner = Owner()
    await owner.busy(FIRST)
    assert [await owner.after() for _ in range(HITS)] == [[]] * HITS
    assert owner.decisions.recent(str(FIRST))[0].label == "HitCount"
    assert await owner.after() == [FIRST]
    assert owner.counts.splits == {(BalanceResult.SUCCESS, "MsgRate"): 1}
    [told, *_] = owner.decisions.recent(str(FIRST))
    assert (told.is_done, told.label, told.source) == (True, "MsgRate", ME.broker)
    assert "40,000 messages a second" in told.because
    assert owner.told == 1


async def test_both_parts_get_topics() -> None:
    owner = Owner()
    owner.situation.change(split_hits=0)
    await owner.busy(FIRST)
    await owner.after()
    [(bundle, edges, _)] = owner.split
    parts = children(bundle, edges)
    assert all(any(part.holds(topic.name) for topic in owner.topics) for part in parts)


async def test_parts_are_offered_to_the_leader_unless_that_is_switched_off() -> None:
    owner = Owner()
    owner.situation.change(split_hits=0)
    await owner.busy(FIRST)
    await owner.after()
    owner.situation.change(unloads_split_bundles=False)
    await owner.busy(SECOND)
    await owner.after()
    assert [unloads for _, _, unloads in owner.split] == [True, False]


async def test_a_bundle_of_another_broker_is_not_split() -> None:
    owner = Owner()
    owner.fold = Fold()
    owner.give(FIRST, OTHER)
    owner.situation.change(split_hits=0)
    await owner.busy(FIRST)
    assert await owner.after() == []
    assert owner.decisions.recent()[0].label == "NotNeeded"


async def test_no_namespace_gets_more_bundles_than_it_may() -> None:
    owner = Owner(bundles=128)
    owner.situation.change(split_hits=0)
    await owner.busy(FIRST)
    assert await owner.after() == []
    assert owner.decisions.recent(str(FIRST))[0].label == "MaxBundles"


async def test_splitting_can_be_switched_off_at_run_time() -> None:
    owner = Owner()
    owner.situation.change(split_hits=0, is_splitting=False)
    await owner.busy(FIRST)
    assert await owner.after() == []
    assert owner.decisions.recent()[0].label == "Off"
    owner.situation.change(is_splitting=True)
    assert await owner.after() == [FIRST]


async def test_nothing_is_split_in_safe_mode_and_the_reason_is_told() -> None:
    owner = Owner(doubt=["3 of 4 brokers vanished at once"])
    owner.situation.change(split_hits=0)
    await owner.busy(FIRST)
    assert await owner.after() == []
    [told] = owner.decisions.recent()
    assert (told.label, told.because) == ("SafeMode", "3 of 4 brokers vanished at once")


async def test_a_split_that_fails_is_counted_with_its_reason() -> None:
    owner = Owner(is_refusing=True)
    owner.situation.change(split_hits=0)
    await owner.busy(FIRST)
    assert await owner.after() == []
    assert owner.counts.splits == {(BalanceResult.FAILURE, "Unknown"): 1}
    assert "the channel does not take it" in owner.decisions.recent(str(FIRST))[0].because
    assert owner.told == 0


async def test_topics_that_cannot_be_told_apart_are_not_split() -> None:
    owner = Owner()
    owner.situation.change(split_hits=0)
    await owner.busy(FIRST)
    # They were closed since they were measured.
    owner.topics = owner.topics[:1]
    assert await owner.after() == []
    assert owner.decisions.recent(str(FIRST))[0].label == "NoPoints"
    assert owner.records[-1]["bundle_split"].is_done is False


async def test_every_round_records_its_figures_and_every_split_its_reason() -> None:
    owner = Owner()
    owner.situation.change(split_hits=0)
    await owner.busy(FIRST)
    await owner.after()
    [figures, split] = owner.records
    assert [one.bundle for one in figures["bundle_loads"].bundles] == [str(FIRST)]
    told = split["bundle_split"]
    assert (told.bundle, told.label, told.is_done, len(told.children)) == (str(FIRST), "MsgRate", True, 2)


async def test_the_debug_mode_logs_how_often_bundles_were_too_busy(caplog: pytest.LogCaptureFixture) -> None:
    owner = Owner()
    owner.situation.change(is_debugging=True)
    await owner.busy(FIRST)
    with caplog.at_level(logging.INFO):
        await owner.after()
    assert f"'{FIRST}': 1" in caplog.text
