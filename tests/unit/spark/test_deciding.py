"""The driver's part of a write: decided once, shown everywhere, whoever comes second."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anabranch.client.errors import Unsupported
from anabranch.spark.deciding import AdminAddress, commit, records_of, told_address
from anabranch.spark.sink_options import parse
from unit.client.scripted_thread import ScriptedThread
from unit.client.test_write_records import SEGMENT, A, B, Server

OTHER = "segment://public/default/t/0000-7fff-1"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        yield made


def revealed(server: Server) -> set[str]:
    return {path.partition("t%2F")[2].partition("?")[0] for _, path, _ in server.asked if "/reveal/" in path}


def test_what_won_is_shown_wherever_this_run_or_an_earlier_one_has_written(server: Server) -> None:
    commit(server.records, "w", 3, [B], {OTHER})
    assert server.asked[0][2] == {"winners": [B.hex], "topics": [OTHER]}
    assert revealed(server) == {"0000-ffff-0", "0000-7fff-1"}


def test_a_write_of_no_rows_is_decided_too(server: Server) -> None:
    server.answer(200, b'{"winners": [], "topics": [], "dropped": []}')
    commit(server.records, "w", 3, [], set())
    assert len(server.asked) == 1


def test_the_given_admin_address_is_used(server: Server) -> None:
    options = parse({"serviceUrl": "pulsar://nowhere:1", "adminUrl": server.url}, "batch")
    found = records_of(options).get("w", 0)
    assert found is not None
    assert found.winners == frozenset({A})
    assert found.topics == (SEGMENT,)


def test_a_broker_that_does_not_tell_its_address_says_what_to_do() -> None:
    broker = ScriptedThread()
    try:
        with pytest.raises(Unsupported, match="adminUrl"):
            told_address(broker.script.url)
    finally:
        broker.close()


def test_the_address_is_remembered_for_a_while_and_then_asked_for_again() -> None:
    now = [0.0]
    brokers = iter(["http://one", "http://two"])
    address = AdminAddress(lambda: next(brokers), clock=lambda: now[0])
    assert [address(), address()] == ["http://one", "http://one"]
    now[0] = 1.5
    assert address() == "http://two"
