"""A table of Parquet files whose every change is recorded before it is made.

Spark writes new files into a folder of their own beside the table. Then one record, created once or not at all, names
those that become files of the table, and the files that they replace. From that moment the change is decided: it is
performed now, or by the next run if this one dies. Before it nothing has happened. Every step may run twice.

The record also names the last micro-batch of the query that is in the table. Spark repeats a batch whose end it did not
see, with the same rows; if the record has that batch, there is nothing left to do.

Folders of a job: `checkpoint` (Spark's own), `log` (the last records), `settings`, and `staging/N` while record N is
being prepared or performed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from anabranch.errors import AnabranchError
from anabranch.pipelines.tables.core.names import GUARD, GUARD_TEXT
from anabranch.pipelines.tables.files import TableBusy, TableStorage

# Only the last one is ever needed. The others are for people who want to know what happened.
RECORDS_KEPT: Final = 50


class TableDamaged(AnabranchError):
    """The table's folders are not as a run of this job left them."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """A change of the table. Paths are those in `staging/N`, and in the table."""

    number: int = 0
    query: str = ""  # The query whose batches are counted, by Spark's id.
    batch: int = -1  # The last batch that is in the table.
    moves: Mapping[str, str] = field(default_factory=dict)
    removes: tuple[str, ...] = ()  # Files of one folder, which is guarded from readers meanwhile.
    guarded: str | None = None

    def encode(self) -> bytes:
        told = {
            "number": self.number,
            "query": self.query,
            "batch": self.batch,
            "moves": dict(self.moves),
            "removes": list(self.removes),
            "guarded": self.guarded,
        }
        return json.dumps(told, indent=1).encode()

    @staticmethod
    def decode(data: bytes) -> TableChange:
        told = json.loads(data)
        return TableChange(**{**told, "removes": tuple(told["removes"])})


class Numbered:
    """The JSON files of a folder, each created once, with rising numbers. The last one counts."""

    def __init__(self, files: TableStorage, folder: str) -> None:
        self._files = files
        self._folder = folder

    def last(self) -> tuple[int, bytes] | None:
        numbers = self._numbers()
        if not numbers:
            return None
        return numbers[-1], self._files.read(self._path(numbers[-1]))

    def add(self, number: int, data: bytes) -> bool:
        """Adds a file; False if the number is taken."""
        is_new = self._files.create(self._path(number), data)
        for old in self._numbers()[:-RECORDS_KEPT] if is_new else ():
            self._files.remove(self._path(old))
        return is_new

    def _numbers(self) -> list[int]:
        names = (
            name.removesuffix(".json") for name in self._files.names(self._folder) if name.endswith(".json")
        )
        return sorted(int(name) for name in names if name.isdigit())

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:08}.json"


class TableLog:
    """The log of one table, with its job's folder. Call `recover` before anything else."""

    def __init__(self, files: TableStorage, table: str, work: str) -> None:
        self._files = files
        self.table = table
        self.work = work
        self._records = Numbered(files, f"{work}/log")
        self._settings = Numbered(files, f"{work}/settings")
        self.last = TableChange()

    @property
    def checkpoint(self) -> str:
        return f"{self.work}/checkpoint"

    def recover(self) -> None:
        """Finishes what the last run decided, and drops what it did not decide."""
        found = self._records.last()
        self.last = TableChange() if found is None else TableChange.decode(found[1])
        for name in self._files.names(f"{self.work}/staging"):
            folder = f"{self.work}/staging/{name}"
            if name == str(self.last.number):
                self._carry_out(self.last)
            else:
                self._files.remove(folder)

    def prepare(self) -> str:
        """An empty place for the files of the next record: it does not exist yet."""
        folder = self._staging(self.last.number + 1)
        self._files.remove(folder)
        return folder

    def commit(
        self,
        moves: Mapping[str, str],
        *,
        batch: int | None = None,
        query: str | None = None,
        removes: Sequence[str] = (),
        guarded: str | None = None,
    ) -> None:
        """Once this returns, or dies after its first step, the change will be made exactly once."""
        number = self.last.number + 1
        record = TableChange(
            number,
            self.last.query if query is None else query,
            self.last.batch if batch is None else batch,
            moves,
            tuple(removes),
            guarded,
        )
        staging = self._staging(number)
        self._files.persist(f"{staging}/{source}" for source in moves)
        if not self._records.add(number, record.encode()):
            raise TableBusy(
                f"another run writes to {self.table}, and was faster: run this again when it has ended"
            )
        self.last = record
        self._carry_out(record)

    def _carry_out(self, record: TableChange) -> None:
        """Performs the change, repeatably: the folder of staged files is removed last, and without that folder all is
        done."""
        staging = self._staging(record.number)
        guard = None if record.guarded is None else f"{self.table}/{record.guarded}/{GUARD}"
        if guard is not None:
            self._files.create(guard, GUARD_TEXT)
        for path in record.removes:
            self._files.remove(f"{self.table}/{path}")
        for source, target in record.moves.items():
            self._files.move(f"{staging}/{source}", f"{self.table}/{target}")
        # Once the staged files are gone no run repeats any of this.
        self._files.persist(f"{self.table}/{target}" for target in record.moves.values())
        if guard is not None:
            self._files.remove(guard)
        self._files.remove(staging)

    def _staging(self, number: int) -> str:
        return f"{self.work}/staging/{number}"

    # -- the state of the table

    def settings(self) -> dict[str, Any] | None:
        found = self._settings.last()
        return None if found is None else dict(json.loads(found[1]))

    def set(self, settings: Mapping[str, Any]) -> None:
        found = self._settings.last()
        if found is None or json.loads(found[1]) != settings:
            number = 1 if found is None else found[0] + 1
            self._settings.add(number, json.dumps(settings, indent=1).encode())

    def query(self) -> str | None:
        """The id that Spark gave to the query of this checkpoint; None if there is none yet."""
        path = f"{self.checkpoint}/metadata"
        return json.loads(self._files.read(path))["id"] if self._files.exists(path) else None

    def check(self) -> None:
        """Raises TableDamaged if continuing would duplicate or omit rows."""
        parts = self._files.parts(self.table)
        query = self.query()
        if not self.last.number:
            if parts:
                raise TableDamaged(
                    f"{self.table} has files, and {self.work} knows nothing of them: give --checkpoint the folder that "
                    "the table was written with, or --output a folder that does not exist"
                )
        elif query != self.last.query:
            raise TableDamaged(
                f"{self.checkpoint} is not the checkpoint that {self.table} was written with (its query was "
                f"{self.last.query}, this is {query or 'a new one'}): bring it back, or start with another --output"
            )
