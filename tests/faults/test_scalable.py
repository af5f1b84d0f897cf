"""The short form of `python -m soak scalable`: splits, merges and a kill under load, and a judge that can fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak import scalable

# Half a minute alone, and minutes beside a load.
pytestmark = pytest.mark.timeout(600)


def test_splits_merges_and_kills_lose_reorder_and_double_nothing(tmp_path: Path) -> None:
    options = scalable.Options(
        operations=30, seed=11, folder=tmp_path, pause_s=0.05, operations_per_kill=15, per_second=100
    )
    assert scalable.run(options) == 0


def test_a_log_that_loses_its_end_does_not_go_unnoticed(tmp_path: Path) -> None:
    options = scalable.Options(
        # Twelve kills: what a cut loses counts only if a consumer had not read it before, which chance decides.
        operations=24,
        seed=4,
        folder=tmp_path,
        pause_s=0.05,
        operations_per_kill=2,
        per_second=200,
        quiet_s=3.0,
        sabotage=True,
    )
    assert scalable.run(options) == 1
