"""A table of Parquet files whose every change is written down before it is made.

Spark writes new files into a folder of their own beside the table. Then one record, created once or not at all, says
which of them become files of the table, and which files they replace. From that moment the change is decided: it is
carried out now, or by the next run if this one dies. Before it nothing has happened. Every step may be done twice.

The record also says up to which micro-batch of the query the table is. Spark runs a batch again that it did not see the
end of, with the same rows; if the record has it, there is nothing left to do.

Folders of a job: `checkpoint` (Spark's own), `log` (the last records), `settings`, and `staging/N` while record N is
being prepared or carried out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from anabranch.errors import AnabranchError
from anabranch.pipelines.table_files import Files, TableBusy
from anabranch.pipelines.table_names import GUARD, GUARD_TEXT

# Only the last one is ever needed. Some more, for people who want to know what happened.
RECORDS_KEPT: Final = 50


class TableDamaged(AnabranchError):
    """What is in the table's folders is not what a run of this job left there."""


@dataclass(frozen=True, slots=True)
class Record:
    """A change of the table. Paths are those in `staging/N`, and in the table."""

    number: int = 0
    query: str = ""  # Whose batches are counted; Spark's id of it.
    batch: int = -1  # The last one that is in the table.
    moves: Mapping[str, str] = field(default_factory=dict)
    removes: tuple[str, ...] = ()  # Of one folder, where readers are kept from looking meanwhile.
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
    def decode(data: bytes) -> Record:
        told = json.loads(data)
        return Record(**{**told, "removes": tuple(told["removes"])})


class Numbered:
    """JSON files of a folder, each created once, by rising numbers. The last one counts."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder

    def last(self) -> tuple[int, bytes] | None:
        numbers = self._numbers()
        if not numbers:
            return None
        return numbers[-1], self._files.read(self._path(numbers[-1]))

    def add(self, number: int, data: bytes) -> bool:
        """False if there is one of that number."""
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
    """Of one table and its job's folder. `recover` before anything else."""

    def __init__(self, files: Files, table: str, work: str) -> None:
        self._files = files
        self.table = table
        self.work = work
        self._records = Numbered(files, f"{work}/log")
        self._settings = Numbered(files, f"{work}/settings")
        self.last = Record()

    @property
    def checkpoint(self) -> str:
        return f"{self.work}/checkpoint"

    def recover(self) -> None:
        """Finishes what the last run decided, and drops what it did not."""
        found = self._records.last()
        self.last = Record() if found is None else Record.decode(found[1])
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
        """Once this returns, or dies behind its first step, the change will have been made exactly once."""
        number = self.last.number + 1
        record = Record(
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

    def _carry_out(self, record: Record) -> None:
        """As often as it takes: the folder of staged files goes last, and where it is gone all is done."""
        staging = self._staging(record.number)
        guard = None if record.guarded is None else f"{self.table}/{record.guarded}/{GUARD}"
        if guard is not None:
            self._files.create(guard, GUARD_TEXT)
        for path in record.removes:
            self._files.remove(f"{self.table}/{path}")
        for source, target in record.moves.items():
            self._files.move(f"{staging}/{source}", f"{self.table}/{target}")
        # Once the staged files are gone nobody does any of it again.
        self._files.persist(f"{self.table}/{target}" for target in record.moves.values())
        if guard is not None:
            self._files.remove(guard)
        self._files.remove(staging)

    def _staging(self, number: int) -> str:
        return f"{self.work}/staging/{number}"

    # -- what the table is

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
        """TableDamaged if going on would add rows that are there, or leave out some that are not."""
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
