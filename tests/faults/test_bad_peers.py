"""Peers that never greet and peers that never listen cost their own connection only."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from pathlib import Path

import pytest
from soak.link import Kind, Link, send_frame

from harness.broker_process import BrokerProcess, until

MIB = 1 << 20
TOPIC = "persistent://public/default/own"
OTHER = "persistent://public/default/other"
SILENT = 1000


def test_a_thousand_connections_that_never_greet_are_closed_and_disturb_nobody(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"keepAliveIntervalSeconds": 2}) as broker, Link(broker.port) as link:
        link.producer(OTHER)
        before = broker.memory_bytes
        with contextlib.ExitStack() as stack:
            silent = []
            for _ in range(SILENT):
                silent.append(stack.enter_context(socket.create_connection(("127.0.0.1", broker.port))))
                link.receive(0)  # Answers pings, however long all this takes.
            for n in range(50):
                link.publish(b"meanwhile", n)
            assert broker.memory_bytes - before < 64 * MIB
            closed: set[socket.socket] = set()
            poll = select.poll()
            by_number = {one.fileno(): one for one in silent}
            for one in silent:
                poll.register(one, select.POLLIN)
            deadline = time.monotonic() + 60
            while len(closed) < SILENT and time.monotonic() < deadline:
                link.receive(0)
                for number, _ in poll.poll(1000):
                    assert by_number[number].recv(100) == b""
                    poll.unregister(number)
                    closed.add(by_number[number])
            assert len(closed) == SILENT
        link.publish(b"after", 50)


def test_a_producer_that_never_reads_its_receipts_is_cut_off(tmp_path: Path) -> None:
    settings = {"connectionWriteBufferBytes": 64 << 10, "maxMessageSize": 128 << 10}
    with BrokerProcess(tmp_path, settings) as broker, Link(broker.port) as link:
        link.producer(OTHER)
        with Link(broker.port, receive_bytes=4096) as deaf:
            deaf.producer(TOPIC)
            frames = b"".join(send_frame([b"x"], n) for n in range(2000))
            # How many receipts the kernel takes in before the broker has to keep any is up to the machine.
            with pytest.raises(ConnectionError):
                until(lambda: deaf.sock.sendall(frames), within_s=120, every_s=0)
        until(lambda: "it does not read what it is sent" in broker.log)
        link.publish(b"after", 0)
        assert broker.memory_bytes < 400 * MIB


def test_consumers_that_never_read_do_not_hold_back_one_that_does(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker, contextlib.ExitStack() as stack:
        deaf = [stack.enter_context(Link(broker.port, receive_bytes=4096)) for _ in range(20)]
        for n, one in enumerate(deaf):
            one.subscribe(TOPIC, f"deaf {n}", permits=1_000_000)
        link = stack.enter_context(Link(broker.port))
        reader = stack.enter_context(Link(broker.port))
        reader.subscribe(TOPIC, "reads", permits=1_000_000)
        link.producer(TOPIC)
        payload = b"." * 100_000
        for n in range(300):
            link.publish(payload, n)
            assert len(reader.wait(lambda got: got.type == Kind.MESSAGE).payload) > len(payload)
        assert broker.memory_bytes < 400 * MIB
