"""What operators do with Pulsar's Java admin client. Opt-in (`make interop`): it needs a JDK 17 or later and Maven."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.broker_process import BrokerProcess
from interop import java_program

pytestmark = [pytest.mark.interop, pytest.mark.java]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("claims", ["OperatorClaims", "UpkeepClaims"])
def test_every_claim_of_an_operator_holds(broker: BrokerProcess, tmp_path: Path, claims: str) -> None:
    java_program.build()
    ended = java_program.run(claims, broker, complaints=tmp_path / "stderr")
    assert ended.failed == [], ended.complaints
    assert ended.code == 0, ended.complaints
