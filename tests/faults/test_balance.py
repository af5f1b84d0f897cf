"""`--brokers 3` with the load balancer: bundles that move under load, and processes that are killed while they do."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pulsar
import pytest

from anabranch import blocking
from harness.broker_process import RestFailed, rest_call, until
from harness.cluster_process import ClusterProcess, broker

pytestmark = pytest.mark.timeout(300)

TOPICS = [f"persistent://public/default/orders-{number}" for number in range(8)]
BALANCED: dict[str, object] = {"loadManagerClassName": "ExtensibleLoadManagerImpl"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path, BALANCED, brokers=3) as made:
        yield made


def publish(url: str, text: str) -> None:
    """One message to each topic; returns once all are stored."""
    with blocking.connect(url) as client:
        for topic in TOPICS:
            with client.producer(topic) as producer:
                producer.send(f"{text} to {topic}".encode())


def stored(url: str, *texts: str) -> bool:
    """Whether every topic holds these, in this order, read by a subscription that was never used before."""
    with blocking.connect(url) as client:
        for topic in TOPICS:
            with client.stream_consumer(topic, subscription=secrets.token_hex(4), start="earliest") as stream:
                for text in texts:
                    assert stream.receive(60).value == f"{text} to {topic}".encode()
    return True


# -- bundles and their owners


def states(cluster: ClusterProcess) -> dict[str, dict[str, Any]]:
    """Of the default namespace's bundles, by range."""
    return {one["bundle"]: one for one in cluster.get("namespaces/public/default/bundleStates")}


def all_owned(cluster: ClusterProcess) -> bool:
    try:
        found = states(cluster).values()
    except RestFailed as refused:
        # A broker whose session with the metadata store is in doubt, as one that was paused, knows no owners for now.
        if refused.status != HTTPStatus.SERVICE_UNAVAILABLE:
            raise
        return False
    return all(one["state"] == "assigned" and one["owner"] for one in found)


def is_at(cluster: ClusterProcess, bundle: str, owner: str) -> bool:
    return bool(states(cluster)[bundle]["owner"] == owner)


def lookup(cluster: ClusterProcess, topic: str, what: str = "") -> Any:
    return rest_call(cluster.http_port, "GET", f"{topic.replace('://', '/')}{what}", root="/lookup/v2/topic/")


def processes(cluster: ClusterProcess) -> dict[str, str]:
    """The name of each broker's process by its web address: every broker has some of many topics."""
    found = [lookup(cluster, f"{TOPICS[0]}-{number}") for number in range(60)]
    webs = {one["brokerUrl"]: str(one["httpUrl"]).partition("://")[2] for one in found}
    return {webs[url]: name for name, url in cluster.own_urls.items()}


def move(cluster: ClusterProcess, bundle: str, to: str) -> None:
    """Asks for it; whether it comes about while processes are killed is for the test to see."""
    with contextlib.suppress(RestFailed, OSError):
        cluster.put(f"namespaces/public/default/{bundle}/unload?destinationBroker={to}")


# -- load


class Sending(threading.Thread):
    """Sends numbers to each topic, one after the other, and counts those that were stored."""

    def __init__(self, url: str, kind: str) -> None:
        super().__init__()
        self._url = url
        self._kind = kind
        self._is_over = threading.Event()
        self.stored = dict.fromkeys(TOPICS, 0)
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with contextlib.ExitStack() as stack:
                send = self._ours(stack) if self._kind == "ours" else self._wheels(stack)
                while not self._is_over.is_set():
                    for topic in TOPICS:
                        send[topic](b"%d" % self.stored[topic])
                        self.stored[topic] += 1
        except Exception as error:
            self.error = error

    def _ours(self, stack: contextlib.ExitStack) -> dict[str, Callable[[bytes], object]]:
        client = stack.enter_context(blocking.connect(self._url))
        return {topic: stack.enter_context(client.producer(topic)).send for topic in TOPICS}

    def _wheels(self, stack: contextlib.ExitStack) -> dict[str, Callable[[bytes], object]]:
        client = pulsar.Client(
            self._url, operation_timeout_seconds=60, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        stack.callback(client.close)
        return {topic: client.create_producer(topic, send_timeout_millis=60_000).send for topic in TOPICS}

    def has_stored_more_than(self, before: dict[str, int]) -> bool:
        return self.error is not None or all(self.stored[topic] > before[topic] for topic in TOPICS)

    def end(self) -> dict[str, int]:
        self._is_over.set()
        self.join(120)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.stored


def numbers(url: str, counts: dict[str, int]) -> None:
    """Every topic holds its numbers, in their order, each once."""
    with blocking.connect(url) as client:
        for topic, count in counts.items():
            with client.stream_consumer(topic, subscription=secrets.token_hex(4), start="earliest") as stream:
                found = [int(stream.receive(60).value) for _ in range(count)]
            assert found == list(range(count)), topic


# -- faults


def test_a_broker_that_is_killed_comes_back_and_loses_nothing(cluster: ClusterProcess) -> None:
    publish(cluster.url, "first")
    for index in range(3):
        former = cluster.kill_one(broker(index))
        publish(cluster.url, f"without {index}")
        cluster.await_again(broker(index), former)
    publish(cluster.url, "last")
    assert stored(cluster.url, "first", "without 0", "without 1", "without 2", "last")


def test_a_broker_that_is_stopped_gives_its_bundles_to_the_others(cluster: ClusterProcess) -> None:
    with blocking.connect(cluster.url) as client, contextlib.ExitStack() as stack:
        producers = [stack.enter_context(client.producer(topic)) for topic in TOPICS]

        def send(text: str) -> None:
            for topic, producer in zip(TOPICS, producers, strict=True):
                producer.send(f"{text} to {topic}".encode())

        send("first")
        for index in range(3):
            former = cluster.pids[broker(index)]
            os.kill(former, signal.SIGTERM)
            send(f"without {index}")
            cluster.await_again(broker(index), former)
        assert stored(cluster.url, "first", "without 0", "without 1", "without 2")
    assert cluster.log.count("topics to other brokers") == 3
    # Every topic was released by its former owner.
    assert "fenced" not in cluster.log


def test_all_of_them_stop_and_start_again_with_every_bundle_where_it_was(cluster: ClusterProcess) -> None:
    publish(cluster.url, "first")
    until(lambda: all_owned(cluster))
    before = {bundle: one["owner"] for bundle, one in states(cluster).items()}
    assert len(set(before.values())) == 3
    assert cluster.stop() == 0
    assert "Traceback" not in cluster.log
    cluster.start()
    assert stored(cluster.url, "first")
    cluster.restart()
    assert stored(cluster.url, "first")
    until(lambda: all(one["owner"] for one in cluster.get("namespaces/public/default/bundleStates")))


@pytest.mark.parametrize("client", ["ours", "wheel"])
def test_bundles_that_move_under_load_lose_and_reorder_nothing(cluster: ClusterProcess, client: str) -> None:
    until(lambda: all_owned(cluster))
    brokers = cluster.get("brokers")
    bundles = sorted({lookup(cluster, topic, "/bundle") for topic in TOPICS})
    load = Sending(cluster.url, client)
    load.start()
    until(lambda: load.error or min(load.stored.values()) > 5)
    for number in range(3):
        for bundle in bundles:
            # A bundle of which the broker is the owner already stays there.
            move(cluster, bundle, brokers[number])
            until(partial(is_at, cluster, bundle, brokers[number]))
        until(partial(load.has_stored_more_than, dict(load.stored)))
    numbers(cluster.url, load.end())
    # Every topic was released by its former owner, none was taken from it.
    assert "fenced" not in cluster.log
    assert "does not let go of it" not in cluster.log


@pytest.mark.parametrize("victim", ["source", "destination", "leader"])
def test_a_process_that_is_killed_while_bundles_move_leaves_each_with_one_owner(
    cluster: ClusterProcess, victim: str
) -> None:
    until(lambda: all_owned(cluster))
    names = processes(cluster)
    chance = random.Random(victim)
    load = Sending(cluster.url, "ours")
    load.start()
    for _ in range(2):
        until(lambda: all_owned(cluster))
        bundle = lookup(cluster, chance.choice(TOPICS), "/bundle")
        source = states(cluster)[bundle]["owner"]
        target = chance.choice([web for web in names if web != source])
        leader = until(lambda: led(cluster))
        moving = threading.Thread(target=move, args=(cluster, bundle, target))
        moving.start()
        name = names[{"source": source, "destination": target, "leader": leader}[victim]]
        former = cluster.kill_one(name)
        moving.join()
        cluster.await_again(name, former)
        until(partial(load.has_stored_more_than, dict(load.stored)))
    until(lambda: all_owned(cluster))
    counts = load.end()
    with blocking.connect(cluster.url) as client:
        for topic, count in counts.items():
            with client.stream_consumer(topic, subscription=secrets.token_hex(4), start="earliest") as stream:
                found = [int(stream.receive(60).value)]
                while found[-1] != count - 1:
                    found.append(int(stream.receive(60).value))
            # A message whose receipt was lost with a broker may be there twice, one after the other.
            assert sorted(set(found)) == list(range(count)), topic
            assert found == sorted(found), topic


def led(cluster: ClusterProcess) -> str:
    """The leader's web address; nothing while there is none."""
    with contextlib.suppress(RestFailed, OSError):
        return str(cluster.get("brokers/leaderBroker")["brokerId"])
    return ""


def test_while_the_leader_is_paused_no_owner_changes_and_clients_of_the_others_go_on(
    cluster: ClusterProcess,
) -> None:
    until(lambda: all_owned(cluster))
    names = processes(cluster)
    leader = led(cluster)
    gone, third = sorted(web for web in names if web != leader)
    port = int(third.rpartition(":")[2])
    before = states(cluster)
    former = cluster.pids[names[gone]]
    paused = cluster.pids[names[leader]]
    os.kill(paused, signal.SIGSTOP)
    try:
        cluster.kill_one(names[gone])
        # The third broker knows that the other one is gone, or that it was started again.
        found = until(lambda: lost(port, before, gone))
        # While the paused broker leads, no bundle has another state: nothing gives the lost ones to anybody.
        is_led = rest_call(port, "GET", "brokers/leaderBroker")["brokerId"] == leader
        assert is_led
        assert {one: now["version"] for one, now in found.items()} == {
            one: then["version"] for one, then in before.items()
        }
        for topic in TOPICS:
            owner = before[str(rest_call(port, "GET", f"{_path(topic)}/bundle", root="/lookup/v2/topic/"))][
                "owner"
            ]
            if owner == third:
                assert publish_one(cluster, names[third], topic)
    finally:
        os.kill(paused, signal.SIGCONT)
    cluster.await_again(names[gone], former)
    until(lambda: all_owned(cluster))
    publish(cluster.url, "last")


def lost(port: int, before: dict[str, dict[str, Any]], gone: str) -> dict[str, dict[str, Any]]:
    """The states as that broker knows them, once it knows that all bundles of the broker that is gone have none."""
    found = {one["bundle"]: one for one in rest_call(port, "GET", "namespaces/public/default/bundleStates")}
    was = [bundle for bundle, then in before.items() if then["owner"] == gone]
    return found if was and all(found[bundle]["owner"] is None for bundle in was) else {}


def publish_one(cluster: ClusterProcess, name: str, topic: str) -> bool:
    """Whether a broker stores a message of a client that knows only that broker."""
    with blocking.connect(cluster.own_urls[name]) as client, client.producer(topic) as producer:
        return producer.send(b"x") is not None


def _path(topic: str) -> str:
    return topic.replace("://", "/")
