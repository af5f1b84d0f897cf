"""Somebody who only opens connections, as many as he gets, on a system that allows few files."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch import blocking
from harness.broker_process import BrokerProcess

FILES_MAX = 300
TOPIC = "topic://public/default/t"


class Cramped(BrokerProcess):
    @property
    def command(self) -> list[str]:
        return ["sh", "-c", f'ulimit -n {FILES_MAX}; exec "$@"', "sh", *super().command]


@pytest.fixture
def cramped(tmp_path: Path) -> Iterator[BrokerProcess]:
    with Cramped(tmp_path, {"logFileBytes": 1 << 20}) as process:
        yield process


def test_publishing_goes_on_beside_more_connections_than_the_system_allows(cramped: BrokerProcess) -> None:
    with contextlib.ExitStack() as stack, blocking.connect(cramped.url) as client:
        producer = client.producer(TOPIC)
        producer.send(b"first")
        for port in (cramped.port, cramped.http_port):
            for _ in range(FILES_MAX):
                with contextlib.suppress(OSError):
                    stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
        # More files of the log than there are descriptors left.
        for _ in range(FILES_MAX):
            producer.send(bytes(300_000))
        stack.close()
        with client.stream_consumer(TOPIC, subscription="s", start="earliest") as stream:
            assert stream.receive(20).value == b"first"
    assert "new connections are closed" in cramped.log
