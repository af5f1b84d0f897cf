"""Where `anabranch produce` takes messages from: the command line, lines of text, or the rows of a table."""

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

from anabranch.cli.lines import Keyed, Lines, keying
from anabranch.cli.options import UsageError
from anabranch.cli.tables import Tables

# Messages of the command line that are made at once, when they are sent many times.
REPEATED_AT_ONCE: Final = 1000


class Source(Protocol):
    async def next(self) -> list[Keyed] | Any:
        """Some messages, or a table; nothing at the end."""
        ...

    def part(self, used: float) -> float | None:
        """How much of all there is, from 0 to 1, if `used` of what `next` gave last is; None if nobody knows."""
        ...

    def where(self, number: int) -> str:
        """What the user calls the message of that number, the first being 0."""
        ...


@contextmanager
def opened(arguments: argparse.Namespace) -> Iterator[Source]:
    if arguments.arrow is not None:
        yield Rows(Path(arguments.arrow), arguments.key, arguments.value or "value")
    elif arguments.message is not None:
        yield Given(arguments)
    elif arguments.file is None:
        yield Text(arguments, sys.stdin.fileno())
    else:
        try:
            descriptor = os.open(arguments.file, os.O_RDONLY)
        except OSError as error:
            raise UsageError(f"cannot read {arguments.file}: {error.strerror}") from None
        try:
            yield Text(arguments, descriptor)
        finally:
            os.close(descriptor)


class Given:
    """The messages of the command line, again and again."""

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


class Text:
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
        self._tables = Tables(path, [value, *([key] if key is not None else [])])
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
