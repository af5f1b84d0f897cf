"""Whole clusters on seeds: the real brokers and clients, with every kind of fault, and then with none."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from anabranch.cli.main import main
from anabranch.simulation.cluster.sabotage import Sabotage
from anabranch.simulation.run import run

SEEDS = int(os.environ.get("ANABRANCH_SIM_SEEDS", "40"))
SEEDS_PER_TEST = 5
SABOTAGE_SEEDS = 60


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_nothing_acknowledged_is_lost_and_everything_gets_done(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        report = run(seed)
        assert report.is_good, str(report)


@pytest.mark.parametrize("sabotage", list(Sabotage), ids=lambda s: s.name.lower())
def test_a_fault_put_in_is_found_within_a_few_dozen_seeds(sabotage: Sabotage) -> None:
    assert any(not run(seed, sabotage=frozenset({sabotage})).is_good for seed in range(SABOTAGE_SEEDS))


def test_runs_do_what_they_are_meant_to_do() -> None:
    reports = [run(seed) for seed in range(10)]
    # Some kinds of trouble have topics of their own, which one subscription reads.
    assert all(report.sent >= 30 and report.delivered > report.sent for report in reports)
    assert sum(report.reshapings for report in reports) > 10
    assert sum(report.faults for report in reports) > 50


STORY = "from anabranch.simulation.run import run; print(*run(3, is_traced=True).trace, sep='\\n')"


def test_a_seed_tells_the_same_story_in_every_process() -> None:
    here = [line for line in run(3, is_traced=True).trace]
    told = subprocess.run(
        [sys.executable, "-c", STORY],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert told.stdout.splitlines() == "\n".join(here).splitlines()


def test_the_command_says_how_it_went(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--seed", "3", "--brokers", "2"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("seed 3: ")
    assert "1 runs, 0 failed" in said
    assert main(["simulate", "--core", "--runs", "3", "--quiet"]) == 0
    assert "3 runs, 0 failed" in capsys.readouterr().out
