"""The same decisions live and in the backtest, event by event: from the same traffic, and from load history."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from anabranch.balance.core.settings import BalanceSettings, SplitAlgorithm
from anabranch.balance.core.shed_verdict import ClusterLoad, ShedVerdict
from anabranch.broker.balance.load.history import settings_json
from anabranch.broker.scalable.load.history_records import HistoryRecord
from anabranch.pipelines.clusters.cluster_replay import replay_cluster
from anabranch.pipelines.clusters.cluster_trace import ClusterTrace
from anabranch.pipelines.clusters.recorded_decisions import decided_again, settings_of
from anabranch.pipelines.clusters.synthetic_clusters import ClusterSpec, made_cluster
from unit.pipelines.clusters.live_cluster import LiveCluster

SETTINGS = BalanceSettings(is_splitting=False)


def trace(kind: str) -> ClusterTrace:
    """Whole messages, so that sums do not depend on their order."""
    made = made_cluster(ClusterSpec(kind, 4, 32, 0.75, seed=5))
    # Reversed within whole factors, for the same reason.
    base, courses = np.round(made.base), np.where(made.courses < 1, 0.125, np.round(made.courses))
    return replace(made, base=8 * np.round(base / 8), courses=courses, topics=np.minimum(made.topics, 3))


@pytest.mark.parametrize("kind", ["skewed", "reversed"])
async def test_a_live_leader_and_the_replay_decide_the_same_at_the_same_moments(kind: str) -> None:
    made = trace(kind)
    live = LiveCluster(made, SETTINGS)
    await live.run()
    replayed: list[tuple[ClusterLoad, ShedVerdict]] = []
    replay_cluster(made, SETTINGS, watch=lambda view, verdict: replayed.append((view, verdict)))
    recorded = [(one.at, one.shed) for one in live.records if one.shed is not None]
    assert len(recorded) == len(replayed) == 44
    assert live.moved
    for (at_ms, told), (view, verdict) in zip(recorded, replayed, strict=True):
        assert at_ms == view.now_ms
        assert told.label == ("" if verdict.label is None else verdict.label.value)
        assert told.because == verdict.because
        assert told.hits == verdict.state.hits
        assert told.std == pytest.approx(verdict.std)
        assert [(one.bundle, one.source, one.destination, one.because) for one in told.moves] == [
            (one.bundle, one.source, one.destination, one.because) for one in verdict.moves
        ]


@pytest.mark.parametrize("kind", ["skewed", "reversed"])
async def test_recorded_decisions_come_out_the_same_again(kind: str) -> None:
    live = LiveCluster(trace(kind), SETTINGS)
    await live.run()
    again = list(decided_again(live.records))
    assert len(again) == 44
    assert [one.difference for one in again] == [None] * 44
    decided = [(one.at_ms, move.bundle) for one in again for move in one.verdict.moves]
    assert decided == [(at_ms, move.bundle) for at_ms, move in live.moved]


async def test_moves_that_failed_are_decided_again_as_they_were() -> None:
    first = LiveCluster(trace("skewed"), SETTINGS)
    await first.run()
    live = LiveCluster(trace("skewed"), SETTINGS, fails=frozenset({first.moved[0][1].bundle}))
    await live.run()
    assert any(one.shed is not None and one.shed.failed for one in live.records)
    assert [one.difference for one in decided_again(live.records)] == [None] * 44


async def test_a_decision_by_another_rule_is_told_as_a_difference() -> None:
    live = LiveCluster(trace("skewed"), SETTINGS)
    await live.run()
    other = settings_json(replace(SETTINGS, shedding_hits=1))
    changed = [one if one.shed is None else _with(one, settings=other) for one in live.records]
    found = [one.difference for one in decided_again(changed)]
    assert found[0] is not None
    assert "cycle 1 of 3" in found[0]


async def test_the_first_decision_of_a_leadership_tells_where_it_stood() -> None:
    """History from the middle of a leadership: what was before is not known, and all that follows is the same."""
    live = LiveCluster(trace("reversed"), SETTINGS)
    await live.run()
    sheds = [at for at, one in enumerate(live.records) if one.shed is not None]
    reports = [one for one in live.records[: sheds[2]] if one.broker_load is not None]
    again = list(decided_again([*reports, *live.records[sheds[2] :]]))
    assert [one.is_first for one in again] == [True] + [False] * 41
    assert [one.difference for one in again[1:]] == [None] * 41


async def test_decisions_under_policies_are_left_out() -> None:
    live = LiveCluster(trace("skewed"), SETTINGS)
    await live.run()
    bound = [one if one.shed is None else _with(one, has_rules=True) for one in live.records]
    assert list(decided_again(bound)) == []


def _with(record: HistoryRecord, **changes: Any) -> HistoryRecord:
    assert record.shed is not None
    return msgspec.structs.replace(record, shed=msgspec.structs.replace(record.shed, **changes))


def test_settings_are_read_as_they_were_recorded() -> None:
    settings = BalanceSettings(
        shedding_hits=7,
        history_share=0.5,
        unshed_namespaces=frozenset({"a/b"}),
        split_algorithm=SplitAlgorithm.TRAFFIC,
        split_algorithms=(SplitAlgorithm.TRAFFIC, SplitAlgorithm.RANGE),
    )
    found = settings_of(settings_json(settings))
    assert set(found.split_algorithms) == set(settings.split_algorithms)
    assert replace(found, split_algorithms=settings.split_algorithms) == settings
