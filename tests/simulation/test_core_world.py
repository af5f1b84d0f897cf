"""The controller's decisions in a hostile small world: hundreds of seeds, and faults put in to see that they are found.

A seed that ever failed is a claim of its own in `test_two_leaders.py`.
"""

from __future__ import annotations

import pytest

from anabranch.simulation.core.play import play
from anabranch.simulation.core.world import Broken, CoreSabotage

SEEDS = 200
SEEDS_PER_TEST = 20
# How many seeds a fault may hide for.
SABOTAGE_SEEDS = 100
FOUND: dict[CoreSabotage, str] = {
    CoreSabotage.PUBLISH_UNSEALED: "takes messages",
    CoreSabotage.FORGET_CURSORS: "cursor",
    CoreSabotage.HAND_OUT_EARLY: "after number",
    CoreSabotage.COLLECT_UNREAD: "still owed to",
    CoreSabotage.REPLAN_N: "something else was published",
    CoreSabotage.FORGET_MARK: "never comes to rest",
    CoreSabotage.HAND_OVER_EARLY: "is not acknowledged",
    CoreSabotage.SHARE_UNKNOWING: "does not know buckets",
}


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_nothing_is_lost_stuck_or_out_of_order_whatever_happens_to_leaders(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        play(seed)


def test_consumers_do_share_segments_in_these_runs_and_buckets_are_withheld_until_they_are_acknowledged() -> (
    None
):
    worlds = [play(seed) for seed in range(40)]
    assert sum(world.shared_deliveries for world in worlds) > 1000
    assert sum(world.withheld for world in worlds) > 5


def play_many(sabotage: frozenset[CoreSabotage]) -> None:
    for seed in range(SABOTAGE_SEEDS):
        play(seed, sabotage)


@pytest.mark.parametrize("sabotage", list(FOUND), ids=lambda s: s.name.lower())
def test_a_fault_put_in_is_found_within_a_hundred_seeds(sabotage: CoreSabotage) -> None:
    with pytest.raises(Broken, match=FOUND[sabotage]):
        play_many(frozenset({sabotage}))


def test_a_seed_tells_the_same_story_each_time() -> None:
    assert play(7).trace == play(7).trace
    assert play(7).trace != play(8).trace
