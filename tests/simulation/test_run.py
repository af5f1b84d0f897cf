"""Whole clusters on seeds: the real brokers and clients, with every kind of fault, and then with none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import astuple

import pytest

from anabranch.cli.main import main
from anabranch.simulation.cluster.sabotage import OF_GROUPS, OF_SHARING, OF_THE_BALANCER, Sabotage
from anabranch.simulation.cluster.sharing import GroupFigures, SharingFigures
from anabranch.simulation.run import run
from anabranch.simulation.world.kinds import TroubleKind, drawn

# Many runs each: seconds of processor time, which a busy machine makes minutes of.
pytestmark = pytest.mark.timeout(900)

SEEDS = int(os.environ.get("ANABRANCH_SIM_SEEDS", "40"))
SEEDS_PER_TEST = 5
SABOTAGE_SEEDS = 60
# Those that show both where a hash gives bundles their owners and where the balancer does.
OF_ALL_OWNERS = {Sabotage.LEAVE_UNFENCED, Sabotage.RELEASE_OPEN, Sabotage.BELIEVE_OLD_READS}
# Reads can only be old where some brokers are behind.
NEEDED = {
    Sabotage.BELIEVE_OLD_READS: [TroubleKind.BEHIND],
}


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_nothing_acknowledged_is_lost_and_everything_gets_done(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        report = run(seed)
        assert report.is_good, str(report)


@pytest.mark.parametrize(
    "sabotage",
    [one for one in Sabotage if one not in OF_THE_BALANCER | OF_SHARING | OF_GROUPS],
    ids=lambda s: s.name.lower(),
)
def test_a_fault_put_in_is_found_within_a_few_dozen_seeds(sabotage: Sabotage) -> None:
    assert any(not run(seed, sabotage=frozenset({sabotage})).is_good for seed in range(SABOTAGE_SEEDS))


@pytest.mark.parametrize(
    "sabotage",
    [one for one in Sabotage if one in OF_THE_BALANCER | OF_ALL_OWNERS],
    ids=lambda s: s.name.lower(),
)
def test_a_fault_put_into_the_load_balancer_is_found_within_a_few_dozen_seeds(sabotage: Sabotage) -> None:
    for seed in range(SABOTAGE_SEEDS):
        kinds = drawn(seed) | {TroubleKind.BALANCER, *NEEDED.get(sabotage, ())}
        if not run(seed, sabotage=frozenset({sabotage}), kinds=kinds).is_good:
            return
    pytest.fail("no seed shows it")


@pytest.mark.parametrize(
    "sabotage", [one for one in Sabotage if one in OF_SHARING], ids=lambda s: s.name.lower()
)
def test_a_fault_put_into_shared_segments_is_found_within_a_few_dozen_seeds(sabotage: Sabotage) -> None:
    crowd = frozenset({TroubleKind.CROWD})
    assert any(
        not run(seed, sabotage=frozenset({sabotage}), kinds=crowd).is_good for seed in range(SABOTAGE_SEEDS)
    )


def test_consumers_of_whole_clusters_share_segments_in_every_way_there_is() -> None:
    sharing = SharingFigures()
    for seed in range(12):
        report = run(seed, kinds=frozenset({TroubleKind.CROWD}))
        assert report.is_good, str(report)
        sharing += report.sharing
    # Segments come to be shared and go back, buckets move and wait for their holders, entries are of several or of all
    # buckets, and buckets fall behind.
    assert all(count > 0 for count in astuple(sharing)), str(sharing)


def test_members_of_checkpoint_groups_share_segments_and_hand_them_over() -> None:
    groups = GroupFigures()
    for seed in range(6):
        report = run(seed, kinds=frozenset({TroubleKind.CHECKPOINTS}))
        assert report.is_good, str(report)
        groups += report.groups
    assert all(count > 0 for count in astuple(groups)), str(groups)


@pytest.mark.parametrize(
    "sabotage", [one for one in Sabotage if one in OF_GROUPS], ids=lambda s: s.name.lower()
)
def test_a_fault_put_into_checkpoint_groups_is_found_within_a_few_dozen_seeds(sabotage: Sabotage) -> None:
    groups = frozenset({TroubleKind.CHECKPOINTS})
    assert any(
        not run(seed, sabotage=frozenset({sabotage}), kinds=groups).is_good for seed in range(SABOTAGE_SEEDS)
    )


@pytest.mark.parametrize(
    "sabotage", [Sabotage.LEAVE_ORPHANS, Sabotage.CUT_FIRST], ids=lambda s: s.name.lower()
)
def test_such_a_fault_is_found_where_the_channel_is_a_topic_too(sabotage: Sabotage) -> None:
    for seed in range(SABOTAGE_SEEDS):
        kinds = (drawn(seed) | {TroubleKind.CHANNEL_TOPIC}) - {TroubleKind.BALANCER}
        if not run(seed, sabotage=frozenset({sabotage}), kinds=kinds).is_good:
            return
    pytest.fail("no seed shows it")


def test_runs_do_what_they_are_meant_to_do() -> None:
    reports = [run(seed) for seed in range(10)]
    # Some kinds of trouble have topics of their own, which one subscription reads.
    assert all(report.sent >= 30 and report.delivered > report.sent for report in reports)
    assert sum(report.reshapings for report in reports) > 10
    assert sum(report.rebuckets for report in reports) > 2
    assert sum(report.faults for report in reports) > 50


STORY = """

from anabranch.simulation.cluster.sharing import SharingFigures
from anabranch.simulation.run import run
from anabranch.simulation.world.kinds import TroubleKind, drawn
print(*run({seed}, is_traced=True, kinds=drawn({seed}) | {kinds}).trace, sep="\\n")
"""


@pytest.mark.parametrize(
    ("seed", "kinds"), [(3, "set()"), (1, "{TroubleKind.BALANCER}"), (4, "{TroubleKind.OBJECTS}")]
)
def test_a_seed_tells_the_same_story_in_every_process(seed: int, kinds: str) -> None:
    told = [
        subprocess.run(
            [sys.executable, "-c", STORY.format(seed=seed, kinds=kinds)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": os.pathsep.join(sys.path)},
        ).stdout
        for hashes in ("1", "12345")
    ]
    assert told[0].count("\n") > 100
    assert told[0].splitlines() == told[1].splitlines()


def test_the_command_says_how_it_went(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--seed", "3", "--brokers", "2"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("seed 3: ")
    assert "1 runs, 0 failed" in said
    assert "segments shared: " in said
    assert " buckets handed over, " in said
    assert main(["simulate", "--core", "--runs", "3", "--quiet"]) == 0
    assert "3 runs, 0 failed" in capsys.readouterr().out


OBJECT_SEEDS = 6


def test_on_an_object_store_that_loses_and_delays_answers_nothing_is_lost_either() -> None:
    """Also among the seeds above, where it is drawn."""
    space: Counter[str] = Counter()
    for seed in range(OBJECT_SEEDS):
        report = run(seed, kinds=drawn(seed) | {TroubleKind.OBJECTS})
        assert report.is_good, str(report)
        space += Counter(report.space)
    # Objects were rewritten and deleted while all that went on.
    assert min(space[one] for one in ("rewritten", "map", "deleted")) > 5, str(space)
