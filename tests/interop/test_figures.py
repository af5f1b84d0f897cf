"""Figures of a real broker over its restarts: messages are counted, and nobody is told 0 of a topic that has more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from anabranch import blocking
from anabranch.cli.main import main
from harness.broker_process import BrokerProcess, rest_call, until

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
    # No load history, whose topic is one more in the statistics as soon as a report is written.
    with BrokerProcess(tmp_path, {"loadHistoryEnabled": False}, brokers=1) as broker:
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


def test_stats_are_of_the_topics_of_all_brokers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shared port led to one of several brokers: `stats` showed a part of the topics, and of a topic's backlog."""
    with BrokerProcess(tmp_path, brokers=3) as broker:
        until(lambda: len(broker.get("brokers")) == 3)
        broker.put("scalable/public/default/wide?numInitialSegments=6")
        broker.put("scalable/public/default/wide/subscriptions/s?type=STREAM")
        names = [f"topic-{n}" for n in range(6)]
        with blocking.connect(broker.url) as client:
            for name in names:
                with client.producer(f"persistent://public/default/{name}") as producer:
                    producer.send(b"x")
            with client.producer("topic://public/default/wide") as producer:
                for n in range(60):
                    producer.send(b"x", key=str(n))
        url = f"http://127.0.0.1:{broker.http_port}"
        capsys.readouterr()
        assert main(["stats", "--admin-url", url, "--json"]) == 0
        shown = {row["topic"]: row for row in json.loads(capsys.readouterr().out)}
        assert set(shown) >= {f"persistent://public/default/{name}" for name in names}
        assert shown["topic://public/default/wide"]["backlog"] == 60
