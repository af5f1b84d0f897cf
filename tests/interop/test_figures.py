"""Figures of a real broker over its restarts: messages are counted, and nobody is told 0 of a topic that has more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from anabranch import blocking
from harness.broker_process import BrokerProcess, rest_call

pytestmark = pytest.mark.interop

SENT = 1000
CLASSIC, SCALABLE = "persistent://public/default/old", "topic://public/default/new"


def stats(broker: BrokerProcess) -> dict[str, Any]:
    """What `anabranch stats` says, by topic."""
    told = subprocess.run(
        [sys.executable, "-m", "anabranch.cli", "stats", "--json"],
        env={"ANABRANCH_ADMIN_URL": f"http://127.0.0.1:{broker.http_port}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return {row["topic"]: row for row in json.loads(told.stdout)}


def overview(broker: BrokerProcess) -> dict[str, Any]:
    told = rest_call(broker.http_port, "GET", "overview", root="/ui/api/")
    return {row["name"]: row for row in told["topics"]}


@pytest.mark.parametrize("is_clean", [True, False])
def test_backlogs_count_messages_before_and_after_a_restart(tmp_path: Path, is_clean: bool) -> None:
    with BrokerProcess(tmp_path, brokers=1) as broker:
        broker.put("persistent/public/default/old/subscription/billing")
        broker.put("scalable/public/default/new?numInitialSegments=2")
        broker.put("scalable/public/default/new/subscriptions/billing", {"type": "QUEUE"})
        with blocking.connect(broker.url) as client:
            for topic in (CLASSIC, SCALABLE):
                with client.producer(topic) as producer:
                    for n in range(SENT):
                        producer.post(b"%d" % n, key=str(n))
                    producer.flush()
        counted = {CLASSIC: SENT, SCALABLE: SENT}
        assert {name: row["backlog"] for name, row in stats(broker).items()} == counted
        found = broker.stats(CLASSIC)
        assert found["subscriptions"]["billing"]["msgBacklog"] == SENT
        # What it was that the backlog counted before: far fewer.
        assert broker.get("persistent/public/default/old/internalStats")["numberOfEntries"] < SENT // 2

        if is_clean:
            broker.stop()
            broker.start()
            assert {name: row["backlog"] for name, row in stats(broker).items()} == counted
            assert {name: row["stored_bytes"] for name, row in stats(broker).items()} == dict.fromkeys(
                counted
            )
        else:
            broker.restart()
        assert {name: row["backlog"] for name, row in overview(broker).items()} == (
            counted if is_clean else dict.fromkeys(counted)
        )
        # Whoever asks about one topic has it opened, and is told what is stored.
        assert broker.stats(CLASSIC)["subscriptions"]["billing"]["msgBacklog"] == SENT
        assert (
            broker.get("scalable/public/default/new/stats")["subscriptions"]["billing"]["msgBacklog"] == SENT
        )
        assert {name: row["backlog"] for name, row in stats(broker).items()} == counted
        assert all(row["stored_bytes"] > SENT for row in stats(broker).values())
