"""How the topics of a namespace are shared by three broker processes, and how an operator changes that."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from anabranch import blocking
from anabranch.cli.main import main
from harness.broker_process import BrokerProcess, until
from harness.cluster_process import ClusterProcess

# Several processes start in each test, and a busy machine takes its time.
pytestmark = pytest.mark.timeout(300)

Capture = pytest.CaptureFixture[str]

TOPICS = [f"persistent://public/default/orders-{number}" for number in range(30)]


def publish(url: str) -> None:
    with blocking.connect(url) as client:
        for topic in TOPICS:
            with client.producer(topic) as producer:
                producer.send(b"x")


def told(broker: BrokerProcess, capsys: Capture, *words: str) -> Any:
    """The answer to a command."""
    capsys.readouterr()
    admin_url = f"http://127.0.0.1:{broker.http_port}"
    assert main([*words, "--json", "--admin-url", admin_url]) == 0, capsys.readouterr().err
    found = capsys.readouterr().out.strip()
    return json.loads(found) if found else None


def looked_up(broker: BrokerProcess, topic: str, what: str = "") -> str:
    """The broker that a lookup names, as `host:port` of its REST, or with `/bundle` the topic's bundle."""
    path = f"/lookup/v2/topic/{topic.replace('://', '/')}{what}"
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}{path}", timeout=30) as answer:
        found = answer.read().decode()
    return found if what else str(json.loads(found)["httpUrl"]).partition("://")[2]


def is_at(broker: BrokerProcess, topic: str, owner: str) -> bool:
    return looked_up(broker, topic) == owner


def test_a_new_namespace_is_shared_by_all_brokers_and_an_operator_moves_its_bundles(
    tmp_path: Path, capsys: Capture
) -> None:
    with ClusterProcess(tmp_path, brokers=3) as cluster:
        publish(cluster.url)
        brokers = told(cluster, capsys, "brokers", "list")
        assert len(brokers) == 3
        assert told(cluster, capsys, "namespaces", "bundles", "public/default")["numBundles"] == 64
        shares = Counter(looked_up(cluster, topic) for topic in TOPICS)
        assert shares.keys() == set(brokers)
        told(cluster, capsys, "tenants", "create", "acme")
        told(cluster, capsys, "namespaces", "create", "acme/new")
        told(cluster, capsys, "namespaces", "create", "acme/few", "--bundles", "2")
        assert told(cluster, capsys, "namespaces", "bundles", "acme/new")["numBundles"] == 64
        assert told(cluster, capsys, "namespaces", "bundles", "acme/few")["numBundles"] == 2
        # Moved to each broker in turn, with the message that is in it.
        topic = TOPICS[0]
        bundle = looked_up(cluster, topic, "/bundle")
        for target in (*brokers, brokers[0]):
            words = ("namespaces", "unload", "public/default", "--bundle", bundle)
            told(cluster, capsys, *words, "--destination-broker", target)
            until(partial(is_at, cluster, topic, target))
            with blocking.connect(cluster.url) as client:
                reader = client.checkpoint_consumer(topic, start="earliest")
                assert reader.receive(timeout_s=60).value == b"x"


def test_the_namespaces_of_a_folder_keep_their_bundles_when_several_brokers_open_it(
    tmp_path: Path, capsys: Capture
) -> None:
    with BrokerProcess(tmp_path, brokers=1) as one:
        publish(one.url)
        before = told(one, capsys, "namespaces", "bundles", "public/default")
        assert before["numBundles"] == 4
        assert one.stop() == 0
    with ClusterProcess(tmp_path, brokers=3) as cluster:
        assert told(cluster, capsys, "namespaces", "bundles", "public/default") == before
        brokers = told(cluster, capsys, "brokers", "list")
        # Four bundles are enough for three brokers.
        assert {looked_up(cluster, topic) for topic in TOPICS} == set(brokers)
        bundle = looked_up(cluster, TOPICS[0], "/bundle")
        owner = looked_up(cluster, TOPICS[0])
        told(cluster, capsys, "namespaces", "split-bundle", "public/default", "-b", bundle)
        until(lambda: told(cluster, capsys, "namespaces", "bundles", "public/default")["numBundles"] == 5)
        half = looked_up(cluster, TOPICS[0], "/bundle")
        assert half != bundle
        assert looked_up(cluster, TOPICS[0]) == owner
        assert cluster.stop() == 0
    with BrokerProcess(tmp_path, brokers=1) as one:
        assert told(one, capsys, "namespaces", "bundles", "public/default")["numBundles"] == 5
