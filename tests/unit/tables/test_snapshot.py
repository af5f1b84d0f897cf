"""Snapshots of tables whose commits are written down here, as the Delta protocol has them."""

from __future__ import annotations

import json
import os
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema

from anabranch.model.cut import Cut, Place
from anabranch.model.segments import WHOLE, SegmentId
from anabranch.tables.core.schema import DAY, ID, RAW
from anabranch.tables.snapshot import NoSuchVersion, NotATopicTable, open_snapshot

DAY_ONE = date(2026, 11, 19)


def cut_at(entry: int) -> str:
    return Cut((Place(SegmentId(0), WHOLE, at=((5, entry, 0),)),), "id-1").encode().decode()


def commit(folder: Path, version: int, actions: list[dict[str, Any]], cut: str | None, ms: int = 0) -> None:
    schema = Schema.from_arrow(RAW.append(pa.field(DAY, pa.date32()))).to_json()
    told = {} if cut is None else {"anabranch.cut": cut, "anabranch.mode": "raw"}
    told |= (
        {} if cut is None else {"anabranch.topic": "topic://public/default/t", "anabranch.topicId": "id-1"}
    )
    lines: list[dict[str, Any]] = [{"commitInfo": {"timestamp": ms}}]
    if version == 0:
        lines.append({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}})
    lines.append(
        {
            "metaData": {
                "id": "1",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": schema,
                "partitionColumns": [DAY],
                "configuration": told,
                "createdTime": 0,
            }
        }
    )
    log = folder / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    path = log / f"{version:020}.json"
    path.write_text("\n".join(json.dumps(line) for line in [*lines, *actions]))
    os.utime(path, (ms / 1000, ms / 1000))


def add(path: str, size: int, rows: int) -> dict[str, Any]:
    return {
        "add": {
            "path": path,
            "partitionValues": {DAY: str(DAY_ONE)},
            "size": size,
            "modificationTime": 0,
            "dataChange": True,
            "stats": json.dumps({"numRecords": rows}),
        }
    }


def test_no_table_is_no_snapshot(tmp_path: Path) -> None:
    assert open_snapshot(str(tmp_path / "nothing")) is None
    tmp_path.joinpath("empty").mkdir()
    assert open_snapshot(str(tmp_path / "empty")) is None


def test_a_snapshot_has_the_cut_and_the_files_of_its_version(tmp_path: Path) -> None:
    commit(tmp_path, 0, [add("day=2026-11-19/a.parquet", 10, 3)], cut_at(3), 1_000_000)
    commit(tmp_path, 1, [add("day=2026-11-19/b.parquet", 20, 4)], cut_at(7), 2_000_000)
    seen = open_snapshot(str(tmp_path))
    assert seen is not None
    assert (seen.version, seen.topic, seen.topic_id, seen.mode) == (
        1,
        "topic://public/default/t",
        "id-1",
        "raw",
    )
    assert seen.cut == cut_at(7)
    assert [(f.path, f.bytes, f.rows, f.day) for f in seen.files] == [
        ("day=2026-11-19/a.parquet", 10, 3, DAY_ONE),
        ("day=2026-11-19/b.parquet", 20, 4, DAY_ONE),
    ]
    assert (seen.rows, seen.size_bytes) == (7, 30)
    assert seen.file_uris[1] == f"{tmp_path}/day=2026-11-19/b.parquet"
    assert seen.schema.names == [*RAW.names, DAY]


def test_an_earlier_version_is_found_by_number_and_by_time(tmp_path: Path) -> None:
    for version in range(3):
        commit(tmp_path, version, [], cut_at(version), (version + 1) * 1_000_000)
    by_number = open_snapshot(str(tmp_path), version=1)
    by_time = open_snapshot(str(tmp_path), at=datetime.fromtimestamp(2500, UTC))
    assert by_number is not None
    assert by_time == by_number
    assert by_number.cut == cut_at(1)
    with pytest.raises(NoSuchVersion):
        open_snapshot(str(tmp_path), version=9)


def test_the_cut_outlives_the_commits_before_a_checkpoint(tmp_path: Path) -> None:
    for version in range(3):
        commit(tmp_path, version, [], cut_at(version))
    DeltaTable(str(tmp_path)).create_checkpoint()
    for version in range(3):
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    seen = open_snapshot(str(tmp_path))
    assert seen is not None
    assert seen.cut == cut_at(2)


def test_a_table_of_another_program_is_refused(tmp_path: Path) -> None:
    commit(tmp_path, 0, [], None)
    with pytest.raises(NotATopicTable):
        open_snapshot(str(tmp_path))


def test_every_column_keeps_its_id_in_parquet(tmp_path: Path) -> None:
    pq.write_table(RAW.empty_table(), tmp_path / "x.parquet")
    read = pq.read_schema(tmp_path / "x.parquet")
    assert [field.metadata[ID] for field in read] == [field.metadata[ID] for field in RAW]
    assert read.field("properties").type.item_field.metadata[ID] == b"5"
