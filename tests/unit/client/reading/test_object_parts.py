"""The parts of objects: what is asked for at once, what an answer means, and how much is read ahead."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.reading.failures import FilesUnreachableError, PlanOutdatedError
from anabranch.client.reading.object_parts import (
    AHEAD_MAX,
    ObjectPart,
    ObjectParts,
    SignedSource,
    SilentStores,
    parts_of,
    source_of,
    stretches_of,
)
from anabranch.storage.core.read_plan import PlannedRun, TopicPlan
from anabranch.storage.port import LogMissingError
from harness.scripted_http import ScriptedHttp


def run(file: int, offset: int, length: int, first: int = 0) -> PlannedRun:
    return PlannedRun(1, first, first, file, offset, length)


def plan_of(*runs: PlannedRun, url: str = "", expires_in_ms: int = 60_000) -> TopicPlan:
    files = tuple(f"wal/{n}" for n in range(1 + max(one.file for one in runs)))
    return TopicPlan(
        topic="t",
        start=(1, 0),
        end=(1, 1),
        log_end=(1, 1),
        has_lost=False,
        root="s3://river/east?endpoint=http://127.0.0.1:9",
        files=files,
        runs=runs,
        expires_in_ms=expires_in_ms,
        message_bytes_max=5 << 20,
        in_objects=True,
        urls=tuple(f"{url}/{name}?X-Amz-Signature=secret" for name in files) if url else (),
    )


# -- which parts


def test_runs_that_lie_close_together_are_one_request() -> None:
    runs = [run(0, 100, 50), run(0, 160, 50), run(0, 100, 50), run(0, 5000, 10), run(1, 5020, 10)]
    found = parts_of(runs, part_bytes=1000, gap_bytes=100)
    assert found == [ObjectPart(0, 100, 210), ObjectPart(0, 5000, 5010), ObjectPart(1, 5020, 5030)]


def test_a_long_run_is_several_requests() -> None:
    found = parts_of([run(0, 7, 2500)], part_bytes=1000, gap_bytes=100)
    assert found == [ObjectPart(0, 7, 1007), ObjectPart(0, 1007, 2007), ObjectPart(0, 2007, 2507)]


def test_runs_of_the_same_bytes_are_one_stretch() -> None:
    """Entries between them are in no plan: their bytes are neither asked for nor gone through for each of them."""
    runs = [run(0, 7, 50, 1), run(0, 7, 50, 3), run(0, 57, 50, 5), run(1, 57, 50, 7), run(1, 57, 50, 9)]
    assert stretches_of(runs) == [runs[:2], runs[2:3], runs[3:]]


class Bytes:
    """Objects whose bytes tell their places. Counts what is read before it is taken."""

    def __init__(self) -> None:
        self.read_parts: list[ObjectPart] = []
        self.threads: set[str] = set()
        self.fails_at: ObjectPart | None = None

    def byte(self, file: int, at: int) -> int:
        return (file * 31 + at * 7) % 251

    def read(self, part: ObjectPart) -> memoryview:
        self.read_parts.append(part)
        self.threads.add(threading.current_thread().name)
        if part == self.fails_at:
            raise PlanOutdatedError("gone")
        return memoryview(bytes(self.byte(part.file, at) for at in range(part.start, part.stop)))


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300), st.integers(1, 200)), min_size=1, max_size=20),
    st.integers(1, 100),
    st.integers(0, 50),
)
def test_every_run_is_taken_from_its_beginning_to_its_end_wherever_it_lies(
    places: list[tuple[int, int, int]], part_bytes: int, gap_bytes: int
) -> None:
    runs = [run(*place) for place in places]
    parts = parts_of(runs, part_bytes=part_bytes, gap_bytes=gap_bytes)
    assert all(part.stop - part.start <= part_bytes for part in parts)
    source = Bytes()
    with ObjectParts(source, parts) as objects:
        for one in runs:
            at, stop = one.offset, one.offset + one.length
            while at < stop:
                data = objects.take(one.file, at, stop)
                assert bytes(data) == bytes(source.byte(one.file, n) for n in range(at, at + len(data)))
                assert 0 < len(data) <= stop - at
                at += len(data)


def test_one_part_is_read_by_the_caller_itself() -> None:
    source = Bytes()
    with ObjectParts(source, parts_of([run(0, 0, 10)])) as objects:
        assert len(objects.take(0, 0, 10)) == 10
    assert source.threads == {threading.current_thread().name}


def test_little_is_read_ahead_at_first_and_never_more_than_the_bound() -> None:
    source = Bytes()
    parts = [ObjectPart(n, 0, 10) for n in range(40)]
    ahead = []
    with ObjectParts(source, parts) as objects:
        for n in range(40):
            objects.take(n, 0, 10)
            # What threads have not begun yet counts as well: it is as good as read.
            ahead.append(len(source.read_parts) - n - 1)
    assert ahead[0] <= 1
    assert max(ahead) < AHEAD_MAX
    assert sorted(source.read_parts) == parts


def test_an_error_comes_where_its_part_is_taken_and_not_before() -> None:
    source = Bytes()
    parts = [ObjectPart(n, 0, 10) for n in range(5)]
    source.fails_at = parts[2]
    with ObjectParts(source, parts) as objects:
        for n in (0, 1):
            assert len(objects.take(n, 0, 10)) == 10
        with pytest.raises(PlanOutdatedError):
            objects.take(2, 0, 10)


# -- URLs that a broker has signed


class Clock:
    now = 0.0

    def __init__(self) -> None:
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def signed(http: ScriptedHttp, clock: Clock, expires_in_ms: int = 60_000) -> SignedSource:
    plan = plan_of(run(0, 100, 5), url=http.url, expires_in_ms=expires_in_ms)
    return SignedSource(plan, clock=clock, sleep=clock.sleep)


PART = ObjectPart(0, 100, 105)


def test_a_signed_url_is_asked_for_just_the_part() -> None:
    with ScriptedHttp(b"") as http:
        http.answer(206, b"hello")
        assert bytes(signed(http, Clock()).read(PART)) == b"hello"
        assert http.ranges == ["bytes=100-104"]
        assert http.asked[0].path == "/wal/0?X-Amz-Signature=secret"


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_store_that_is_busy_is_asked_again_and_not_for_ever(status: int) -> None:
    with ScriptedHttp(b"") as http:
        clock = Clock()
        for _ in range(2):
            http.answer(status)
        http.answer(206, b"hello")
        assert bytes(signed(http, clock).read(PART)) == b"hello"
        assert len(clock.slept) == 2
        for _ in range(5):
            http.answer(status)
        with pytest.raises(FilesUnreachableError, match=f"HTTP status {status}"):
            signed(http, clock).read(PART)


def test_an_object_that_is_gone_is_to_be_planned_again() -> None:
    with ScriptedHttp(b"") as http:
        http.answer(404)
        with pytest.raises(PlanOutdatedError, match="s3://river/east/wal/0 is gone"):
            signed(http, Clock()).read(PART)


def test_a_refusal_means_that_the_plan_has_expired_or_that_it_cannot_be_read_from_here() -> None:
    with ScriptedHttp(b"") as http:
        clock = Clock()
        source = signed(http, clock, expires_in_ms=5000)
        http.answer(403)
        with pytest.raises(FilesUnreachableError, match="HTTP status 403"):
            source.read(PART)
        clock.now = 5.0
        http.answer(403)
        with pytest.raises(PlanOutdatedError):
            source.read(PART)


def test_a_url_that_expires_before_the_plan_does_is_to_be_planned_again() -> None:
    """The store's clock is ahead, or the credentials that signed it have ended: another URL may be had."""
    with ScriptedHttp(b"") as http:
        source = signed(http, Clock())
        http.answer(206, b"hello")
        assert bytes(source.read(PART)) == b"hello"
        http.answer(403)
        with pytest.raises(PlanOutdatedError):
            source.read(PART)


@pytest.mark.parametrize("status", [302, 307, 400, 200])
def test_any_other_answer_is_no_data(status: int) -> None:
    """A server that ignores the range answers 200 with bytes that are not the ones asked for."""
    with ScriptedHttp(b"") as http:
        http.answer(status, b"hello", Location="http://127.0.0.1:9/")
        with pytest.raises(FilesUnreachableError, match=f"HTTP status {status}"):
            signed(http, Clock()).read(PART)
        assert len(http.asked) == 1


def test_an_object_that_is_too_short_is_an_error() -> None:
    with ScriptedHttp(b"") as http:
        http.answer(206, b"hell")
        with pytest.raises(LogMissingError, match="ends at byte 104"):
            signed(http, Clock()).read(PART)
        http.answer(416)
        with pytest.raises(LogMissingError, match="before byte 100"):
            signed(http, Clock()).read(PART)


def test_no_error_has_the_signature_in_it() -> None:
    plan = plan_of(run(0, 100, 5), url="http://127.0.0.1:9")
    clock = Clock()
    with pytest.raises(FilesUnreachableError, match=r"no answer from 127\.0\.0\.1:9") as caught:
        SignedSource(plan, clock=clock, sleep=clock.sleep, silent=SilentStores()).read(PART)
    assert "secret" not in str(caught.value)


def test_a_store_that_never_answered_is_not_waited_for_by_every_reader() -> None:
    plan = plan_of(run(0, 100, 5), url="http://127.0.0.1:9")
    clock, silent = Clock(), SilentStores()
    for pauses, why in ((1, "no answer from"), (1, "did not answer a moment ago")):
        with pytest.raises(FilesUnreachableError, match=why) as caught:
            SignedSource(plan, clock=clock, sleep=clock.sleep, silent=silent).read(PART)
        assert "secret" not in str(caught.value)
        assert len(clock.slept) == pauses
    clock.now += 300
    with pytest.raises(FilesUnreachableError, match="no answer from"):
        SignedSource(plan, clock=clock, sleep=clock.sleep, silent=silent).read(PART)


def test_a_store_without_credentials_here_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    with pytest.raises(FilesUnreachableError, match="cannot be read from here"):
        source_of(plan_of(run(0, 100, 5)), root="s3://river/east?endpoint=nonsense")
