"""A table's log: whoever dies between any two steps, the table is right after the next run; readers are not fooled."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from anabranch.pipelines.tables.core.names import GUARD, file_of
from anabranch.pipelines.tables.files import LocalFiles, TableBusy
from anabranch.pipelines.tables.log import RECORDS_KEPT, TableDamaged, TableLog

DAY = "date=2026-05-01"


class PowerCut(Exception):
    pass


class Dying(LocalFiles):
    """Changes nothing any more once it has made so many changes. `seen` looks at the table behind each of them."""

    def __init__(self, table: str, changes: int | None = None) -> None:
        self._left = changes
        self._table = table
        self.changes = 0
        self.seen: list[list[int] | None] = []

    def _change(self) -> None:
        self.seen.append(rows_of(self._table))
        if self.changes == self._left:
            raise PowerCut
        self.changes += 1

    def create(self, path: str, data: bytes) -> bool:
        self._change()
        return super().create(path, data)

    def move(self, source: str, target: str) -> None:
        self._change()
        super().move(source, target)

    def remove(self, path: str) -> None:
        self._change()
        super().remove(path)


def rows_of(table: str) -> list[int] | None:
    """What a reader gets that looks into the folders; None for an error."""
    found: list[int] = []
    for folder, _, names in os.walk(table):
        if GUARD in names:
            return None
        for name in names:
            if name.endswith(".parquet"):
                found += json.loads(Path(folder, name).read_text())
    return sorted(found)


def stage(folder: str, **files: list[int]) -> list[str]:
    paths = [f"{DAY if name < 'x' else 'date=2026-05-02'}/{name}.parquet" for name in files]
    for path, rows in zip(paths, files.values(), strict=True):
        Path(folder, path).parent.mkdir(parents=True, exist_ok=True)
        Path(folder, path).write_text(json.dumps(rows))
    return paths


def write(log: TableLog, batch: int, **files: list[int]) -> None:
    """What Spark does with a batch: again, if it did not see it end."""
    if batch <= log.last.batch:
        return
    paths = stage(log.prepare(), **files)
    number = log.last.number + 1
    moves = {path: f"{os.path.dirname(path)}/{file_of(number, at)}" for at, path in enumerate(paths)}
    log.commit(moves, batch=batch, query="q")


def compact(log: TableLog) -> None:
    folder = Path(log.table, DAY)
    parts = sorted(folder.iterdir())
    if len(parts) < 2:
        return
    rows = [row for part in parts for row in json.loads(part.read_text())]
    (path,) = stage(log.prepare(), all=rows)
    removes = [f"{DAY}/{part.name}" for part in parts]
    log.commit({path: f"{DAY}/{file_of(log.last.number + 1, 0)}"}, removes=removes, guarded=DAY)


def job(files: LocalFiles, folder: Path) -> None:
    log = TableLog(files, f"{folder}/table", f"{folder}/work")
    log.recover()
    write(log, 0, a=[0, 1], b=[2], x=[3])
    write(log, 1, a=[4])
    compact(log)
    write(log, 2, a=[5], x=[6])
    compact(log)


ALL = list(range(7))
# Rows of a batch may become visible file by file; those of a batch that is done are all there.
STATES = [[], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5], ALL]


def points(tmp_path: Path) -> int:
    files = Dying(f"{tmp_path}/whole/table")
    job(files, tmp_path / "whole")
    return files.changes


def test_a_job_that_nobody_disturbs_writes_every_row_once(tmp_path: Path) -> None:
    job(LocalFiles(), tmp_path)
    assert rows_of(f"{tmp_path}/table") == ALL
    assert [path.name for path in (tmp_path / "table" / DAY).iterdir()] == [file_of(5, 0)]


def test_a_job_killed_between_any_two_steps_is_right_after_the_next_run(tmp_path: Path) -> None:
    count = points(tmp_path)
    assert count > 30
    for at in range(count):
        folder = tmp_path / str(at)
        with pytest.raises(PowerCut):
            job(Dying(f"{folder}/table", at), folder)
        job(LocalFiles(), folder)
        assert rows_of(f"{folder}/table") == ALL, at
        assert list((folder / "work" / "staging").iterdir()) == []


def test_a_job_killed_in_each_of_two_runs_is_right_after_the_third(tmp_path: Path) -> None:
    count = points(tmp_path)
    for at in range(0, count, 3):
        for again in range(0, 12, 2):
            folder = tmp_path / f"{at}-{again}"
            for changes in (at, again):
                try:
                    job(Dying(f"{folder}/table", changes), folder)
                except PowerCut:
                    continue
            job(LocalFiles(), folder)
            assert rows_of(f"{folder}/table") == ALL, (at, again)


def test_no_reader_ever_sees_a_row_twice_or_misses_one_of_a_batch_that_is_done(tmp_path: Path) -> None:
    files = Dying(f"{tmp_path}/table")
    job(files, tmp_path)
    seen = [rows for rows in files.seen if rows is not None]
    assert len(seen) < len(files.seen)  # Some came while a folder was guarded.
    assert all(rows in STATES for rows in seen)
    assert seen == sorted(seen, key=len)


def test_a_batch_that_the_table_has_is_not_written_again(tmp_path: Path) -> None:
    log = TableLog(LocalFiles(), f"{tmp_path}/table", f"{tmp_path}/work")
    log.recover()
    write(log, 3, a=[1])
    again = TableLog(LocalFiles(), f"{tmp_path}/table", f"{tmp_path}/work")
    again.recover()
    assert again.last == log.last
    write(again, 3, a=[1])
    assert rows_of(f"{tmp_path}/table") == [1]


def test_of_two_writers_that_nothing_locks_out_the_slower_gives_up(tmp_path: Path) -> None:
    logs = [TableLog(LocalFiles(), f"{tmp_path}/table", f"{tmp_path}/work") for _ in range(2)]
    for log in logs:
        log.recover()
    write(logs[0], 0, a=[1])
    with pytest.raises(TableBusy, match="was faster"):
        write(logs[1], 0, a=[1])
    assert rows_of(f"{tmp_path}/table") == [1]


def test_one_run_at_a_time_writes_to_a_table(tmp_path: Path) -> None:
    one, other = LocalFiles(), LocalFiles()
    with (
        one.locked(f"{tmp_path}/work/lock"),
        pytest.raises(TableBusy, match="another run"),
        other.locked(f"{tmp_path}/work/lock"),
    ):
        raise AssertionError("both are in")
    with other.locked(f"{tmp_path}/work/lock"):
        pass


def test_old_records_go_and_the_last_one_counts(tmp_path: Path) -> None:
    log = TableLog(LocalFiles(), f"{tmp_path}/table", f"{tmp_path}/work")
    log.recover()
    for batch in range(RECORDS_KEPT + 5):
        write(log, batch, a=[batch])
    assert len(list((tmp_path / "work" / "log").iterdir())) == RECORDS_KEPT
    log.recover()
    assert (log.last.batch, log.last.number) == (RECORDS_KEPT + 4, RECORDS_KEPT + 5)


def checkpoint(folder: Path, query: str) -> None:
    (folder / "work" / "checkpoint").mkdir(parents=True, exist_ok=True)
    (folder / "work" / "checkpoint" / "metadata").write_text(json.dumps({"id": query}))


def test_a_table_is_gone_on_with_by_the_checkpoint_that_it_was_written_with(tmp_path: Path) -> None:
    log = TableLog(LocalFiles(), f"{tmp_path}/table", f"{tmp_path}/work")
    log.recover()
    log.check()
    checkpoint(tmp_path, "q")
    write(log, 0, a=[1])
    log.check()
    checkpoint(tmp_path, "another")
    with pytest.raises(TableDamaged, match="not the checkpoint"):
        log.check()
    (tmp_path / "work" / "checkpoint" / "metadata").unlink()
    with pytest.raises(TableDamaged, match="a new one"):
        log.check()


def test_files_of_somebody_else_are_not_added_to(tmp_path: Path) -> None:
    (tmp_path / "table" / DAY).mkdir(parents=True)
    (tmp_path / "table" / DAY / "theirs.parquet").write_text("[]")
    log = TableLog(LocalFiles(), f"{tmp_path}/table", f"{tmp_path}/work")
    log.recover()
    with pytest.raises(TableDamaged, match="knows nothing of them"):
        log.check()


def test_settings_are_kept_and_replaced(tmp_path: Path) -> None:
    log = TableLog(LocalFiles(), f"{tmp_path}/table", f"{tmp_path}/work")
    assert log.settings() is None
    log.set({"time": "event_time"})
    log.set({"time": "event_time"})
    log.set({"time": "event_time", "more": 1})
    assert log.settings() == {"time": "event_time", "more": 1}
    assert len(list((tmp_path / "work" / "settings").iterdir())) == 2
