"""The sources of `anabranch produce`: the command line, lines of text, or the rows of a table."""

from __future__ import annotations

import argparse
import asyncio
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final, Protocol

from anabranch.cli.messages.line_source import Keyed, Lines, keying
from anabranch.cli.messages.tables import FileTables
from anabranch.cli.parsing.options import UsageError

# How many messages of the command line are made at once, when they are sent many times.
REPEATED_AT_ONCE: Final = 1000


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
def opened(arguments: argparse.Namespace) -> Iterator[Source]:
    if arguments.arrow is not None:
        yield Rows(Path(arguments.arrow), arguments.key, arguments.value or "value")
    elif arguments.message is not None:
        yield GivenMessages(arguments)
    elif arguments.file is None:
        yield TextLines(arguments, sys.stdin.fileno())
    else:
        try:
            descriptor = os.open(arguments.file, os.O_RDONLY)
        except OSError as error:
            raise UsageError(f"cannot read {arguments.file}: {error.strerror}") from None
        try:
            yield TextLines(arguments, descriptor)
        finally:
            os.close(descriptor)


class GivenMessages:
    """The messages of the command line, repeatedly."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        values = [text.encode(errors="surrogateescape") for text in arguments.message]
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
    """Each line is a message."""

    def __init__(self, arguments: argparse.Namespace, descriptor: int) -> None:
        self._keyed = keying(arguments.key, arguments.key_separator, arguments.key_field)
        status = os.fstat(descriptor)
        self.size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        self._lines = Lines(descriptor)
        self._before = 0

    async def next(self) -> list[Keyed]:
        self._before = self._lines.bytes_read
        lines = await self._lines.next()
        return list(self._keyed(lines, self._lines.number))

    def part(self, used: float) -> float | None:
        if not self.size:
            return None
        return min(1.0, _between(self._before, self._lines.bytes_read, used) / self.size)

    def where(self, number: int) -> str:
        return f"line {number + 1:,}"


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


def _between(before: int, after: int, used: float) -> float:
    return before + (after - before) * used
