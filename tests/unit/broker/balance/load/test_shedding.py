"""The leader's rounds of shedding: what it sees becomes moves, and every round leaves a reason."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from anabranch.balance.core.fold import Fold
from anabranch.balance.core.load import BrokerLoad, TopBundles
from anabranch.balance.core.owner_rules import OwnerRules, no_rules
from anabranch.balance.core.shed_verdict import BundleMove
from anabranch.balance.core.states import BrokerRun, BundleChange
from anabranch.balance.core.transfer import LeaderHand, duty_of, ended, owned
from anabranch.broker.balance.balance_log import BalanceLog
from anabranch.broker.balance.counts import BalanceCounts, BalanceResult
from anabranch.broker.balance.load.history import BalanceHistory
from anabranch.broker.balance.load.shedding import SheddingRounds
from anabranch.broker.errors import NotReadyError
from anabranch.model.bundles import BundleName, bundle_ranges
from anabranch.model.names import NamespaceName
from unit.broker.balance.load.rig import Situation, broker_load, bundle_load, tops

A, B = BrokerRun("a:1", "ra"), BrokerRun("b:1", "rb")
BUNDLES = bundle_ranges((*(f"0x{n:x}0000000" for n in range(0, 16, 2)), "0xffffffff")).bundles(
    NamespaceName.parse("public/default")
)
HITS = 3


@dataclass
class Cluster:
    """Two brokers, of which the first has all bundles and nearly all load; the test is its leader's moves."""

    situation: Situation = field(default_factory=Situation)
    fold: Fold = field(default_factory=Fold)
    term: int = 1
    loads: dict[str, BrokerLoad] = field(default_factory=dict)
    tops: dict[str, TopBundles] = field(default_factory=dict)
    moved: list[BundleMove] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    doubt: list[str] = field(default_factory=list)
    counts: BalanceCounts = field(default_factory=BalanceCounts)
    records: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    ends_with: int = -1

    def __post_init__(self) -> None:
        self.decisions = BalanceLog(self.situation.now_ms)
        for bundle in BUNDLES:
            self.apply(owned(bundle, 1, A, A, 0, "asked"))
            self.over(bundle, A)
        self.measure(0.9, 0.1)
        self.rounds = self.leader()

    def leader(self) -> SheddingRounds:
        return SheddingRounds(
            lambda: self.term,
            self,
            lambda: (A.broker, B.broker),
            self.states,
            self.rules,
            self.move,
            self.situation.current,
            self.situation.now_ms,
            self.decisions,
            self.counts,
            why_safe_mode=lambda: self.doubt[0] if self.doubt else None,
            history=BalanceHistory(self, self.situation.now_ms),
        )

    def measure(self, first: float, second: float) -> None:
        """The brokers report these loads now."""
        now_ms = self.situation.ms
        for run, load in ((A, first), (B, second)):
            self.loads[run.broker] = broker_load(
                load, measured_ms=now_ms, msg_rate_in=1000 * load, throughput_in=1e6 * load
            )
            mine = [str(one.bundle) for one in self.fold.bundles.values() if one.owner == run]
            rate = 1000 * load / max(1, len(mine))
            self.tops[run.broker] = tops(*(bundle_load(name, rate) for name in mine), measured_ms=now_ms)

    def apply(self, change: BundleChange) -> None:
        assert self.fold.apply(change) is None
        if hasattr(self, "rounds"):
            self.rounds.states_changed([change])

    def over(self, bundle: BundleName, run: BrokerRun) -> None:
        """The bundle's destination has it."""
        before = self.fold.bundles[bundle]
        duty = duty_of(run, before)
        assert duty is not None
        self.apply(ended(duty, before, run, self.situation.ms))

    def states(self) -> Mapping[BundleName, BundleChange]:
        return self.fold.bundles

    def rules(self) -> OwnerRules:
        return no_rules((A.broker, B.broker))

    async def move(self, move: BundleMove) -> None:
        if move.bundle in self.refused:
            raise NotReadyError("the channel did not answer")
        bundle = BundleName.parse(move.bundle)
        hand = LeaderHand(A, self.term)
        before = self.fold.bundles[bundle]
        if move.destination is None:
            self.apply(hand.unload(before, self.situation.ms, move.because))
        else:
            self.apply(hand.transfer(before, B, self.situation.ms, move.because))
            self.over(bundle, B)
        self.moved.append(move)
        if len(self.moved) == self.ends_with:
            self.term = 0

    def balance(self, at_ms: int, **found: Any) -> None:
        """Implements `HistoryOfBalance`."""
        self.records.append((at_ms, found))

    async def after(self, ms: int = 60_000, loads: tuple[float, float] = (0.9, 0.1)) -> list[str]:
        """The bundles that the round after so long moved."""
        self.situation.ms += ms
        self.measure(*loads)
        before = len(self.moved)
        await self.rounds.round()
        return [one.bundle for one in self.moved[before:]]

    def reason(self) -> str:
        """The label of the latest decision about all bundles."""
        return next(one.label for one in self.decisions.recent() if one.subject == "")


async def test_bundles_move_once_the_condition_held_long_enough() -> None:
    cluster = Cluster()
    assert [await cluster.after() for _ in range(HITS)] == [[]] * HITS
    assert cluster.reason() == "HitCount"
    moved = await cluster.after()
    assert 1 <= len(moved) <= 4
    assert all(one.destination == B.broker for one in cluster.moved)
    assert cluster.counts.unloads[BalanceResult.SUCCESS, "Overloaded"] == len(moved)
    assert cluster.counts.unloads[BalanceResult.SKIP, "HitCount"] == HITS
    assert cluster.counts.shed_brokers == 1
    assert cluster.counts.load_std == pytest.approx(0.4)
    [told, *_] = cluster.decisions.recent(moved[0])
    assert (told.is_done, told.source, told.destination) == (True, A.broker, B.broker)
    assert "deviation" in told.because


async def test_after_moves_the_next_rounds_wait() -> None:
    cluster = Cluster()
    for _ in range(HITS + 1):
        await cluster.after()
    assert await cluster.after(loads=(0.9, 0.1)) == []
    assert cluster.reason() == "CoolDown"


async def test_a_broker_that_does_not_lead_decides_nothing() -> None:
    cluster = Cluster(term=0)
    for _ in range(HITS + 2):
        assert await cluster.after() == []
    assert len(cluster.decisions) == 0
    assert cluster.counts.unloads == {}


async def test_shedding_can_be_switched_off_at_run_time() -> None:
    cluster = Cluster()
    for _ in range(HITS):
        await cluster.after()
    cluster.situation.change(is_shedding=False)
    assert await cluster.after() == []
    assert cluster.reason() == "Off"
    cluster.situation.change(is_shedding=True)
    assert await cluster.after() == []


async def test_nothing_moves_in_safe_mode_and_the_reason_is_told() -> None:
    cluster = Cluster(doubt=["the session of the metadata store is in doubt"])
    for _ in range(HITS + 2):
        assert await cluster.after() == []
    assert cluster.reason() == "SafeMode"
    assert cluster.decisions.recent()[0].because == "the session of the metadata store is in doubt"
    assert cluster.counts.unloads == {(BalanceResult.SKIP, "SafeMode"): HITS + 2}


async def test_without_transfers_bundles_are_unloaded() -> None:
    cluster = Cluster()
    cluster.situation.change(is_transferring=False)
    for _ in range(HITS + 1):
        await cluster.after()
    assert cluster.moved
    assert all(one.destination is None for one in cluster.moved)
    assert cluster.decisions.recent(cluster.moved[0].bundle)[0].act == "unload"


async def test_a_move_that_fails_is_counted_and_may_be_made_later() -> None:
    cluster = Cluster()
    cluster.refused = {str(bundle) for bundle in BUNDLES}
    for _ in range(HITS + 1):
        await cluster.after()
    failed = cluster.counts.unloads[BalanceResult.FAILURE, "Unknown"]
    assert failed >= 1
    assert cluster.counts.unloaded_bundles == cluster.counts.shed_brokers == 0
    assert sum("the channel did not answer" in one.because for one in cluster.decisions.recent()) == failed
    cluster.refused = set()
    cluster.situation.ms += 180_000
    assert any([await cluster.after() for _ in range(HITS + 2)])


async def test_a_leader_that_is_deposed_makes_no_further_moves() -> None:
    cluster = Cluster(ends_with=1)
    for _ in range(HITS + 1):
        await cluster.after()
    assert len(cluster.moved) == 1
    assert cluster.counts.unloads[BalanceResult.FAILURE, "Unknown"] >= 1
    assert "does not lead any more" in cluster.decisions.recent()[0].because


async def test_what_an_operator_has_moved_stays_there_for_a_while() -> None:
    cluster = Cluster()
    await cluster.after()
    before = cluster.fold.bundles[BUNDLES[0]]
    cluster.apply(LeaderHand(A, 1).transfer(before, B, cluster.situation.ms, "asked by an operator"))
    cluster.over(BUNDLES[0], B)
    for _ in range(10):
        await cluster.after(loads=(0.1, 0.9))
    assert str(BUNDLES[0]) not in [one.bundle for one in cluster.moved]
    assert cluster.records[1][1]["moved"].destination == B.broker


async def test_a_new_leader_knows_what_was_moved_of_late() -> None:
    cluster = Cluster()
    for _ in range(HITS + 1):
        await cluster.after()
    moved = {one.bundle for one in cluster.moved}
    cluster.term, cluster.rounds = 2, cluster.leader()
    for _ in range(10):
        again = await cluster.after(loads=(0.1, 0.9))
        assert not moved & set(again)


async def test_every_decision_is_recorded_with_what_it_depends_on() -> None:
    cluster = Cluster()
    for _ in range(HITS + 1):
        await cluster.after()
    sheds = [found["shed"] for _, found in cluster.records if "shed" in found]
    assert [one.label for one in sheds] == ["HitCount"] * HITS + [""]
    last = sheds[-1]
    assert (last.term, last.brokers, last.unowned, last.has_rules) == (1, (A.broker, B.broker), (), False)
    assert [one.bundle for one in last.moves] == [one.bundle for one in cluster.moved]
    assert json.loads(last.settings)["loadBalancerBrokerLoadTargetStd"] == 0.25


async def test_bundles_that_a_broker_has_no_more_are_recorded_as_such() -> None:
    cluster = Cluster()
    cluster.situation.ms += 1
    cluster.measure(0.9, 0.1)
    before = cluster.fold.bundles[BUNDLES[0]]
    cluster.apply(LeaderHand(A, 1).transfer(before, B, 0, "asked"))
    await cluster.rounds.round()
    assert cluster.records[-1][1]["shed"].unowned == (str(BUNDLES[0]),)


async def test_the_debug_mode_logs_what_the_leader_sees(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.situation.change(is_debugging=True)
    with caplog.at_level(logging.INFO):
        await cluster.after()
    assert "a:1: BrokerLoad" in caplog.text
    assert "Hits: 1" in caplog.text
