"""Schemas over their life, and policies under connected clients, with Java clients. Opt-in (`make interop`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.broker_process import BrokerProcess
from interop import java_program

pytestmark = [pytest.mark.interop, pytest.mark.java]


@pytest.mark.timeout(900)
def test_every_claim_about_policies_holds_with_the_java_clients(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    java_program.build()
    ended = java_program.run("PolicyClaims", broker, complaints=tmp_path / "stderr")
    assert ended.failed == [], ended.complaints
    assert ended.code == 0, ended.complaints
