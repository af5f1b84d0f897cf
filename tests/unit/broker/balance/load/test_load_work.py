"""Balancers that work together: they know each other's load, and bundles leave the broker that has too much."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.balance.core.settings import BalanceSettings
from anabranch.broker.balance.counts import BalanceResult
from anabranch.broker.balance.leader import LeaderSettings
from anabranch.broker.balance.load import pauses
from anabranch.broker.balance.load.load_work import leader_settings
from anabranch.broker.observe.metrics_balancer import MeasuredBalancer
from anabranch.model.names import TopicName
from unit.broker.balance.load.loaded import LOAD_EACH, QUICK, loaded


async def test_every_broker_knows_the_load_of_all_and_the_leader_their_bundles() -> None:
    async with loaded(3) as made:
        made.heat(1, 1)
        ids = {node.id for node in made.nodes}
        await made.until(lambda: all(set(node.work.loads.loads()) == ids for node in made.nodes))
        busy = made.nodes[1].id
        await made.until(lambda: made.leader.work.view.tops[busy].bundles != ())
        await made.until(lambda: all(node.work.loads.loads()[busy].cpu == LOAD_EACH for node in made.nodes))
        assert [node.work.view.loads for node in made.nodes if node is not made.leader] == [{}, {}]


async def test_bundles_leave_the_broker_that_has_too_much_load() -> None:
    async with loaded(2) as made:
        made.heat(0, 2)
        made.settings = replace(QUICK, load_std_target=0.05)
        await made.until(lambda: [node.hot for node in made.nodes] == [1, 1])
        await made.agree()
        counts = made.leader.counts
        assert counts.unloads[BalanceResult.SUCCESS, "Overloaded"] == 1
        moved = [one for one in made.leader.decisions.recent() if one.label == "Overloaded"]
        assert [one.act for one in moved] == ["transfer"]
        # What it decides next: nothing.
        await made.until(lambda: made.last_shed().label == "Balanced")


async def test_a_new_leader_is_told_the_loads_at_once() -> None:
    async with loaded(3) as made:
        made.settings = replace(QUICK, report_interval_ms_min=3_600_000)
        before = made.leader
        await made.until(lambda: len(before.work.view.loads) == 3)
        await before.balancer.election.resign()
        others = [node for node in made.nodes if node is not before]
        await made.until(lambda: any(node.balancer.reign.term for node in others))
        await made.until(lambda: len(made.leader.work.view.loads) == 3)
        assert before.work.view.loads == {}


async def test_an_interval_that_was_far_too_long_does_not_last_after_it_was_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pauses, "SETTINGS_AGAIN_S", 0.01)
    async with loaded(2) as made:
        made.settings = replace(QUICK, report_interval_ms_min=3_600_000, shedding_interval_minutes=1e6)
        # Each broker has begun such a pause once it has reported, and the leader once it has looked.
        for node in made.nodes:
            node.work.reporter.report_now()
        before = {node.id: node.work.load for node in made.nodes}
        await made.until(lambda: all(node.work.load is not before[node.id] for node in made.nodes))
        made.heat(0, 2)
        made.settings = replace(QUICK, load_std_target=0.05)
        await made.until(lambda: [node.hot for node in made.nodes] == [1, 1])


async def test_a_broker_that_closes_takes_its_load_with_it() -> None:
    async with loaded(3) as made:
        leader = made.leader
        await made.until(lambda: len(leader.work.view.loads) == 3)
        going = next(node for node in made.nodes if node is not leader)
        # Reports end first, else another one would follow.
        await going.background.close()
        await going.work.close()
        assert going.id not in leader.work.view.loads


async def test_a_bundle_with_too_many_topics_is_split_by_its_owner() -> None:
    async with loaded(2) as made:
        node = made.nodes[0]
        owners = node.balancer.owners
        bundle = next(one for one in owners.owned_by(node.id) if str(one.namespace) == "public/default")
        names = (TopicName.parse(f"persistent://{bundle.namespace}/many-{n}") for n in range(10_000))
        made.hot = [name for name in names if bundle.holds(name)][:4]
        made.settings = replace(
            QUICK, is_splitting=True, is_shedding=False, bundle_topics_max=3, unloads_split_bundles=False
        )
        await made.until(lambda: node.counts.split_bundles == 1)
        assert not owners.bundles.has(bundle)
        parts = {owners.bundle(name) for name in made.hot}
        assert len(parts) == 2
        assert node.hot == 4
        assert node.decisions.recent(str(bundle))[0].label == "Topics"


def test_the_leader_is_given_the_settings_that_it_uses() -> None:
    assert leader_settings(BalanceSettings()) == LeaderSettings()
    assert leader_settings(BalanceSettings(monitor_interval_s=7)).look_every_s == 7


async def test_metrics_are_computed_from_it() -> None:
    async with loaded(2) as made:
        measured: MeasuredBalancer = made.leader.work
        assert measured.term == 1
        assert measured.lookups_waiting == 0
        assert measured.why_safe_mode() is None
        assert measured.counts.lookup_waits is made.leader.balancer.owners.waits
        # First assignments are counted where they are written.
        assert sum(sum(node.counts.assigned.values()) for node in made.nodes) >= 4
