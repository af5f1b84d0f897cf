"""Read plans are asked for at the right place, again while no answer comes, and not again once refused."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from anabranch.client.reading.plans import NoPlanError, Planner, PlanRefusedError
from anabranch.client.security import Security
from anabranch.storage.core.read_plan import BadPlan, PlannedRun, TopicPlan, encode
from harness.scripted_http import ScriptedHttp

PLAN = TopicPlan(
    topic="persistent://public/default/t",
    start=(5, 0),
    end=(5, 10),
    log_end=(5, 20),
    has_lost=False,
    root="/data/log",
    files=("wal/a/00000001.wal",),
    runs=(PlannedRun(5, 0, 9, 0, 64, 400),),
    expires_in_ms=55_000,
    message_bytes_max=5 << 20,
)


@pytest.fixture
def server() -> Iterator[ScriptedHttp]:
    with ScriptedHttp(encode(PLAN)) as made:
        yield made


class Time:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def planner(server: ScriptedHttp, topic: str = PLAN.topic, **options: Any) -> Planner:
    time = Time()
    return Planner(server.url, topic, clock=time.clock, sleep=time.sleep, **options)


def test_the_plan_is_what_the_broker_answered(server: ScriptedHttp) -> None:
    assert planner(server)((5, 0), (5, 10)) == PLAN
    assert [path for _, path, _ in server.asked] == [
        "/admin/v2/anabranch/read-plan/persistent/public/default/t?start=5%3A0&end=5%3A10"
    ]


@pytest.mark.parametrize(
    ("topic", "path"),
    [
        ("t", "persistent/public/default/t"),
        ("persistent://a/b/c d+%", "persistent/a/b/c%20d%2B%25"),
        ("segment://a/b/orders/0000-7fff-1", "segment/a/b/orders%2F0000-7fff-1"),
    ],
)
def test_any_name_is_one_piece_of_the_path(server: ScriptedHttp, topic: str, path: str) -> None:
    planner(server, topic)()
    assert [asked.path for asked in server.asked] == [f"/admin/v2/anabranch/read-plan/{path}"]


def test_another_owner_is_followed(server: ScriptedHttp) -> None:
    server.answer(307, Location=f"{server.url}/elsewhere")
    assert planner(server)() == PLAN
    assert server.asked[-1].path == "/elsewhere"


def test_a_broker_that_cannot_answer_is_asked_again(server: ScriptedHttp) -> None:
    server.refuse(503)
    server.refuse(409)
    server.refuse(500)
    assert planner(server)() == PLAN
    assert len(server.asked) == 4


def test_asking_ends_after_a_while(server: ScriptedHttp) -> None:
    for _ in range(100):
        server.refuse(503, "starting up")
    with pytest.raises(NoPlanError, match="starting up"):
        planner(server, retry_s=10.0)()
    assert 5 < len(server.asked) < 20


def test_a_broker_that_is_not_there_is_told_apart() -> None:
    with ScriptedHttp(b"") as server:
        pass
    with pytest.raises(NoPlanError, match=server.url):
        planner(server, retry_s=1.0)()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 412])
def test_a_refusal_is_final(server: ScriptedHttp, status: int) -> None:
    server.refuse(status, "direct reads are turned off")
    with pytest.raises(PlanRefusedError, match="turned off"):
        planner(server)()
    assert len(server.asked) == 1


def test_an_answer_that_is_no_plan_is_refused(server: ScriptedHttp) -> None:
    server.answer(200, b"<html>")
    with pytest.raises(BadPlan):
        planner(server)()


def test_a_plan_that_asks_for_credentials_where_urls_were_asked_for_is_refused(server: ScriptedHttp) -> None:
    theirs = msgspec.structs.replace(PLAN, root="s3://river?endpoint=http://127.0.0.1:9", in_objects=True)
    for _ in range(2):
        server.answer(200, encode(theirs))
    with pytest.raises(PlanRefusedError, match="has signed no URLs"):
        planner(server, signed=True)()
    assert planner(server)().root == theirs.root


def test_a_planner_travels_to_where_it_is_used(server: ScriptedHttp) -> None:
    made = pickle.loads(pickle.dumps(Planner(server.url, PLAN.topic, Security(token="x"))))
    assert made() == PLAN
