"""The short forms of `make soak-cluster`: two kills, a pause and a move of three brokers under the whole mixed load;
with the balancer a split, a move, and kills of a bundle's owner and of the leader while it moves bundles."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak import cluster, cluster_balanced
from soak.cluster import FaultKind

PLAN = (FaultKind.KILL, FaultKind.MOVE, FaultKind.LONG_PAUSE, FaultKind.KILL)
BALANCED = (FaultKind.SPLIT_BUNDLE, FaultKind.KILL_LEADER, FaultKind.MOVE, FaultKind.KILL_OWNER)


@pytest.mark.timeout(400)
def test_faults_of_single_processes_lose_reorder_double_and_skip_nothing(tmp_path: Path) -> None:
    options = cluster.Options(seconds=0, every=4.0, seed=5, folder=tmp_path, plan=PLAN)
    assert cluster.run(options) == 0


@pytest.mark.timeout(400)
def test_faults_of_the_load_balancer_lose_nothing_and_leave_no_bundle_without_an_owner(
    tmp_path: Path,
) -> None:
    options = cluster.Options(seconds=0, every=3.0, seed=6, folder=tmp_path, plan=BALANCED)
    assert cluster_balanced.run(options) == 0
