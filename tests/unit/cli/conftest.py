"""One real broker process for all tests of the command line; each test uses topics of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anabranch.cli.demo.process import BrokerProcess


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerProcess]:
    process = BrokerProcess()
    try:
        process.start()
        yield process
    finally:
        process.discard()
