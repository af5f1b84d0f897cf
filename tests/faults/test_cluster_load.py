"""The short form of `make soak-cluster`: two kills, a pause and a move of three brokers under the whole mixed load."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak import cluster
from soak.cluster import FaultKind

PLAN = (FaultKind.KILL, FaultKind.MOVE, FaultKind.LONG_PAUSE, FaultKind.KILL)


@pytest.mark.timeout(400)
def test_faults_of_single_processes_lose_reorder_double_and_skip_nothing(tmp_path: Path) -> None:
    options = cluster.Options(seconds=0, every=4.0, seed=5, folder=tmp_path, plan=PLAN)
    assert cluster.run(options) == 0
