"""Names of files, commits, merging and sweeping, as values."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.tables.core.commit import NewFile, TableCommit, TableState, added_paths
from anabranch.tables.core.merging import (
    DAY_MS,
    HOUR_MS,
    LATE_MS,
    KnownFile,
    MergeRules,
    merges,
    rubbish,
    suspects,
)
from anabranch.tables.core.names import FileName, Kind, NoTable, table_path
from anabranch.tables.core.place import BadTablesUrl, parse_place

KINDS: list[Kind] = ["hot", "hour", "days"]
NUMBERS = st.integers(0, 10**12)
DAYS = st.none() | st.dates(date(1970, 1, 1), date(9999, 12, 31))


@given(
    DAYS,
    st.sampled_from(KINDS),
    NUMBERS,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.from_regex(r"[0-9a-f]{12}", fullmatch=True),
)
def test_a_path_says_what_its_name_was_made_of(
    day: date | None, kind: Kind, run: int, version: int, first: int, last: int, chance: str
) -> None:
    name = FileName(day, kind, run, version, first, last, chance)
    assert FileName.parse(name.path) == name


@pytest.mark.parametrize(
    "path", ["x.parquet", "day=2026-13-01/hot-0-00000000000000000001-1-1-a.parquet", "_delta_log/0.json"]
)
def test_a_path_that_no_writer_made_is_nothing(path: str) -> None:
    assert FileName.parse(path) is None


def test_topics_of_one_name_have_tables_of_their_own() -> None:
    found = {
        table_path("topic://public/default/a", "id-1"),
        table_path("topic://public/default/a", "id-2"),
        table_path("persistent://public/default/a", "id-1"),
        table_path("persistent://public/default/a%2Fb", "id-1"),
        table_path("persistent://public/default/a/b", "id-1"),
    }
    assert len(found) == 5
    assert all(".." not in path and not path.startswith("/") for path in found)
    with pytest.raises(NoTable):
        table_path("non-persistent://public/default/a", "")


def file(
    version: int, day: date, at_ms: int, *, run: int = 0, size: int = 10, kind: Kind = "hot"
) -> KnownFile:
    return KnownFile(FileName(day, kind, run, version, version, version, f"{version:012x}"), size, at_ms)


FILES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3 * DAY_MS), st.integers(0, 1), st.integers(1, 600)),
    max_size=40,
).map(
    lambda found: [
        file(n, date(1970, 1, 1) + timedelta(days=day), at, run=run, size=size)
        for n, (day, at, run, size) in enumerate(sorted(found, key=lambda one: (one[2], one[1])))
    ]
)


@given(FILES, st.integers(0, 5 * DAY_MS), st.booleans())
def test_groups_are_neighbours_of_one_day_and_one_run_and_no_file_is_in_two(
    files: list[KnownFile], now_ms: int, is_forced: bool
) -> None:
    rules = MergeRules(file_bytes=1000)
    groups = merges(files, now_ms, rules, is_forced=is_forced)
    seen = [one for group in groups for one in group.files]
    assert len(seen) == len(set(seen))
    for group in groups:
        assert len(group.files) > 1
        assert sum(one.bytes for one in group.files) <= rules.file_bytes
        ((day, run),) = {(one.name.day, one.name.run) for one in group.files}
        of_day = sorted(
            (one for one in files if (one.name.day, one.name.run) == (day, run)),
            key=lambda one: one.name.first,
        )
        start = of_day.index(group.files[0])
        assert tuple(of_day[start : start + len(group.files)]) == group.files


def test_a_busy_day_has_at_most_a_file_for_each_hour_once_it_is_over() -> None:
    day = date(2026, 1, 1)
    start = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
    files: list[KnownFile] = []
    version = merged = 0
    for minute in range(26 * 60):
        now_ms = start + minute * 60_000
        if minute < 24 * 60:
            files.append(file(version, day, now_ms, size=1 << 20))
            version += 1
        for group in merges(files, now_ms, MergeRules()):
            first, last = group.into
            name = FileName(day, group.kind, 0, version, first, last, f"{version:012x}")
            files = [one for one in files if one not in group.files]
            files.append(KnownFile(name, sum(one.bytes for one in group.files), now_ms))
            version, merged = version + 1, merged + 1
        assert len(files) <= 60 + 24
    assert len(files) <= 24
    assert merged <= 48
    assert merges(files, start + DAY_MS + LATE_MS + HOUR_MS, MergeRules()) == []


def test_a_commit_is_what_the_protocol_asks_for() -> None:
    name = FileName(date(2026, 1, 2), "hot", 0, 0, 0, 0, "abc")
    state = TableState("id", '{"type":"struct","fields":[]}', 5, {"anabranch.cut": "c"})
    data = TableCommit(0, state, [NewFile(name, 7, 3, {})], ["day=2026-01-02/x"], topic_id="t").encode(9)
    lines = [json.loads(line) for line in data.splitlines()]
    assert [next(iter(line)) for line in lines] == [
        "commitInfo",
        "protocol",
        "metaData",
        "txn",
        "remove",
        "add",
    ]
    assert lines[1]["protocol"] == {"minReaderVersion": 1, "minWriterVersion": 2}
    assert lines[3]["txn"] == {"appId": "t", "version": 0, "lastUpdated": 9}
    assert lines[5]["add"]["partitionValues"] == {"day": "2026-01-02"}
    assert added_paths(data) == {name.path}
    merge = TableCommit(1, state, [NewFile(name, 7, 3, {})], [name.path], changes_rows=False).encode(9)
    assert [
        line["dataChange"]
        for one in merge.splitlines()
        for line in json.loads(one).values()
        if "dataChange" in line
    ] == [False, False]


def test_only_files_whose_version_is_there_without_them_are_rubbish() -> None:
    paths = {n: FileName(date(2026, 1, 1), "hot", 0, n, n, n, f"{n}a").path for n in range(4)}
    lost = FileName(date(2026, 1, 1), "hot", 0, 1, 1, 1, "lost").path
    found = suspects([*paths.values(), lost, "day=2026-01-01/foreign.parquet"], [paths[2]], 2)
    assert found == {0: [paths[0]], 1: sorted([paths[1], lost])}
    # Version 0 is not in the log any more; 1 added one of the two and was merged since.
    assert rubbish(found, {1: frozenset({paths[1]})}) == [lost]


def test_places_of_tables_are_folders_or_stores_without_credentials() -> None:
    assert parse_place("/data/tables/").base == "/data/tables"
    assert parse_place("file:///data/t").is_folder
    place = parse_place("s3://lake/t?endpoint=http://127.0.0.1:9000&region=eu")
    assert place.base == "s3://lake/t"
    assert place.options == {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9000",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "eu",
    }
    for wrong in ("tables", "ftp://x/y", "s3://me:secret@lake/t", "s3://lake/t?what=1"):
        with pytest.raises(BadTablesUrl):
            parse_place(wrong)
