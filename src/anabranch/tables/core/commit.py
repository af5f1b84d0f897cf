"""One commit of a table, as the Delta protocol has it: lines of JSON. Pure.

Every commit has the table's properties, and these have the cut: see `docs/decisions/0038-topics-as-tables.md`. The
protocol is the oldest that has them, reader version 1 and writer version 2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from anabranch.tables.core.names import FileName

LOG: Final = "_delta_log"
RUN: Final = "anabranch.run"


def commit_path(version: int) -> str:
    return f"{LOG}/{version:020}.json"


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that a commit adds."""

    name: FileName
    bytes: int
    rows: int
    stats: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TableState:
    """What a version says of the table as a whole. `properties` have the cut, the topic and its id, the mode."""

    table_id: str
    schema: str  # Delta's own JSON of it.
    created_ms: int
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TableCommit:
    version: int
    state: TableState
    adds: Sequence[NewFile] = ()
    removes: Sequence[str] = ()  # Paths.
    # Whether rows come or go; false for a merge, which readers of changes pass over.
    changes_rows: bool = True
    operation: str = "WRITE"
    facts: Mapping[str, Any] = field(default_factory=dict)  # For people who look at the history.
    topic_id: str = ""

    def encode(self, now_ms: int) -> bytes:
        info = {
            "timestamp": now_ms,
            "operation": self.operation,
            "operationParameters": {"mode": "Append", "partitionBy": '["day"]'} if self.changes_rows else {},
            "engineInfo": "anabranch",
            **{f"anabranch.{name}": value for name, value in self.facts.items()},
        }
        lines: list[dict[str, Any]] = [{"commitInfo": info}]
        if self.version == 0:
            lines.append({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}})
        lines.append({"metaData": _metadata(self.state)})
        if self.topic_id:
            lines.append({"txn": {"appId": self.topic_id, "version": self.version, "lastUpdated": now_ms}})
        lines += [{"remove": _remove(path, now_ms, self.changes_rows)} for path in self.removes]
        lines += [{"add": _add(file, now_ms, self.changes_rows)} for file in self.adds]
        return "\n".join(json.dumps(line, separators=(",", ":")) for line in lines).encode() + b"\n"


def added_paths(commit: bytes) -> set[str]:
    """The paths of the files that a stored commit added, as they are in the log."""
    found: set[str] = set()
    for line in commit.splitlines():
        if line.strip() and (add := json.loads(line).get("add")):
            found.add(add["path"])
    return found


def _metadata(state: TableState) -> dict[str, Any]:
    return {
        "id": state.table_id,
        "name": state.properties.get("anabranch.topic"),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": state.schema,
        "partitionColumns": ["day"],
        "configuration": dict(sorted(state.properties.items())),
        "createdTime": state.created_ms,
    }


def _partition(path: str) -> dict[str, str | None]:
    name = FileName.parse(path)
    return {"day": None if name is None or name.day is None else name.day.isoformat()}


def _add(file: NewFile, now_ms: int, changes_rows: bool) -> dict[str, Any]:
    return {
        "path": quote(file.name.path, safe="/="),
        "partitionValues": _partition(file.name.path),
        "size": file.bytes,
        "modificationTime": now_ms,
        "dataChange": changes_rows,
        "stats": json.dumps({"numRecords": file.rows, **file.stats}, separators=(",", ":")),
    }


def _remove(path: str, now_ms: int, changes_rows: bool) -> dict[str, Any]:
    return {
        "path": quote(path, safe="/="),
        "deletionTimestamp": now_ms,
        "dataChange": changes_rows,
        "extendedFileMetadata": True,
        "partitionValues": _partition(path),
        "size": 0,
    }
