"""Tables that a test writes itself, commit by commit, at the moments it chooses: files and commits as table writers
make them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import Schema

from anabranch import blocking
from anabranch.model.cut import Cut
from anabranch.tables.core.schema import DAY, POSITION, RAW
from anabranch.tables.snapshot import CUT, MODE, TOPIC, TOPIC_ID


class HandTable:
    """The table of one topic in a folder. `commit` takes over what the topic has beyond the last commit."""

    def __init__(self, folder: Path, topic: str, topic_id: str) -> None:
        self.folder, self.topic, self.topic_id = folder, topic, topic_id
        self.url = str(folder)
        self.cut, self.version, self.mode = Cut(), -1, "raw"
        self.append(RAW.empty_table(), self.cut)

    def commit(self, client: blocking.Client) -> int:
        """How many rows the new version has more than the one before."""
        news = client.table(self.topic, part="tail", table_url=self.url)
        self.append(news.tail, Cut.decode(news.cut))
        return int(news.tail.num_rows)

    def append(self, rows: Any, cut: Cut) -> None:
        self.cut, self.version = cut, self.version + 1
        actions = []
        days = pc.cast(rows.column("publish_time"), pa.date32())
        for day in sorted(set(days.to_pylist())):
            own = rows.filter(pc.equal(days, pa.scalar(day, pa.date32()))).sort_by(
                [(name, "ascending") for name in POSITION]
            )
            path = f"{DAY}={day}/{self.version:05}.parquet"
            target = self.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(own, target, compression="zstd")
            actions.append(
                {
                    "add": {
                        "path": path,
                        "partitionValues": {DAY: str(day)},
                        "size": target.stat().st_size,
                        "modificationTime": 0,
                        "dataChange": True,
                        "stats": json.dumps({"numRecords": own.num_rows}),
                    }
                }
            )
        self._put(actions)

    def _put(self, actions: list[dict[str, Any]]) -> None:
        told = {
            CUT: self.cut.encode().decode(),
            TOPIC: self.topic,
            TOPIC_ID: self.topic_id,
            MODE: self.mode,
        }
        lines: list[dict[str, Any]] = [{"commitInfo": {"timestamp": time.time_ns() // 1_000_000}}]
        if self.version == 0:
            lines.append({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}})
        lines.append(
            {
                "metaData": {
                    "id": "1",
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": Schema.from_arrow(RAW.append(pa.field(DAY, pa.date32()))).to_json(),
                    "partitionColumns": [DAY],
                    "configuration": told,
                    "createdTime": 0,
                }
            }
        )
        log = self.folder / "_delta_log"
        log.mkdir(parents=True, exist_ok=True)
        path = log / f"{self.version:020}.json"
        path.write_text("\n".join(json.dumps(line) for line in [*lines, *actions]))
