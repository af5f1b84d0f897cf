"""What operators do to a scalable topic whose segments are on several brokers, sent to whichever of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch import blocking
from anabranch.cli.main import main
from harness.cluster_process import ClusterProcess

pytestmark = pytest.mark.timeout(300)

TOPIC = "topic://public/default/wide"
COUNT = 60


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path, brokers=3) as made:
        yield made


def test_verbs_reach_every_segment_whichever_broker_has_it(
    cluster: ClusterProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    admin = f"http://127.0.0.1:{cluster.http_port}"

    def run(*words: str) -> Any:
        assert main([*words, "--admin-url", admin, "--json"]) == 0, capfd.readouterr().err
        return json.loads(capfd.readouterr().out)

    run("topics", "create", TOPIC, "--segments", "12")
    run("subscriptions", "create", TOPIC, "s", "--type", "queue", "--start", "earliest")
    with blocking.connect(cluster.url) as client, client.producer(TOPIC, batching=False) as producer:
        for n in range(COUNT):
            producer.send(b"%d" % n, key=str(n))
    found = run("topics", "peek", TOPIC, "-n", str(COUNT + 1), "--start", "earliest")
    # Messages of one millisecond may come in any order.
    assert sorted(int(message["payload"]) for message in found) == list(range(COUNT))
    assert len({message["id"].partition(":")[0] for message in found}) > 6
    run("subscriptions", "skip", TOPIC, "s", "25")
    assert run("subscriptions", "analyze-backlog", TOPIC, "s")["messages"] == COUNT - 25
    assert run("subscriptions", "peek", TOPIC, "s")[0]["payload"] == found[25]["payload"]
    assert run("topics", "message", TOPIC, found[40]["id"])[0]["payload"] == found[40]["payload"]
    run("topic-policies", "set-message-ttl", TOPIC, "5m")
    assert run("topic-policies", "get-message-ttl", TOPIC) == 300
    run("topics", "truncate", TOPIC)
    assert run("subscriptions", "analyze-backlog", TOPIC, "s")["messages"] == 0
    run("topics", "terminate", TOPIC)
    capfd.readouterr()
    assert main(["produce", TOPIC, "-m", "x", "--service-url", cluster.url]) == 1
    assert "was terminated" in capfd.readouterr().err
