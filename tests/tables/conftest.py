"""A real broker, and topics with a table that the test writes when it wants to."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from anabranch import blocking
from harness.broker_process import BrokerProcess
from tables.topics import TabledTopic

pytest.importorskip("deltalake")
pytest.importorskip("pyarrow")

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        # The first test waits for kernels that nobody has compiled yet.
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[blocking.Client]:
    with blocking.connect(broker.url) as client:
        yield client


@pytest.fixture
def tabled(broker: BrokerProcess, client: blocking.Client, tmp_path: Path) -> Callable[..., TabledTopic]:
    def make(segments: int = 1) -> TabledTopic:
        number = next(_numbers)
        return TabledTopic(broker, client, tmp_path / f"table-{number}", f"tabled-{number}", segments)

    return make
