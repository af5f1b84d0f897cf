"""`anabranch standalone --brokers 3`: whichever of its processes is killed or stopped, the others serve, nothing that
was acknowledged is lost, and nothing outlives the supervisor."""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from soak.ports import free_port

from anabranch import blocking
from harness.broker_process import BrokerProcess, until
from harness.cluster_process import METADATA, ClusterProcess, broker, connected_ports, is_alive

# Several processes start in each test, and a busy machine takes its time.
pytestmark = pytest.mark.timeout(300)

TOPICS = [f"persistent://public/default/orders-{number}" for number in range(8)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path, brokers=3) as made:
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


def http_status(port: int, method: str, path: str, body: bytes | None = None) -> int:
    """The status of one answer, without following a redirect."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        return connection.getresponse().status


def refused(started: BrokerProcess) -> str:
    """What a start that must fail says."""
    ended = subprocess.run(started.command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    return ended.stderr


def test_three_brokers_serve_one_port_and_stop_with_nothing_left(cluster: ClusterProcess) -> None:
    publish(cluster.url, "first")
    assert stored(cluster.url, "first")
    assert len(set(cluster.own_urls.values())) == 3
    pids = [cluster.pid, *cluster.pids.values()]
    assert cluster.stop() == 0
    assert not any(is_alive(pid) for pid in pids)
    # The brokers needed the metadata to close: it stopped last.
    lines = [line for line in cluster.log.splitlines() if line.endswith((" stopping", " stopped"))]
    assert [METADATA in line for line in lines] == [False, False, False, False, True, False]
    cluster.start()
    assert stored(cluster.url, "first")


def test_a_signal_to_every_process_at_once_stops_them_in_order(cluster: ClusterProcess) -> None:
    """As systemd sends it by default."""
    publish(cluster.url, "first")
    for pid in (*cluster.pids.values(), cluster.pid):
        os.kill(pid, signal.SIGTERM)
    assert cluster.wait() == 0
    assert cluster.log.count(" stopped") == 4
    assert "Traceback" not in cluster.log


@pytest.fixture
def in_a_terminal() -> Iterator[None]:
    """Tests that run under `nohup` ignore SIGHUP, and so would what they start."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("in_a_terminal")
def test_a_terminal_that_is_closed_stops_them_in_order(cluster: ClusterProcess) -> None:
    publish(cluster.url, "first")
    os.kill(cluster.pid, signal.SIGHUP)
    assert cluster.wait() == 0
    assert cluster.log.count(" stopped") == 4


def test_a_broker_that_is_killed_comes_back_and_loses_nothing(cluster: ClusterProcess) -> None:
    publish(cluster.url, "first")
    for index in range(3):
        former = cluster.kill_one(broker(index))
        publish(cluster.url, f"without {index}")
        cluster.await_again(broker(index), former)
    publish(cluster.url, "last")
    assert stored(cluster.url, "first", "without 0", "without 1", "without 2", "last")


def test_the_metadata_process_that_is_killed_comes_back_and_brokers_stay(cluster: ClusterProcess) -> None:
    publish(cluster.url, "first")
    before = cluster.pids
    cluster.await_again(METADATA, cluster.kill_one(METADATA))
    publish(cluster.url, "second")
    assert {**cluster.pids, METADATA: 0} == {**before, METADATA: 0}
    assert stored(cluster.url, "first", "second")


def test_a_supervisor_that_is_killed_leaves_nothing_behind(cluster: ClusterProcess) -> None:
    publish(cluster.url, "first")
    pids = list(cluster.pids.values())
    # Also not a process that cannot run.
    os.kill(pids[-1], signal.SIGSTOP)
    cluster.kill()
    until(lambda: not any(is_alive(pid) for pid in pids))
    cluster.start()
    assert stored(cluster.url, "first")


def test_a_second_signal_ends_a_stop_that_hangs(cluster: ClusterProcess) -> None:
    pids = cluster.pids
    os.kill(pids[broker(1)], signal.SIGSTOP)
    supervisor = cluster.pid
    os.kill(supervisor, signal.SIGTERM)
    until(lambda: not is_alive(pids[broker(0)]))
    os.kill(supervisor, signal.SIGTERM)
    assert cluster.wait() == 128 + signal.SIGTERM
    assert not any(is_alive(pid) for pid in pids.values())


def test_a_broker_that_its_operator_stops_is_started_again(cluster: ClusterProcess) -> None:
    publish(cluster.url, "first")
    former = cluster.pids[broker(0)]
    os.kill(former, signal.SIGTERM)
    cluster.await_again(broker(0), former)
    assert stored(cluster.url, "first")


def test_a_broker_that_is_stopped_gives_its_topics_to_the_others(cluster: ClusterProcess) -> None:
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


def test_a_folder_of_one_broker_opens_with_several_and_the_other_way_round(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, brokers=1) as one:
        publish(one.url, "alone")
        assert one.stop() == 0
    with ClusterProcess(tmp_path, brokers=2) as two:
        publish(two.url, "by two")
        assert stored(two.url, "alone", "by two")
        two.kill()
    with BrokerProcess(tmp_path, brokers=1) as one:
        publish(one.url, "alone again")
        one.kill()
    with ClusterProcess(tmp_path, brokers=3) as three:
        assert stored(three.url, "alone", "by two", "alone again")


def test_a_folder_is_served_by_one_broker_or_one_cluster(cluster: ClusterProcess, tmp_path: Path) -> None:
    told = f"anabranch: another broker serves {cluster.folder / 'data'} already"
    assert refused(BrokerProcess(tmp_path, brokers=1)).startswith(told)
    assert refused(ClusterProcess(tmp_path, brokers=2)).startswith(told)
    cluster.kill()
    with BrokerProcess(tmp_path, brokers=1):
        assert refused(ClusterProcess(tmp_path, brokers=2)).startswith(told)


def test_a_taken_port_is_one_line_and_exit_code_1(cluster: ClusterProcess, tmp_path: Path) -> None:
    other = ClusterProcess(tmp_path / "other", brokers=2)
    other.port = cluster.port
    hint = "; --port and --http-port choose others\n"
    taken = f"anabranch: port {cluster.port} on 127.0.0.1 is in use by another program{hint}"
    assert refused(other) == taken
    own = free_port()
    with socket.create_server(("127.0.0.1", own)):
        other = ClusterProcess(tmp_path / "other", {"brokersFirstPort": own - 1}, brokers=2)
        taken = f"anabranch: port {own} on 127.0.0.1 is in use by another program{hint}"
        assert refused(other) == taken


def test_a_listener_that_all_brokers_would_share_is_refused(tmp_path: Path) -> None:
    settings = {"advertisedListeners": "outside:pulsar://river.example.com:6650"}
    assert "write {port} or {index} into it" in refused(ClusterProcess(tmp_path, settings, brokers=2))


def test_a_key_that_cannot_be_read_is_said_once(tmp_path: Path) -> None:
    settings = {"authenticationEnabled": True, "tokenSecretKey": "file:///nowhere/secret.key"}
    assert "tokenSecretKey cannot be read" in refused(ClusterProcess(tmp_path, settings, brokers=2))


def test_certificates_for_links_that_cannot_be_read_are_said_once(tmp_path: Path) -> None:
    settings = {"brokerClientTlsEnabled": True, "brokerClientTrustCertsFilePath": "/nowhere/ca.pem"}
    told = refused(ClusterProcess(tmp_path, settings, brokers=2))
    assert "brokers cannot reach each other with brokerClientTrustCertsFilePath" in told
    assert "/nowhere/ca.pem" in told


def test_metadata_that_cannot_be_read_ends_the_start_with_nothing_left(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "metadata.sqlite").write_bytes(b"no database" * 1000)
    ended = subprocess.run(
        ClusterProcess(tmp_path, brokers=2).command, capture_output=True, text=True, timeout=60, check=False
    )
    # The pipes are closed: every process that had them has ended.
    assert ended.returncode == 1
    assert "anabranch: metadata: " in ended.stderr


def test_with_one_port_clients_reach_every_broker_through_it(tmp_path: Path) -> None:
    # Tests before this one may have left connections of their own.
    before = connected_ports()
    with (
        ClusterProcess(tmp_path, {"brokersOnePort": True}, brokers=3) as cluster,
        blocking.connect(cluster.url) as client,
        contextlib.ExitStack() as stack,
    ):
        producers = [stack.enter_context(client.producer(topic)) for topic in TOPICS]
        for topic, producer in zip(TOPICS, producers, strict=True):
            producer.send(f"through one port to {topic}".encode())
        assert connected_ports() - before == {cluster.port}
        assert stored(cluster.url, "through one port")
        # Requests for other brokers are answered too, not redirected to ports that cannot be reached.
        for topic in TOPICS:
            path = "/admin/v2/" + topic.replace("://", "/")
            assert http_status(cluster.http_port, "GET", f"{path}/stats") == 200
            assert http_status(cluster.http_port, "PUT", f"{path}/subscription/billing", b'"latest"') == 204
            assert "billing" in cluster.stats(topic)["subscriptions"]
        cluster.await_again(broker(0), cluster.kill_one(broker(0)))
        assert stored(cluster.url, "through one port")


def test_one_port_with_tls_is_refused(tmp_path: Path) -> None:
    settings: dict[str, object] = {"brokersOnePort": True, "brokerServicePortTls": free_port()}
    settings |= {"tlsCertificateFilePath": "cert.pem", "tlsKeyFilePath": "key.pem"}
    assert "which TLS hides" in refused(ClusterProcess(tmp_path, settings, brokers=2))
