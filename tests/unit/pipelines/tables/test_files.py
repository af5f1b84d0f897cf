"""The verbs of a table's file system, on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anabranch.pipelines.tables.files import LocalFiles
from anabranch.pipelines.tables.log import TableLog
from harness.files_contract import check_contract


def test_local_folders_keep_the_contract(tmp_path: Path) -> None:
    check_contract(LocalFiles(), str(tmp_path))


def test_a_change_is_stored_with_all_folders_it_is_in_before_its_record_and_before_it_cannot_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power may take folders that were made and never stored, with all that is in them."""
    table, work = tmp_path / "table", tmp_path / "work"
    stored: list[tuple[str, bool, bool]] = []
    fsync = os.fsync

    def seen(descriptor: int) -> None:
        fsync(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        record, staged = work / "log" / "00000001.json", work / "staging" / "1"
        stored.append((os.path.relpath(path, tmp_path), record.exists(), staged.exists()))

    log = TableLog(LocalFiles(), str(table), str(work))
    log.recover()
    part = Path(log.prepare()) / "date=2026-05-01" / "x.parquet"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"rows")
    monkeypatch.setattr(os, "fsync", seen)
    log.commit({"date=2026-05-01/x.parquet": "date=2026-05-01/part-00000001-00000.parquet"}, batch=0)
    before = {path for path, is_recorded, _ in stored if not is_recorded}
    behind = {path for path, is_recorded, is_staged in stored if is_recorded and is_staged}
    staging = "work/staging/1/date=2026-05-01"
    assert {f"{staging}/x.parquet", staging, "work/staging/1", "work/staging", "work", "."} <= before
    target = "table/date=2026-05-01"
    assert {f"{target}/part-00000001-00000.parquet", target, "table", "."} <= behind
    assert not (work / "staging" / "1").exists()
