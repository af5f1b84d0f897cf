"""Connections of a port that brokers share, passed to the broker that they name."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from anabranch.broker.connection.one_port import OnePort
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.encode import encode_command


def connect_frame(broker: str = "", token: str = "") -> bytes:
    connect = pb.CommandConnect(client_version="test", auth_data=token.encode())
    if broker:
        connect.proxy_to_broker_url = broker
    return encode_command(pb.BaseCommand(type=pb.BaseCommand.CONNECT, connect=connect))


@contextlib.contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client's end of a connection, and the end that a broker has accepted."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        taken, _ = server.accept()
    taken.setblocking(False)
    with client, taken:
        client.settimeout(30)
        yield client, taken


class Broker:
    """A broker on one port, and the connections that it was given."""

    def __init__(self, folder: Path, port: int) -> None:
        self.given: asyncio.Queue[socket.socket] = asyncio.Queue()
        self.doors = OnePort(folder, port, self.given.put_nowait)


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[tuple[Broker, Broker]]:
    both = Broker(tmp_path, 6660), Broker(tmp_path, 6661)
    yield both
    for one in both:
        one.doors.close()


async def test_a_connection_that_names_no_broker_stays_with_all_its_bytes(
    brokers: tuple[Broker, Broker],
) -> None:
    with pair() as (client, taken):
        client.sendall(connect_frame())
        assert await brokers[0].doors.route(taken)
        assert taken.recv(1000) == connect_frame()


async def test_a_connection_that_names_another_broker_arrives_there_with_all_its_bytes(
    brokers: tuple[Broker, Broker],
) -> None:
    frame = connect_frame("localhost:6661", token="x" * 100_000)
    with pair() as (client, taken):
        client.setblocking(False)
        routing = asyncio.ensure_future(brokers[0].doors.route(taken))
        for part in (frame[:3], frame[3:50_000], frame[50_000:], b"more"):
            await asyncio.get_running_loop().sock_sendall(client, part)
        assert not await routing
        with await brokers[1].given.get() as given:
            given.setblocking(False)
            whole = bytearray()
            while len(whole) < len(frame) + 4:
                whole += await asyncio.get_running_loop().sock_recv(given, 1 << 20)
            assert bytes(whole) == frame + b"more"
            await asyncio.get_running_loop().sock_sendall(given, b"hello")
            assert await asyncio.get_running_loop().sock_recv(client, 100) == b"hello"


async def test_a_connection_that_names_the_broker_that_accepted_it_stays(
    brokers: tuple[Broker, Broker],
) -> None:
    with pair() as (client, taken):
        client.sendall(connect_frame("localhost:6660"))
        assert await brokers[0].doors.route(taken)


async def test_a_name_that_is_not_utf8_is_left_to_the_session_which_refuses_it(
    brokers: tuple[Broker, Broker],
) -> None:
    with pair() as (client, taken):
        client.sendall(connect_frame("localhost:6661").replace(b"localhost", b"\xff" * 9))
        assert await brokers[0].doors.route(taken)


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("localhost:6669", "no broker has this address at the moment"),
        ("../../etc/passwd", "this is no broker's host:port"),
        ("localhost:66600000", "this is no broker's host:port"),
    ],
)
async def test_a_broker_that_does_not_exist_is_refused_with_a_reason_to_try_again(
    brokers: tuple[Broker, Broker], named: str, reason: str
) -> None:
    with pair() as (client, taken):
        client.sendall(connect_frame(named))
        assert not await brokers[0].doors.route(taken)
        answer = client.recv(1000)
    command = pb.BaseCommand()
    command.ParseFromString(answer[8:])
    assert command.error.error == pb.ServiceNotReady
    assert reason in command.error.message


async def test_a_broker_that_has_gone_is_refused_and_its_successor_is_reached(tmp_path: Path) -> None:
    here, there = Broker(tmp_path, 6660), Broker(tmp_path, 6661)
    there.doors.close()
    with pair() as (client, taken):
        client.sendall(connect_frame("localhost:6661"))
        assert not await here.doors.route(taken)
        assert b"no broker has this address" in client.recv(1000)
    successor = Broker(tmp_path, 6661)
    with pair() as (client, taken):
        client.sendall(connect_frame("localhost:6661"))
        assert not await here.doors.route(taken)
        (await successor.given.get()).close()
    successor.doors.close()
    here.doors.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\x08\0\0\0\x04\xff\xff\xff\xff",
        b"\0\0\0\x04\xff\xff\xff\xff",
        b"\0\0",
        b"",
    ],
)
async def test_what_is_no_connect_is_left_to_the_session(brokers: tuple[Broker, Broker], sent: bytes) -> None:
    with pair() as (client, taken):
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        assert await brokers[0].doors.route(taken)


async def test_many_connections_at_once_all_arrive(brokers: tuple[Broker, Broker]) -> None:
    """More than the queue of a Unix socket holds."""
    with contextlib.ExitStack() as stack:
        pairs = [stack.enter_context(pair()) for _ in range(100)]
        for client, _ in pairs:
            client.sendall(connect_frame("localhost:6661"))
        assert not any(await asyncio.gather(*(brokers[0].doors.route(taken) for _, taken in pairs)))
        for _ in pairs:
            (await brokers[1].given.get()).close()
