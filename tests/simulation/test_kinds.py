"""The kinds of trouble: that seeds draw them, that held-back ones stay out, and that the end of a run sees leaks."""

from __future__ import annotations

import pytest

from anabranch.simulation.kinds import ENABLED, HELD_BACK, Kind, drawn
from anabranch.simulation.run import run


def _name(kind: Kind) -> str:
    return kind.name.lower()


def test_every_enabled_kind_is_drawn_by_some_seeds_and_left_out_by_others() -> None:
    draws = [drawn(seed) for seed in range(100)]
    for kind in ENABLED:
        assert 20 < sum(kind in one for one in draws) < 60
    assert not any(one & HELD_BACK.keys() for one in draws)


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind in ENABLED], ids=_name)
def test_a_run_withstands_each_kind_alone(kind: Kind) -> None:
    for seed in range(3):
        report = run(seed, kinds=frozenset({kind}))
        assert report.is_good, str(report)


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind in HELD_BACK], ids=_name)
def test_a_kind_that_is_held_back_can_be_run(kind: Kind) -> None:
    """It may find its fault, and must not break by itself."""
    report = run(1, kinds=frozenset({kind}))
    assert not any("the run itself failed" in problem for problem in report.problems), str(report)
