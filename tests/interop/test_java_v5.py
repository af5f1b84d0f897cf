"""Pulsar's V5 Java client and its admin client. Opt-in (`make interop`): they need a JDK 17 or later and Maven."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.broker_process import BrokerProcess
from interop import java_program

pytestmark = [pytest.mark.interop, pytest.mark.java]

GROUPS = ["admin", "producer", "stream", "queue", "checkpoint", "regular", "autoscale", "namespace", "fault"]
SETTINGS = {
    # The V5 client never says that it leaves; one that merely vanishes keeps its segments until its grace is over.
    "scalableTopicConsumerSessionGracePeriodSeconds": 3,
    # Claims say themselves when a topic splits, and those about automation switch it on for their own topics; the
    # random run takes whatever comes.
    "scalableTopicAutoScaleEnabled": False,
    "scalableTopicAutoScaleInterval": "1s",
    "scalableTopicLoadReportInterval": "500ms",
    "scalableTopicLoadReportWindow": "2s",
}


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


@pytest.mark.timeout(900)
def test_both_java_clients_store_everything_once_on_a_broker_that_deduplicates(tmp_path: Path) -> None:
    java_program.build()
    with BrokerProcess(tmp_path, SETTINGS | {"brokerDeduplicationEnabled": True}) as broker:
        ended = java_program.run("V5Claims", broker, "deduplication", complaints=tmp_path / "stderr")
    assert ended.failed == [], ended.complaints
    assert ended.code == 0, ended.complaints


@pytest.mark.timeout(600)
@pytest.mark.parametrize("by_itself", [False, True])
def test_every_kind_of_client_keeps_up_with_random_splits_and_merges(by_itself: bool, tmp_path: Path) -> None:
    java_program.build()
    settings = SETTINGS | {"scalableTopicAutoScaleEnabled": by_itself}
    with BrokerProcess(tmp_path, settings) as broker:
        ended = java_program.run("Exerciser", broker, "30", "1", complaints=tmp_path / "stderr")
    assert ended.failed == [], ended.complaints
    assert ended.code == 0, ended.complaints
