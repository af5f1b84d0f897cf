"""What operators do about the owners of bundles with Pulsar's Java admin client, on brokers with the load balancer.
Opt-in (`make interop`): it needs a JDK 17 or later and Maven."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.broker_process import BrokerProcess
from interop import java_program

pytestmark = [pytest.mark.interop, pytest.mark.java]


@pytest.mark.timeout(900)
def test_every_claim_about_owners_holds(tmp_path: Path) -> None:
    java_program.build()
    folder = tmp_path / "data"
    folder.mkdir()
    with BrokerProcess(folder, {"loadManagerClassName": "balanced"}, brokers=3) as broker:
        ended = java_program.run("BalancerClaims", broker, complaints=tmp_path / "stderr")
    assert ended.failed == [], ended.complaints
    assert ended.code == 0, ended.complaints
    assert len(ended.lines) == 8
