"""The driver's part of a write: decided once, shown everywhere, whoever comes second."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from uuid import UUID

import pytest

from anabranch.client.errors import Unsupported
from anabranch.client.hidden_writes.records import Contents, WinnersGone
from anabranch.spark.driver.commit import (
    AdminAddress,
    FinishedBatch,
    MadeAgain,
    NotThisBatch,
    abort,
    commit,
    records_of,
    told_address,
)
from anabranch.spark.options.sink import parse
from unit.client.hidden_writes.test_records import DECIDED, SEGMENT, A, B, Server
from unit.client.scripted_thread import ScriptedThread

OTHER = "segment://public/default/t/0000-7fff-1"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        yield made


def job(
    attempts: Iterable[UUID], topics: Iterable[str], *, rows: int, digest: str = "", run: str | None = None
) -> FinishedBatch:
    return FinishedBatch("w", 3, frozenset(attempts), frozenset(topics), Contents(rows, digest), run)


def revealed(server: Server) -> set[str]:
    return {path.partition("t%2F")[2].partition("?")[0] for _, path, _ in server.asked if "/reveal/" in path}


def test_what_won_is_shown_wherever_this_run_or_an_earlier_one_has_written(server: Server) -> None:
    commit(server.records, job([B], {OTHER}, rows=2))
    assert server.asked[0][2] == {"winners": [B.hex], "topics": [OTHER], "rows": 2, "digest": ""}
    assert revealed(server) == {"0000-ffff-0", "0000-7fff-1"}


def test_a_write_of_no_rows_is_decided_too(server: Server) -> None:
    server.answer(200, b'{"winners": [], "topics": [], "dropped": []}')
    commit(server.records, job([], set(), rows=0))
    assert len(server.asked) == 1


@pytest.mark.parametrize("attempts", [[B], []], ids=["written", "found decided by every task"])
def test_a_batch_with_rows_is_not_committed_if_somebody_decided_that_it_has_none(
    server: Server, attempts: list[UUID]
) -> None:
    server.answer(200, b'{"winners": [], "topics": ["persistent://eve/ns/x"], "dropped": []}')
    with pytest.raises(NotThisBatch, match="no rows in batch 3 of w"):
        commit(server.records, job(attempts, {SEGMENT} if attempts else set(), rows=2))
    assert revealed(server) == set()


@pytest.mark.parametrize("topics", [{SEGMENT}, set()], ids=["written", "found decided by every task"])
def test_a_batch_is_not_committed_if_what_was_decided_lies_in_other_topics(
    server: Server, topics: set[str]
) -> None:
    decided = {"winners": [A.hex], "topics": ["persistent://eve/ns/x"], "dropped": []}
    server.answer(200, json.dumps(decided).encode())
    records = replace(server.records, target="topic://public/default/t")
    with pytest.raises(NotThisBatch, match="eve/ns/x"):
        commit(records, job([B] if topics else [], topics, rows=2))
    assert revealed(server) == set()


def test_a_batch_that_every_task_found_decided_is_not_decided_anew_when_its_record_is_gone(
    server: Server,
) -> None:
    server.refuse(404)
    with pytest.raises(NotThisBatch, match="no longer stored"):
        commit(server.records, job([], set(), rows=2))
    assert [method for method, _, _ in server.asked] == ["GET"]


def test_an_earlier_run_may_have_written_to_other_segments_and_to_the_topic_before_its_migration(
    server: Server,
) -> None:
    before = "persistent://public/default/t-partition-1"
    server.answer(200, json.dumps({"winners": [A.hex], "topics": [before], "dropped": []}).encode())
    commit(server.records, job([B], {OTHER}, rows=2))
    assert len([path for _, path, _ in server.asked if "/reveal/" in path]) == 2


def decided(server: Server, **more: object) -> None:
    body = {"winners": [A.hex], "topics": [SEGMENT], "dropped": [], **more}
    server.answer(200, json.dumps(body).encode())


@pytest.mark.parametrize("attempts", [[B], []], ids=["written", "found decided by every task"])
def test_a_write_that_was_decided_with_other_rows_is_not_taken_for_this_one(
    server: Server, attempts: list[UUID]
) -> None:
    this = job(attempts, [SEGMENT], rows=20, digest="x")
    decided(server, rows=10, digest="y")
    with pytest.raises(NotThisBatch, match=r"with 10 rows, and this run has 20.*failOnOtherRows"):
        commit(server.records, this)
    decided(server, rows=20, digest="y")
    with pytest.raises(NotThisBatch, match="20 other rows"):
        commit(server.records, this)
    assert revealed(server) == set()
    decided(server, rows=20, digest="x")
    commit(server.records, this)
    assert revealed(server) == {"0000-ffff-0"}


def test_a_write_of_no_rows_is_not_taken_for_one_that_had_some(server: Server) -> None:
    decided(server, rows=10, digest="y")
    with pytest.raises(NotThisBatch, match="with 10 rows, and this run has 0"):
        commit(server.records, job([], [], rows=0))


def test_records_without_contents_go_on_and_other_rows_may_be_allowed(server: Server) -> None:
    decided(server)
    commit(server.records, job([B], [SEGMENT], rows=20))
    decided(server, rows=10, digest="y")
    commit(server.records, job([B], [SEGMENT], rows=20), fail_on_other_rows=False)
    assert revealed(server) == {"0000-ffff-0"}


@pytest.mark.parametrize("attempts", [[B], []], ids=["written", "found decided by every task"])
def test_two_writes_of_one_run_under_one_name_are_not_taken_for_each_other(
    server: Server, attempts: list[UUID]
) -> None:
    """Not even if their rows are the same. Those of an earlier run are."""
    this = job(attempts, [SEGMENT], rows=20, digest="x", run="this run")
    decided(server, rows=20, digest="x", claim={"run": "this run", "by": "another write"})
    with pytest.raises(NotThisBatch, match="foreachBatch writes twice to one topic"):
        commit(server.records, this)
    method, _, body = server.asked[0]
    assert (method, body["claim"]["run"]) == ("PUT", "this run")
    assert body["winners"] == ([B.hex] if attempts else None)
    assert revealed(server) == set()
    decided(server, rows=20, digest="x", claim={"run": "an earlier run", "by": "it"})
    commit(server.records, this)
    assert revealed(server) == {"0000-ffff-0"}


def test_a_batch_whose_topic_was_deleted_before_it_showed_is_not_committed(server: Server) -> None:
    topic = "persistent://public/default/t"
    server.answer(200, json.dumps({"winners": [B.hex], "topics": [topic], "dropped": []}).encode())
    server.refuse(404)
    with pytest.raises(WinnersGone, match="was deleted"):
        commit(server.records, job([B], {topic}, rows=2))


def test_topics_show_a_batch_only_if_they_are_those_that_it_was_written_to(server: Server) -> None:
    this = replace(job([A], {SEGMENT, OTHER}, rows=2), written=frozenset({(SEGMENT, "one"), (OTHER, "one")}))
    decided(server, topics=[SEGMENT, OTHER])
    commit(server.records, this)
    asked = [path for _, path, _ in server.asked if "/reveal/" in path]
    assert len(asked) == 2
    assert all(path.endswith("&topicId=one") for path in asked)
    # Of an earlier run it is not known.
    decided(server, topics=[SEGMENT])
    commit(server.records, replace(this, attempts=frozenset({B})))
    assert not any("topicId" in path for _, path, _ in server.asked[3:])


def test_a_batch_is_not_decided_if_its_topic_was_made_again_while_it_was_written(server: Server) -> None:
    this = replace(
        job([A, B], {SEGMENT, OTHER}, rows=2), written=frozenset({(SEGMENT, "one"), (OTHER, "two")})
    )
    with pytest.raises(MadeAgain, match=r"public/default/t was deleted and made again while batch 3 of w"):
        commit(server.records, this)
    assert not server.asked


def test_a_batch_whose_topic_was_made_again_before_it_showed_is_not_committed(server: Server) -> None:
    decided(server)
    server.refuse(410)
    with pytest.raises(WinnersGone, match="was deleted"):
        commit(server.records, replace(job([A], {SEGMENT}, rows=2), written=frozenset({(SEGMENT, "one")})))


def test_a_topic_that_only_this_losing_run_has_written_to_may_be_gone(server: Server) -> None:
    server.answer(200, json.dumps(DECIDED).encode())
    server.answer(204)
    server.refuse(404)
    commit(server.records, job([B], {SEGMENT, "persistent://public/default/t-partition-0"}, rows=2))
    assert len(server.asked) == 3


def test_an_abort_decides_that_nothing_has_won_and_does_not_miss_topics(server: Server) -> None:
    topic = "persistent://public/default/t"
    server.answer(200, json.dumps({"winners": [], "topics": [topic], "dropped": []}).encode())
    server.refuse(404)
    abort(server.records, "w", 0, {topic})
    assert server.asked[0][2] == {"winners": [], "topics": [topic]}


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
