"""A folder that was restored in part, or tidied up: the broker says so and touches nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from soak.link import Link

from harness.broker_process import BrokerProcess

TOPIC = "persistent://public/default/kept"
STATS = "persistent/public/default/kept/internalStats"


@pytest.mark.parametrize("lost", ["metadata.sqlite", "log"])
def test_one_half_of_a_folder_is_refused_and_kept_for_the_other(tmp_path: Path, lost: str) -> None:
    with BrokerProcess(tmp_path) as broker:
        with Link(broker.port) as link:
            link.producer(TOPIC)
            link.publish(b"kept", 0)
        broker.stop()
        part = tmp_path / "data" / lost
        shutil.move(part, tmp_path / "away")
        for _ in range(2):
            with pytest.raises((AssertionError, RuntimeError)):
                broker.start()
            assert "restore" in broker.log.lower()
            assert not part.exists() or lost == "log"
        shutil.rmtree(part, ignore_errors=True)
        shutil.move(tmp_path / "away", part)
        broker.start()
        assert broker.rest("GET", STATS)["numberOfEntries"] == 1
