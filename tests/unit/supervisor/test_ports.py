"""Ports of a cluster: shared by its brokers and by no other program."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.runtime.listening import StartError, listen, port_of
from anabranch.supervisor.ports import ClusterPorts, PortGuard

HOST = "127.0.0.1"


@pytest.fixture
def guard() -> Iterator[PortGuard]:
    with contextlib.closing(PortGuard(HOST, 0)) as made:
        yield made


def connects(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection((HOST, port), timeout=10):
        return True
    return False


def refused(port: int) -> bool:
    try:
        listen(HOST, port).close()
    except StartError as error:
        return str(error).startswith(f"port {port} on {HOST} is in use by another program")
    return False


def test_a_kept_port_is_refused_to_other_programs_whether_or_not_a_broker_listens(guard: PortGuard) -> None:
    assert refused(guard.port)
    with guard.made() as broker:
        assert refused(guard.port)
        broker.listen()
        assert refused(guard.port)
        assert connects(guard.port)
    assert refused(guard.port)


def test_another_cluster_is_refused_as_any_program_is(guard: PortGuard) -> None:
    with guard.made() as broker:
        broker.listen()
        with pytest.raises(StartError, match="is in use by another program"):
            PortGuard(HOST, guard.port)


def test_a_port_that_another_program_has_is_refused() -> None:
    with listen(HOST, 0) as other, pytest.raises(StartError, match="is in use by another program"):
        PortGuard(HOST, port_of(other))


def test_connections_go_to_brokers_that_listen_only(guard: PortGuard) -> None:
    with guard.made() as serving, guard.made():
        assert not connects(guard.port)
        serving.listen(64)
        taken = [socket.create_connection((HOST, guard.port), timeout=10) for _ in range(20)]
        for one in taken:
            serving.accept()[0].close()
            one.close()


def test_a_broker_that_is_gone_gets_no_connections(guard: PortGuard) -> None:
    with guard.made() as serving:
        serving.listen(64)
        gone = guard.made()
        gone.listen(64)
        gone.close()
        for _ in range(20):
            with socket.create_connection((HOST, guard.port), timeout=10):
                serving.accept()[0].close()


def test_a_port_can_be_kept_right_after_a_server_on_it_has_closed_its_connections() -> None:
    with listen(HOST, 0) as server:
        port = port_of(server)
        client = socket.create_connection((HOST, port))
        server.setblocking(True)
        server.accept()[0].close()
        client.close()
    with contextlib.closing(PortGuard(HOST, port)) as guard, guard.made() as broker:
        broker.listen()
        assert connects(port)


def test_each_broker_has_ports_of_its_own_beside_the_shared_ones() -> None:
    config = BrokerConfig(
        broker_service_port=0, web_service_port=0, brokers_first_port=0, brokers_first_web_port=0
    )
    with contextlib.closing(ClusterPorts(config, 2)) as ports:
        shared, own = ports.shared, [ports.own_ports(index) for index in range(2)]
        assert set(own[0]) == {"pulsar", "http"}
        assert len({*own[0].values(), *own[1].values()}) == 4
        with ports.sockets(1) as sockets:
            first, second = sockets["pulsar"]
            assert port_of(first) == own[1]["pulsar"]
            assert shared.service_url == f"pulsar://{HOST}:{port_of(second)}"


def test_a_taken_port_of_one_broker_gives_all_the_others_back() -> None:
    with listen(HOST, 0) as probe:
        shared = port_of(probe)
    with listen(HOST, 0) as other:
        config = BrokerConfig(
            broker_service_port=shared, web_service_port=0, brokers_first_port=port_of(other)
        )
        with pytest.raises(StartError, match=f"port {port_of(other)} on {HOST} is in use"):
            ClusterPorts(config, 1)
    listen(HOST, shared).close()
