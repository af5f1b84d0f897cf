"""What operators do with Pulsar's Java admin client. Opt-in (`make interop`): it needs a JDK 17 or later and Maven."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.cli.main import main
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


@pytest.mark.timeout(900)
def test_its_calls_for_classic_topics_reach_scalable_ones(broker: BrokerProcess, tmp_path: Path) -> None:
    java_program.build()
    reach = ("--admin-url", f"http://127.0.0.1:{broker.http_port}")
    topic = "topic://public/default/verbs"
    assert main(["topics", "create", topic, "--segments", "2", *reach]) == 0
    assert (
        main(["subscriptions", "create", topic, "s", "--type", "queue", "--start", "earliest", *reach]) == 0
    )
    for number in range(6):
        words = ["-m", f"m{number}", "--key", str(number), "-q", "--service-url", broker.url]
        assert main(["produce", topic, *words]) == 0
        if number == 2:
            assert main(["topics", "split", topic, "0", *reach]) == 0
    ended = java_program.run("ScalableVerbClaims", broker, complaints=tmp_path / "stderr")
    assert ended.failed == [], ended.complaints
    assert ended.code == 0, ended.complaints
