"""Hidden writes are decided at the right place, again while no answer comes, and what is refused is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from uuid import UUID

import pytest

from anabranch.client.errors import ConnectionLost, TimedOut
from anabranch.client.hidden_writes.records import (
    KnownWrite,
    WinnerDropped,
    WinnersGone,
    WriteRecordsClient,
    WriteRefused,
)
from harness.scripted_http import ScriptedHttp

A, B = UUID(int=1), UUID(int=2)
SEGMENT = "segment://public/default/t/0000-ffff-0"
DECIDED = {"winners": [A.hex], "topics": [SEGMENT], "dropped": [B.hex]}


class Server(ScriptedHttp):
    """And records of writes that are asked for there."""

    def __init__(self) -> None:
        super().__init__(json.dumps(DECIDED).encode())
        self.pauses: list[float] = []
        self.records = WriteRecordsClient(lambda: self.url, sleep=self.pauses.append)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        yield made


def test_a_write_is_decided_once_and_the_record_of_whoever_was_first_comes_back(server: Server) -> None:
    found = server.records.decide("a/b", 7, [B], [SEGMENT])
    assert found == KnownWrite(frozenset({A}), (SEGMENT,), frozenset({B}))
    path = "/admin/v2/anabranch/writes/a%2Fb/7"
    assert server.asked == [("PUT", path, {"winners": [B.hex], "topics": [SEGMENT]})]


def test_a_winner_that_was_dropped_means_to_run_it_again(server: Server) -> None:
    server.refuse(409)
    with pytest.raises(WinnerDropped, match="because"):
        server.records.decide("w", 0, [A], [])


def test_a_broker_without_hidden_writes_is_told_apart(server: Server) -> None:
    server.refuse(404)
    with pytest.raises(WriteRefused, match="too old"):
        server.records.decide("w", 0, [A], [])


def test_of_a_write_that_nobody_made_nothing_is_known(server: Server) -> None:
    server.refuse(404)
    assert server.records.get("w", 0) is None
    server.answer(200, b'{"winners": null, "topics": [], "dropped": []}')
    assert server.records.get("w", 0) == KnownWrite(None, (), frozenset())


def test_attempts_are_dropped_by_name(server: Server) -> None:
    server.records.drop("w", 0, [B, A])
    assert server.asked == [("POST", "/admin/v2/anabranch/writes/w/0/drop", {"attempts": [A.hex, B.hex]})]


def test_every_topic_is_revealed_at_its_owner_and_a_segment_that_is_collected_is_done(server: Server) -> None:
    server.refuse(404)
    server.answer(204)
    server.records.reveal("w", 3, [SEGMENT])
    server.records.reveal("w", 3, ["persistent://public/default/u-partition-1"])
    assert [path for _, path, _ in server.asked] == [
        "/admin/v2/anabranch/reveal/segment/public/default/t%2F0000-ffff-0?write=w&batch=3",
        "/admin/v2/anabranch/reveal/persistent/public/default/u-partition-1?write=w&batch=3",
    ]


@pytest.mark.parametrize(("topic", "status"), [("persistent://public/default/u", 404), (SEGMENT, 410)])
def test_a_topic_that_winners_wrote_to_and_that_is_gone_is_missed(
    server: Server, topic: str, status: int
) -> None:
    server.refuse(status)
    with pytest.raises(WinnersGone, match=f"{topic} was deleted before"):
        server.records.reveal("w", 3, [topic])
    server.refuse(status)
    server.records.reveal("w", 3, [topic], have_winners=False)


def test_a_redirect_keeps_the_method_and_the_body(server: Server) -> None:
    server.answer(307, Location="/elsewhere?x=1")
    server.records.decide("w", 0, [A], [])
    assert server.asked[1] == ("PUT", "/elsewhere?x=1", server.asked[0][2])


def test_it_asks_again_while_brokers_are_away(server: Server) -> None:
    server.refuse(503)
    server.refuse(500)
    assert server.records.get("w", 0) is not None
    assert len(server.asked) == 3
    assert server.pauses == [0.05, 0.1]


def test_it_gives_up_after_a_while_and_says_what_is_wrong() -> None:
    now = [0.0]

    def nowhere() -> str:
        raise ConnectionLost("cannot connect to pulsar://nowhere")

    def sleep(pause: float) -> None:
        now[0] += pause

    records = WriteRecordsClient(nowhere, retry_s=10, clock=lambda: now[0], sleep=sleep)
    with pytest.raises(TimedOut, match=r"within 10 s .*pulsar://nowhere"):
        records.drop("w", 0, [A])
    assert 8 < now[0] <= 10


def test_what_is_forbidden_is_not_asked_again(server: Server) -> None:
    server.refuse(403)
    with pytest.raises(WriteRefused, match="403: because"):
        server.records.reveal("w", 0, [SEGMENT])
    assert len(server.asked) == 1
