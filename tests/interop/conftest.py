"""One real broker process for all tests that do it no harm, and the real Pulsar client."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest

from harness.broker_process import BrokerProcess

_numbers = itertools.count(1)

Connect = Callable[..., pulsar.Client]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "java: needs a JDK and Maven; run by `make interop` only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "java" not in config.getoption("-m"):
        left_out = [item for item in items if item.get_closest_marker("java")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name nobody else uses."""
    return f"{request.node.name[:60].translate(str.maketrans('[]', '--'))}-{next(_numbers)}"


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes clients of a broker, closed after the test."""
    clients: list[pulsar.Client] = []

    def make(broker: BrokerProcess, **options: Any) -> pulsar.Client:
        options.setdefault("logger", pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        client = pulsar.Client(broker.url, **options)
        clients.append(client)
        return client

    yield make
    for client in clients:
        # At once, also with consumers in mid-air: what the broker keeps is the test's business, not the client's.
        client.shutdown()


@pytest.fixture
def client(broker: BrokerProcess, connect: Connect) -> pulsar.Client:
    return connect(broker)
