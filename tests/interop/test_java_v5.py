"""Pulsar's V5 Java client and its admin client. Opt-in (`make interop`): they need a JDK 17 or later and Maven."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.broker_process import BrokerProcess
from interop import java_program

pytestmark = [pytest.mark.interop, pytest.mark.java]

GROUPS = ["admin", "producer", "stream", "queue", "checkpoint", "regular", "fault"]
# The V5 client never says that it leaves, so a consumer's segments move when its grace is over.
SETTINGS = {"scalableTopicConsumerSessionGracePeriodSeconds": 3}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    java_program.build()
    with BrokerProcess(tmp_path_factory.mktemp("broker"), SETTINGS) as process:
        yield process


@pytest.mark.timeout(900)
@pytest.mark.parametrize("group", GROUPS)
def test_every_claim_holds_with_the_v5_client(group: str, broker: BrokerProcess, tmp_path: Path) -> None:
    ended = java_program.run("V5Claims", broker, group, complaints=tmp_path / "stderr")
    assert ended.failed == [], ended.complaints
    assert ended.code == 0, ended.complaints


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1])
def test_every_kind_of_client_keeps_up_with_random_splits_and_merges(
    seed: int, broker: BrokerProcess, tmp_path: Path
) -> None:
    ended = java_program.run("Exerciser", broker, "30", str(seed), complaints=tmp_path / "stderr")
    assert ended.failed == [], ended.complaints
    assert ended.code == 0, ended.complaints
