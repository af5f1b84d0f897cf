"""The REST and the page of three broker processes: every one of them answers for all, also after one was killed."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch import blocking
from anabranch.client.reading.direct import plan_entries
from anabranch.storage.core.read_plan import decode
from anabranch.wire.batch import messages
from harness.broker_process import until
from harness.cluster_process import ClusterProcess, broker

# Several processes start in each test, and a busy machine takes its time.
pytestmark = pytest.mark.timeout(300)

RIDES = "persistent://public/default/rides"
TOPIC = "/admin/v2/persistent/public/default/rides"
LOAD = "/admin/v2/broker-stats/load-report"
PARTITIONS = 12
MESSAGES = 50


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path, {"scalableTopicLoadReportInterval": "1s"}, brokers=3) as made:
        yield made


def ask(port: int, path: str, method: str = "GET", body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    found = answer_of(port, path, method, data)
    return json.loads(found) if found[:1] in (b"{", b"[") else found.decode()


def answer_of(port: int, path: str, method: str = "GET", data: bytes | None = None) -> bytes:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())


def web_ports(cluster: ClusterProcess) -> list[int]:
    return [int(one.rpartition(":")[2]) for one in ask(cluster.http_port, "/admin/v2/brokers")]


def fill(cluster: ClusterProcess) -> None:
    ask(cluster.http_port, f"{TOPIC}/partitions", "PUT", PARTITIONS)
    ask(cluster.http_port, f"{TOPIC}/subscription/s", "PUT", "earliest")
    with blocking.connect(cluster.url) as client, client.producer(RIDES) as producer:
        for number in range(MESSAGES):
            producer.send(b"x", key=str(number))


def test_every_broker_answers_for_the_partitions_and_namespaces_of_all(cluster: ClusterProcess) -> None:
    fill(cluster)
    ports = web_ports(cluster)
    assert len(ports) == 3
    loads = [ask(port, LOAD) for port in ports]
    assert sum(load["numTopics"] > 0 for load in loads) > 1, "the partitions are at several brokers"
    for port in ports:
        found = ask(port, f"{TOPIC}/partitioned-stats")
        assert (len(found["partitions"]), found["msgInCounter"]) == (PARTITIONS, MESSAGES)
        assert found["subscriptions"]["s"]["msgBacklog"] == MESSAGES
        assert ask(port, "/admin/v2/brokers/health") == "ok"
        shown = ask(port, "/ui/api/overview")
        assert [one["isSilent"] for one in shown["brokers"]] == [False] * 3
    ask(ports[1], "/admin/v2/namespaces/public/default/clearBacklog", "POST")
    assert ask(ports[2], f"{TOPIC}/partitioned-stats")["subscriptions"]["s"]["msgBacklog"] == 0
    ask(ports[2], "/admin/v2/namespaces/public/default/unload", "PUT")
    # Nobody is connected, so nothing opens them again.
    assert [ask(port, LOAD)["numTopics"] for port in ports] == [0, 0, 0]
    ask(ports[0], f"{TOPIC}/partitions", "DELETE")
    assert ask(ports[1], "/admin/v2/persistent/public/default") == []


def test_partitions_of_a_killed_broker_are_answered_for_again(cluster: ClusterProcess) -> None:
    fill(cluster)
    former = cluster.kill_one(broker(1))

    def whole() -> bool:
        try:
            found = ask(cluster.http_port, f"{TOPIC}/partitioned-stats")
        except (urllib.error.URLError, ConnectionError):
            return False  # Refused for the moment: never a smaller sum.
        assert found["subscriptions"]["s"]["msgBacklog"] == MESSAGES
        return len(found["partitions"]) == PARTITIONS

    until(whole)
    cluster.await_again(broker(1), former)
    until(lambda: len(web_ports(cluster)) == 3)
    for port in web_ports(cluster):
        assert ask(port, f"{TOPIC}/partitioned-stats")["subscriptions"]["s"]["msgBacklog"] == MESSAGES


def test_a_broker_that_comes_back_leaves_the_clusters_record_to_the_operator(cluster: ClusterProcess) -> None:
    """A broker writes it at its start only if no other is there."""
    path = "/admin/v2/clusters/standalone"
    told = {**ask(cluster.http_port, path), "serviceUrl": "http://river.example.com:8080"}
    ask(cluster.http_port, path, "POST", told)
    former = cluster.kill_one(broker(1))
    cluster.await_again(broker(1), former)
    until(lambda: len(web_ports(cluster)) == 3)
    assert [ask(port, path)["serviceUrl"] for port in web_ports(cluster)] == [told["serviceUrl"]] * 3


def is_open_at(port: int, topic: str) -> bool:
    """Whether that broker serves the topic; one that owns it opens it for this question."""
    try:
        ask(port, f"{topic}/stats")
        return topic.rpartition("/")[2] in json.dumps(ask(port, "/admin/v2/broker-stats/topics"))
    except urllib.error.URLError:
        return False  # It moves at this moment.


def test_a_plan_of_any_broker_leads_to_the_files_of_every_owner_that_the_topic_had(
    cluster: ClusterProcess,
) -> None:
    """All of them write below one folder, which executors read without them."""
    name = "persistent/public/default/trips"
    with blocking.connect(cluster.url) as client, client.producer("trips") as producer:
        for number, port in enumerate(web_ports(cluster)):
            bundle = ask(port, f"/lookup/v2/topic/{name}/bundle")
            to = f"destinationBroker=127.0.0.1:{port}"
            ask(port, f"/admin/v2/namespaces/public/default/{bundle}/unload?{to}", "PUT")
            until(lambda port=port: is_open_at(port, f"/admin/v2/{name}"))  # type: ignore[misc]
            producer.send(b"%d" % number)
    for port in web_ports(cluster):
        plan = decode(answer_of(port, f"/admin/v2/anabranch/read-plan/{name}"))
        found = [bytes(payload) for _, _, data in plan_entries(plan) for _, payload in messages(data)]
        assert found == [b"0", b"1", b"2"]
        assert len({file.rpartition("/")[0] for file in plan.files}) == 3, "each broker has written one"
