"""Streaming queries without a session: the source is called as Spark calls it, and its tasks run here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from anabranch.spark.options.source import parse
from anabranch.spark.source import StreamReader

Row = dict[str, Any]


class DryQuery:
    """Offsets are kept as text, as Spark's log does. `restart` forgets all the rest."""

    def __init__(self, **options: object) -> None:
        self.options = {name: str(value) for name, value in options.items()}
        self.log: list[str] = []  # The end of each batch.
        self.batches: list[list[Row]] = []
        self._reader = StreamReader(parse(self.options, "stream"), None)
        self._start = json.dumps(self._reader.initialOffset())

    @property
    def offset(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.log[-1] if self.log else self._start)
        return found

    @property
    def topics(self) -> set[str]:
        return {name.rpartition("/")[2] for name in self.offset["topics"]}

    def trigger(self) -> list[Row] | None:
        """The rows of a batch; None if nothing is new."""
        start = self.offset
        end = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
        if json.dumps(end) == json.dumps(start):
            return None
        self.log.append(json.dumps(end))
        if len(self.log) > 1:
            self._reader.commit(start)
        rows = self.rows(start, self.offset)
        self.batches.append(rows)
        return rows

    def rows(self, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
        return self.read(self.tasks(start, end))

    def read(self, tasks: Sequence[InputPartition]) -> list[Row]:
        return [row for task in tasks for batch in self._reader.read(task) for row in batch.to_pylist()]

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._reader.partitions(start, end)

    def catch_up(self) -> list[Row]:
        """All rows of the batches until nothing is new."""
        found: list[Row] = []
        while (rows := self.trigger()) is not None:
            found += rows
        return found

    @property
    def lags(self) -> dict[str, Any]:
        reported = self._reader.reportLatestOffset()
        assert reported is not None
        found: dict[str, Any] = reported["topics"]
        return found

    def until_now(self) -> None:
        """As a query with Trigger.AvailableNow begins."""
        self._reader.prepareForTriggerAvailableNow()

    def restart(self, **options: object) -> None:
        self.stop()
        self.options |= {name: str(value) for name, value in options.items()}
        self._reader = StreamReader(parse(self.options, "stream"), None)

    def stop(self) -> None:
        self._reader.stop()


def values(rows: list[Row] | None) -> list[int]:
    return sorted(int(row["value"]) for row in rows or ())
