"""A plan says exactly which bytes hold which entries, and its JSON says the same."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.storage.core.read_plan import (
    BadPlan,
    PlannedRun,
    TopicPlan,
    decode,
    encode,
    parse_position,
    position_text,
    runs_of,
)

NUMBER = st.integers(0, 1 << 40)
POSITION = st.tuples(st.integers(-1, 1 << 62), st.integers(-1, 1 << 62))


def plan(**fields: Any) -> TopicPlan:
    values: dict[str, Any] = {
        "topic": "persistent://public/default/t",
        "start": (5, 0),
        "end": (5, 10),
        "log_end": (5, 20),
        "has_lost": False,
        "root": "/data/log",
        "files": ("wal/a/00000001.wal", "wal/a/00000002.wal"),
        "runs": (PlannedRun(5, 0, 3, 0, 64, 400), PlannedRun(5, 4, 9, 1, 64, 600)),
        "expires_in_ms": 55_000,
        "message_bytes_max": 5 << 20,
    }
    return TopicPlan(**{**values, **fields})


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(32, 100)), min_size=1, max_size=60),
    NUMBER,
    st.integers(0, 50),
)
def test_runs_hold_every_record_once_and_nothing_else(
    records: list[tuple[int, int]], first: int, start: int
) -> None:
    offsets, lengths = [], []
    at = start
    for gap, length in records:
        at += gap if gap > 1 else 0
        offsets.append(at)
        lengths.append(length)
        at += length
    runs = list(runs_of(7, first, 2, offsets, lengths))
    assert [entry for run in runs for entry in range(run.first, run.last + 1)] == [
        first + i for i in range(len(records))
    ]
    for run in runs:
        i, j = run.first - first, run.last - first
        assert (run.ledger, run.file, run.offset) == (7, 2, offsets[i])
        assert run.length == sum(lengths[i : j + 1])
    for one, other in pairwise(runs):
        assert one.offset + one.length != other.offset, "neighbours are one run"


def test_no_records_make_no_run() -> None:
    assert list(runs_of(1, 0, 0, [], [])) == []


def test_a_plan_comes_back_from_its_json() -> None:
    assert decode(encode(plan())) == plan()


@given(POSITION, POSITION, st.booleans(), st.text(max_size=20))
def test_any_position_and_path_comes_back_from_json(
    start: tuple[int, int], end: tuple[int, int], has_lost: bool, root: str
) -> None:
    made = plan(start=start, end=end, has_lost=has_lost, root=root)
    assert decode(encode(made)) == made
    assert parse_position(position_text(start)) == start


def test_json_is_the_documented_one() -> None:
    assert json.loads(encode(plan())) == {
        "version": 1,
        "topic": "persistent://public/default/t",
        "start": "5:0",
        "end": "5:10",
        "logEnd": "5:20",
        "hasLost": False,
        "root": "/data/log",
        "files": ["wal/a/00000001.wal", "wal/a/00000002.wal"],
        "runs": [[5, 0, 3, 0, 64, 400], [5, 4, 9, 1, 64, 600]],
        "expiresInMs": 55_000,
        "messageBytesMax": 5 << 20,
    }


def test_fields_of_later_releases_are_passed_over() -> None:
    data = json.loads(encode(plan()))
    assert decode(json.dumps({**data, "somethingNew": 1}).encode()) == plan()


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b"\xff", b'{"version": 1}', b'{"version": 2}', b'{"version": "1"}']
)
def test_what_is_no_plan_is_refused(text: bytes) -> None:
    with pytest.raises(BadPlan):
        decode(text)


@pytest.mark.parametrize(
    "run",
    [
        PlannedRun(5, 3, 2, 0, 0, 100),
        PlannedRun(5, 0, 0, 2, 0, 100),
        PlannedRun(5, 0, 0, -1, 0, 100),
        PlannedRun(5, 0, 0, 0, -2, 100),
        PlannedRun(5, 0, 0, 0, 0, -1),
    ],
    ids=lambda run: str(msgspec.structs.astuple(run)),
)
def test_runs_that_cannot_be_are_refused(run: PlannedRun) -> None:
    with pytest.raises(BadPlan, match="is impossible"):
        decode(encode(plan(runs=(run,))))


def test_runs_out_of_order_are_refused() -> None:
    with pytest.raises(BadPlan, match="is impossible"):
        decode(encode(plan(runs=(PlannedRun(5, 4, 9, 0, 0, 1), PlannedRun(5, 9, 9, 0, 1, 1)))))


@pytest.mark.parametrize("text", ["5", "5:", ":5", "5:0:0", "a:b", "5: 0", "\u0665:\u0660"])
def test_positions_are_two_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="ledger:entry"):
        parse_position(text)


def test_a_plan_counts_what_it_covers() -> None:
    assert (plan().entries, plan().size_bytes) == (10, 1000)


@pytest.mark.parametrize("name", ["/etc/passwd", "../other", "wal/../../other", ".."])
def test_files_outside_of_the_log_are_refused(name: str) -> None:
    with pytest.raises(BadPlan, match="below the log's folder"):
        decode(encode(plan(files=(name, "wal/a/00000002.wal"))))


@pytest.mark.parametrize("url", ["file:///etc/passwd?signature=secret", "ftp://host/x?signature=secret", ""])
def test_objects_are_read_by_http_alone(url: str) -> None:
    good = plan(in_objects=True, urls=("https://host/1?signature=secret", "http://host/2"))
    assert decode(encode(good)) == good
    with pytest.raises(BadPlan, match="not one of HTTP") as caught:
        decode(encode(plan(in_objects=True, urls=("https://host/1", url))))
    assert "secret" not in str(caught.value)
