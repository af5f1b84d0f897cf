"""The kinds of trouble: that seeds draw them, and that a run withstands each of them."""

from __future__ import annotations

import pytest

from anabranch.simulation.run import run
from anabranch.simulation.world.kinds import TroubleKind, drawn


def _name(kind: TroubleKind) -> str:
    return kind.name.lower()


def test_every_kind_is_drawn_by_some_seeds_and_left_out_by_others() -> None:
    draws = [drawn(seed) for seed in range(100)]
    for kind in TroubleKind:
        assert 20 < sum(kind in one for one in draws) < 60


@pytest.mark.parametrize("kind", list(TroubleKind), ids=_name)
def test_a_run_withstands_each_kind_alone(kind: TroubleKind) -> None:
    for seed in range(3):
        report = run(seed, kinds=frozenset({kind}))
        assert report.is_good, str(report)
