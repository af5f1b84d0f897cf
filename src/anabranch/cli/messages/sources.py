"""The sources of `anabranch produce`: the command line, lines of text, or the rows of a table."""

from __future__ import annotations

import argparse
import asyncio
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final, Protocol

from anabranch.cli.messages.encoding import Encoding
from anabranch.cli.messages.fitting import Misfit
from anabranch.cli.messages.line_source import Keyed, Lines, keying
from anabranch.cli.messages.records import CsvRecords, RecordKeying, encoded_lines, json_records
from anabranch.cli.messages.tables import FileTables
from anabranch.cli.parsing.options import UsageError

# How many messages of the command line are made at once, when they are sent many times.
REPEATED_AT_ONCE: Final = 1000
# How many rows become messages at once, between two looks at signals.
ROWS_AT_ONCE: Final = 1000


class Source(Protocol):
    async def next(self) -> list[Keyed] | Any:
        """Some messages, or a table; empty or None at the end."""
        ...

    def part(self, used: float) -> float | None:
        """The share of the whole input, from 0 to 1, once `used` of the last part is used; None if it is unknown."""
        ...

    def where(self, number: int) -> str:
        """The user's name for the message of that number, the first being 0."""
        ...


@contextmanager
def opened(arguments: argparse.Namespace, encoding: Encoding) -> Iterator[Source]:
    if arguments.arrow is not None:
        yield Rows(Path(arguments.arrow), arguments.key, arguments.value or "value")
    elif arguments.message is not None:
        yield GivenMessages(arguments, encoding)
    elif arguments.format == "parquet":
        yield RecordRows(Path(arguments.file), RecordKeying(encoding, arguments.key, arguments.key_field))
    elif arguments.file is None:
        yield TextLines(arguments, encoding, sys.stdin.fileno())
    else:
        try:
            descriptor = os.open(arguments.file, os.O_RDONLY)
        except OSError as error:
            raise UsageError(f"cannot read {arguments.file}: {error.strerror}") from None
        try:
            yield TextLines(arguments, encoding, descriptor)
        finally:
            os.close(descriptor)


class UntilWrong:
    """Takes messages up to a wrong one. Its error is raised at the next call, after those before it were sent."""

    def __init__(self) -> None:
        self._wrong: UsageError | None = None

    def take(self, messages: Iterable[Keyed]) -> list[Keyed]:
        if self._wrong is not None:
            raise self._wrong
        found: list[Keyed] = []
        try:
            for message in messages:
                found.append(message)  # noqa: PERF402 - those before an error are wanted.
        except UsageError as wrong:
            if not found:
                raise
            self._wrong = wrong
        return found


class GivenMessages:
    """The messages of the command line, repeatedly."""

    def __init__(self, arguments: argparse.Namespace, encoding: Encoding) -> None:
        try:
            values = [encoding.of_text(t.encode(errors="surrogateescape")) for t in arguments.message]
        except Misfit as misfit:
            raise UsageError(f"-m: {misfit}") from None
        messages = [(arguments.key, value) for value in values]
        self._total: int = len(messages) * arguments.num
        self._before = self._given = 0
        self._left = islice(cycle(messages), self._total)

    async def next(self) -> list[Keyed]:
        found = list(islice(self._left, REPEATED_AT_ONCE))
        self._before, self._given = self._given, self._given + len(found)
        return found

    def part(self, used: float) -> float:
        return _between(self._before, self._given, used) / self._total

    def where(self, number: int) -> str:
        return f"message {number + 1:,}"


class TextLines:
    """Each line is a message, or each record that lines hold."""

    def __init__(self, arguments: argparse.Namespace, encoding: Encoding, descriptor: int) -> None:
        self._csv: CsvRecords | None = None
        if arguments.format == "lines":
            lines = keying(arguments.key, arguments.key_separator, arguments.key_field)
            self._keyed = encoded_lines(lines, encoding)
        else:
            records = RecordKeying(encoding, arguments.key, arguments.key_field)
            if arguments.format == "csv":
                self._keyed = self._csv = CsvRecords(records)
            else:
                self._keyed = json_records(records)
        status = os.fstat(descriptor)
        self.size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        self._lines = Lines(descriptor)
        self._before = 0
        self._until_wrong = UntilWrong()

    async def next(self) -> list[Keyed]:
        self._before = self._lines.bytes_read
        self._until_wrong.take([])
        # A part of the input may hold no whole message, only a heading for instance.
        while lines := await self._lines.next():
            if found := self._until_wrong.take(self._keyed(lines, self._lines.number)):
                return found
        if self._csv is not None:
            self._csv.ended()
        return []

    def part(self, used: float) -> float | None:
        if not self.size:
            return None
        return min(1.0, _between(self._before, self._lines.bytes_read, used) / self.size)

    def where(self, number: int) -> str:
        return f"{'line' if self._csv is None else 'row'} {number + 1:,}"


class Rows:
    """Each row of a table is a message."""

    def __init__(self, path: Path, key: str | None, value: str) -> None:
        self.key, self.value = key, value
        self._tables = FileTables(path, [value, *([key] if key is not None else [])])
        self._before = self._given = 0

    async def next(self) -> Any:
        found = await asyncio.to_thread(self._tables.next)
        self._before = self._given
        self._given += 0 if found is None else found.num_rows
        return found

    def part(self, used: float) -> float:
        return _between(self._before, self._given, used) / max(1, self._tables.rows)

    def where(self, number: int) -> str:
        return f"row {number + 1:,}"


class RecordRows:
    """Each row of a Parquet or Arrow file is a message with all its columns."""

    def __init__(self, path: Path, records: RecordKeying) -> None:
        self._records = records
        self._tables = FileTables(path, None, option="--format parquet")
        self._left: list[Any] = []
        self._before = self._given = 0
        self._until_wrong = UntilWrong()

    async def next(self) -> list[Keyed]:
        self._until_wrong.take([])
        self._before = self._given
        if not self._left:
            table = await asyncio.to_thread(self._tables.next)
            # The last ones first, to take them off the end.
            self._left = [] if table is None else table.to_pylist()[::-1]
        rows = [self._left.pop() for _ in range(min(ROWS_AT_ONCE, len(self._left)))]
        self._given += len(rows)
        numbered = enumerate(rows, self._before + 1)
        return self._until_wrong.take(self._records.keyed(row, f"row {number:,}") for number, row in numbered)

    def part(self, used: float) -> float:
        return _between(self._before, self._given, used) / max(1, self._tables.rows)

    def where(self, number: int) -> str:
        return f"row {number + 1:,}"


def _between(before: int, after: int, used: float) -> float:
    return before + (after - before) * used
