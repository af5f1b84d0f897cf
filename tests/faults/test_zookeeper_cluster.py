"""`anabranch broker`, three times, with the metadata on real ZooKeeper servers: whatever is killed, paused or cut off,
nothing that was acknowledged is lost, and no two brokers confirm the same topic."""

from __future__ import annotations

import json
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from soak.link import Link, ProducerClosed, Refused, send_frame

from anabranch import blocking
from anabranch.wire.batch import messages
from faults.test_stopped import receipts_until_quiet
from harness.broker_process import until
from harness.minio import bucket_url
from harness.zookeeper import Ensemble, SingleServer
from harness.zookeeper_cluster import SESSION_MS, MemberProcess, ZooKeeperCluster

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(300)]

TOPICS = [f"persistent://public/default/orders-{number}" for number in range(8)]
TAKEN = "persistent://public/default/taken"
SIMPLE, BALANCED = "simple", "balanced"


@pytest.fixture(scope="module")
def server() -> Iterator[SingleServer]:
    made = SingleServer()
    yield made
    made.stop()


@pytest.fixture(params=["files", "objects", pytest.param("minio", marks=pytest.mark.objects)])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ZooKeeperCluster]:
    """Three brokers on each kind of log."""
    log_url = f"{'file' if request.param == 'files' else 'objects'}://{tmp_path}/shared"
    if request.param == "minio":
        log_url = bucket_url(f"cluster-{secrets.token_hex(8)}")
    server = SingleServer()
    try:
        with ZooKeeperCluster(tmp_path, server.ports(), log_url=log_url) as made:
            made.server = server.server
            yield made
    finally:
        server.stop()


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


def another(cluster: ZooKeeperCluster, than: MemberProcess) -> MemberProcess:
    return next(one for one in cluster.brokers if one is not than)


def owner_of(cluster: ZooKeeperCluster, topic: str, asked: MemberProcess | None = None) -> MemberProcess:
    found: MemberProcess = until(lambda: cluster.owner(topic, asked or cluster.brokers[0]))
    return found


def published(cluster: ZooKeeperCluster, topic: str, by: MemberProcess, payload: bytes) -> bool:
    """Whether the owner that this broker names has stored it."""
    owner = cluster.owner(topic, by)
    if owner is None:
        return False
    try:
        with Link(owner.port) as link:
            link.producer(topic)
            link.publish(payload, 0)
    except (Refused, ProducerClosed, OSError):
        return False
    return True


@pytest.mark.parametrize("manager", [SIMPLE, BALANCED])
def test_brokers_find_each_other_and_share_the_topics(
    tmp_path: Path, manager: str, server: SingleServer
) -> None:
    chroot = f"/{manager}"
    settings = {"loadManagerClassName": manager}
    with ZooKeeperCluster(tmp_path, server.ports(), chroot=chroot, settings=settings) as cluster:
        publish(cluster.url, "first")
        assert stored(cluster.url, "first")

        def owners() -> set[str]:
            """Of all topics, if the brokers agree about them."""
            told = [[cluster.owner(topic, asked) for topic in TOPICS] for asked in cluster.brokers]
            return {one.url for one in told[0] if one} if told[0] == told[1] == told[2] else set()

        # The load balancer gives a bundle to whichever broker has least to do, which may be one for all.
        assert until(lambda: len(owners()) > (manager == SIMPLE))
        shown = json.loads(cluster.cluster("status", "--json").stdout)
        assert [one["service"] for one in shown["brokers"]] == sorted(one.url for one in cluster.brokers)
        assert {one["state"] for one in shown["brokers"]} == {"serving"}
        # Partitions are asked of their owners, over links that both ends have proved to be of the cluster.
        asked = cluster.brokers[0]
        asked.put("persistent/public/default/parts/partitions", 6)
        with blocking.connect(cluster.url) as client, client.producer("parts") as producer:
            for number in range(12):
                producer.send(b"%d" % number)
        assert asked.get("persistent/public/default/parts/partitioned-stats")["msgInCounter"] == 12
        for broker in cluster.brokers:
            assert broker.stop() == 0
        assert cluster.cluster("status").returncode == 1


def test_the_topics_of_a_broker_that_is_killed_go_to_others_and_nothing_is_lost(
    cluster: ZooKeeperCluster,
) -> None:
    publish(cluster.url, "first")
    texts = ["first"]
    for number, victim in enumerate(cluster.brokers):
        victim.kill()
        publish(cluster.url, f"without {number}")
        texts.append(f"without {number}")
        assert stored(cluster.url, *texts)
        victim.start()
    publish(cluster.url, "last")
    assert stored(cluster.url, *texts, "last")


def test_a_broker_that_is_killed_is_missed_before_its_session_ends(
    tmp_path: Path, server: SingleServer
) -> None:
    settings = {"metadataStoreSessionTimeoutMillis": 120_000}
    with ZooKeeperCluster(tmp_path, server.ports(), chroot="/missed", settings=settings) as cluster:
        owner = owner_of(cluster, TAKEN)
        other = another(cluster, owner)
        assert published(cluster, TAKEN, other, b"before")
        told = f"looking after broker 127.0.0.1:{owner.port}"
        until(lambda: any(told in broker.log for broker in cluster.brokers))
        owner.kill()
        until(lambda: published(cluster, TAKEN, other, b"last"))
        assert _all_of(cluster, TAKEN, other) == [b"before", b"last"]


def test_a_broker_that_is_paused_confirms_nothing_once_another_has_its_topic(
    cluster: ZooKeeperCluster,
) -> None:
    owner = owner_of(cluster, TAKEN)
    other = another(cluster, owner)
    with Link(owner.port) as link:
        link.producer(TAKEN)
        for number in range(20):
            link.publish(b"before %d" % number, number)
        owner.pause()
        until(lambda: cluster.owner(TAKEN, other) not in (None, owner))
        until(lambda: published(cluster, TAKEN, other, b"taken"))
        _send(link, 20)
        owner.resume()
        assert receipts_until_quiet(link) == []
    until(lambda: published(cluster, TAKEN, other, b"last"))
    assert _all_of(cluster, TAKEN, other) == [*(b"before %d" % n for n in range(20)), b"taken", b"last"]


def test_a_broker_whose_session_ends_confirms_nothing_once_another_has_its_topic(
    cluster: ZooKeeperCluster,
) -> None:
    """It is cut off from ZooKeeper, and from nothing else: clients and files are within its reach."""
    owner = owner_of(cluster, TAKEN)
    other = another(cluster, owner)
    with Link(owner.port) as link:
        link.producer(TAKEN)
        for number in range(20):
            link.publish(b"before %d" % number, number)
        for relay in owner.relays:
            relay.cut()
        until(lambda: cluster.owner(TAKEN, other) not in (None, owner))
        until(lambda: published(cluster, TAKEN, other, b"taken"))
        _send(link, 20)
        assert receipts_until_quiet(link) == []
    for relay in owner.relays:
        relay.open()
    # It is one of three again, if it has not ended.
    if not owner.is_running:
        owner.wait()
        owner.start()
    until(lambda: len(json.loads(cluster.cluster("status", "--json").stdout)["brokers"]) == 3)
    until(lambda: published(cluster, TAKEN, other, b"last"))
    assert _all_of(cluster, TAKEN, other) == [*(b"before %d" % n for n in range(20)), b"taken", b"last"]


def test_without_zookeeper_open_topics_go_on_and_stay_where_they_are(cluster: ZooKeeperCluster) -> None:
    topics = [f"persistent://public/default/held-{number}" for number in range(6)]
    before = {topic: owner_of(cluster, topic) for topic in topics}
    assert len(set(before.values())) > 1
    links = {topic: Link(owner.port) for topic, owner in before.items()}
    try:
        for topic, link in links.items():
            link.producer(topic)
            link.subscribe(topic, "s", permits=10_000)
        cluster.server.kill()
        for broker in cluster.brokers:
            until(lambda broker=broker: "is in doubt" in broker.log)  # type: ignore[misc]
        # For longer than a session may be silent.
        sequence, ends = 0, time.monotonic() + 2 * SESSION_MS / 1000
        while time.monotonic() < ends or sequence < 20:
            for link in links.values():
                link.publish(b"%d" % sequence, sequence)
                (frame,) = link.messages(1)
                link.ack([frame.command.message.message_id])
            sequence += 1
        cluster.server.start()
        for broker in cluster.brokers:
            until(lambda broker=broker: "goes on" in broker.log)  # type: ignore[misc]
        until(lambda: len(json.loads(cluster.cluster("status", "--json").stdout)["brokers"]) == 3)
        # The same connections, the same owners.
        for link in links.values():
            link.publish(b"after", sequence)
        assert {topic: owner_of(cluster, topic) for topic in topics} == before
    finally:
        for link in links.values():
            link.close()
    # What needs the metadata works again.
    with blocking.connect(cluster.url) as client, client.producer("made-after") as producer:
        producer.send(b"x")


def test_after_a_pause_that_ends_all_sessions_the_brokers_share_the_topics_again(
    cluster: ZooKeeperCluster,
) -> None:
    """ZooKeeper counts the time of its own pause against every session."""
    publish(cluster.url, "first")
    sessions = [next(iter(broker.relays[0].passwords)) for broker in cluster.brokers]
    cluster.server.send_signal(signal.SIGSTOP)
    for broker in cluster.brokers:
        until(lambda broker=broker: "is in doubt" in broker.log)  # type: ignore[misc]
    ends = time.monotonic() + 2 * SESSION_MS / 1000
    until(lambda: time.monotonic() > ends)
    cluster.server.send_signal(signal.SIGCONT)
    for broker, session in zip(cluster.brokers, sessions, strict=True):
        until(lambda broker=broker, session=session: set(broker.relays[0].passwords) - {session})  # type: ignore[misc]
    until(lambda: len(json.loads(cluster.cluster("status", "--json").stdout)["brokers"]) == 3)
    publish(cluster.url, "second")
    assert stored(cluster.url, "first", "second")
    assert all(broker.is_running for broker in cluster.brokers)


def test_the_death_of_the_ensembles_leader_is_hardly_noticed(tmp_path: Path) -> None:
    ensemble = Ensemble()
    try:
        ports = [server.port for server in ensemble.servers]
        with ZooKeeperCluster(tmp_path, ports) as cluster:
            publish(cluster.url, "first")
            ensemble.leader.kill()
            publish(cluster.url, "second")
            with blocking.connect(cluster.url) as client, client.producer("made-after") as producer:
                producer.send(b"x")
            assert stored(cluster.url, "first", "second")
            assert all(broker.is_running for broker in cluster.brokers)
    finally:
        ensemble.stop()


def _send(link: Link, start: int) -> None:
    """Some messages; nothing waits for their receipts."""
    for number in range(start, start + 20):
        link.sock.sendall(send_frame([b"late %d" % number], number))


def _all_of(cluster: ZooKeeperCluster, topic: str, asked: MemberProcess) -> list[bytes]:
    """What the topic holds, up to `last`."""

    def read() -> list[bytes]:
        found: list[bytes] = []
        owner = cluster.owner(topic, asked)
        if owner is None:
            return []
        try:
            with Link(owner.port) as link:
                link.subscribe(topic, secrets.token_hex(4), permits=1_000)
                while b"last" not in found:
                    (frame,) = link.messages(1)
                    found.append(bytes(messages(frame.payload)[0][1]))
        except (Refused, OSError, AssertionError):
            return []
        return found

    held: list[bytes] = until(read)
    return held
