"""`anabranch produce`: messages from the command line, from lines of text, or from the rows of a table."""

from __future__ import annotations

import argparse
import asyncio
import os
import stat
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final, Protocol

from anabranch.cli.lines import Keyed, Lines, keying
from anabranch.cli.options import UsageError, pairs
from anabranch.cli.progress import Bar, Tally, is_terminal, plural, summary
from anabranch.cli.reach import find
from anabranch.cli.running import Stopping
from anabranch.cli.running import run as run_loop
from anabranch.cli.tables import Tables
from anabranch.client import Batching, Producer, connect
from anabranch.client.errors import TimedOut
from anabranch.errors import AnabranchError

# Messages of the command line that are made at once, when they are sent many times.
REPEATED_AT_ONCE: Final = 1000
# How late a message may be with --rate, for the sake of fewer timers.
RATE_GRAIN_S: Final = 0.001
# After that long somebody who pressed Ctrl-C is told why it takes so long.
PATIENCE_S: Final = 1.0


class NotAllStored(AnabranchError):
    """Some messages are not, or may not be; says how many are."""


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    return run_loop(_produce(arguments))


def _check(arguments: argparse.Namespace) -> None:
    sources = [arguments.message is not None, arguments.file is not None, arguments.arrow is not None]
    if sum(sources) > 1:
        raise UsageError("-m, --file and --arrow: give one of them, or none to send lines of standard input")
    if arguments.num < 1:
        raise UsageError("--num must be at least 1")
    if arguments.num > 1 and not arguments.message:
        raise UsageError("--num repeats messages given with -m; files and standard input are sent once")
    if arguments.rate is not None and arguments.rate <= 0:
        raise UsageError(f"--rate {arguments.rate:g}: give a number of messages a second above 0")
    if arguments.timeout < 0:
        raise UsageError(f"--timeout {arguments.timeout:g}: give seconds, or 0 to wait for ever")
    from_lines = not (arguments.message or arguments.arrow)
    if not from_lines and (arguments.key_separator is not None or arguments.key_field is not None):
        raise UsageError("--key-separator and --key-field are for lines of a file or of standard input")
    if sum(o is not None for o in (arguments.key, arguments.key_separator, arguments.key_field)) > 1:
        raise UsageError("--key, --key-separator and --key-field: give one of them")
    if arguments.arrow is None and arguments.value is not None:
        raise UsageError("--value names a column: it goes with --arrow")
    if arguments.arrow is not None and (arguments.property or arguments.rate is not None):
        raise UsageError("--property and --rate do not go with --arrow")


async def _produce(arguments: argparse.Namespace) -> int:
    properties = pairs(arguments.property, "--property")
    options = {
        "compression": arguments.compression,
        "batching": _batching(arguments),
        "chunking": arguments.chunking,
        "send_timeout_s": arguments.timeout or None,
    }
    with _opened(arguments) as source, Stopping() as stopping:
        await find(arguments.service_url, arguments.topic, for_producing=True)
        async with connect(arguments.service_url) as client:
            producer = await client.producer(arguments.topic, **options)
            sending = Sending(producer, source, properties or None, arguments.rate, stopping)
            bar = Bar("sending", sending.tally, is_shown=_has_bar(arguments), look=sending.look)
            with bar:
                try:
                    await sending.all()
                    await _settled(sending, stopping, bar)
                finally:
                    # What is not stored by now is given up; `Sending` has told of it, or was told to end at once.
                    await producer.close(flush=False)
    if not arguments.quiet:
        told = summary(sending.tally, "stored", bar.seconds)
        print(f"{'interrupted: ' if stopping else ''}{told}", file=sys.stderr)
    return stopping.exit_code if stopping else 0


def _batching(arguments: argparse.Namespace) -> bool | Batching:
    if arguments.no_batching:
        return False
    usual = Batching()
    return Batching(
        delay_ms=usual.delay_ms if arguments.batch_delay is None else arguments.batch_delay,
        messages_max=arguments.batch_messages or usual.messages_max,
        bytes_max=arguments.batch_bytes or usual.bytes_max,
    )


def _has_bar(arguments: argparse.Namespace) -> bool:
    is_typed = not (arguments.message or arguments.file or arguments.arrow) and sys.stdin.isatty()
    return is_terminal() and not arguments.quiet and not is_typed


async def _settled(sending: Sending, stopping: Stopping, bar: Bar) -> None:
    flushing = asyncio.ensure_future(sending.flushed())
    if stopping:
        await asyncio.wait([flushing], timeout=PATIENCE_S)
        if not flushing.done():
            sending.look()
            bar.say(f"waiting for the receipts of {plural(sending.pending)}; Ctrl-C again gives them up")
    await flushing


# -- where messages come from


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
def _opened(arguments: argparse.Namespace) -> Iterator[Source]:
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
        self._size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        self._lines = Lines(descriptor)
        self._before = 0

    async def next(self) -> list[Keyed]:
        self._before = self._lines.bytes_read
        lines = await self._lines.next()
        return list(self._keyed(lines, self._lines.number))

    def part(self, used: float) -> float | None:
        if not self._size:
            return None
        return min(1.0, _between(self._before, self._lines.bytes_read, used) / self._size)

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


# -- sending


class Sending:
    """Hands messages in as they come, and counts receipts.

    `post` is never cancelled, so what is counted as handed in was.
    """

    def __init__(
        self,
        producer: Producer,
        source: Source,
        properties: dict[str, str] | None,
        rate: float | None,
        stopping: Stopping,
    ) -> None:
        self.tally = Tally(part=source.part(0.0))
        self._producer = producer
        self._source = source
        self._properties = properties
        self._rate = rate
        self._stopping = stopping
        self._posted = 0
        self._posted_bytes = 0
        self._chunk = (
            0,
            1,
        )  # What had been handed in before what the source gave last, and how much that is.
        # With how many messages each stands for. Receipts come in order, nearly: counting the first ones will do.
        self._receipts: deque[tuple[asyncio.Future[Any], int]] = deque()
        self._answered = 0
        self._first_failed: int | None = None

    @property
    def pending(self) -> int:
        return self._posted - self._answered

    async def all(self) -> None:
        """Returns once everything is handed in, or the command is to end."""
        try:
            while not self._stopping:
                found = await self._stopping.unless_asked(self._source.next())
                if found is None or not len(found):
                    self._chunk = (self._posted, 0)
                    return
                self._chunk = (self._posted, len(found))
                await (self._post_table(found) if isinstance(self._source, Rows) else self._post_each(found))
                self.look()
                if self._first_failed is not None:
                    # Going on would leave a hole in the order.
                    return
        except UsageError:
            # The input is wrong, and what came before is not: it stays sent.
            await self.flushed()
            if self._posted:
                print(f"{plural(self.tally.messages)} stored before that:", file=sys.stderr)
            raise
        except AnabranchError as error:
            raise self._told(error) from None

    async def _post_each(self, messages: list[Keyed]) -> None:
        post, properties, add = self._producer.post, self._properties, self._receipts.append
        for key, value in messages:
            if self._stopping or (self._rate is not None and not await self._is_due(self._rate)):
                return
            add((await post(value, key=key, properties=properties), 1))
            self._posted += 1
            self._posted_bytes += len(value)

    async def _is_due(self, rate: float) -> bool:
        """Waits until the next message may be sent; False if the command is to end before."""
        loop = asyncio.get_running_loop()
        if self._posted == 0:
            self._began = loop.time()
        early_s = self._began + self._posted / rate - loop.time()
        if early_s > RATE_GRAIN_S:
            await self._stopping.unless_asked(asyncio.sleep(early_s))
        return not self._stopping

    async def _post_table(self, table: Any) -> None:
        assert isinstance(self._source, Rows)
        receipt = await self._producer.post_batch(table, key=self._source.key, value=self._source.value)
        self._receipts.append((receipt, table.num_rows))
        self._posted += table.num_rows
        self._posted_bytes += table[self._source.value].nbytes

    def look(self) -> None:
        """Counts what has been stored by now."""
        receipts = self._receipts
        while receipts and receipts[0][0].done():
            receipt, count = receipts.popleft()
            if receipt.cancelled() or receipt.exception() is not None:
                if self._first_failed is None:
                    self._first_failed = self._answered
            else:
                self.tally.messages += count
            self._answered += count
        stored = self.tally.messages / max(1, self._posted)
        self.tally.bytes = round(self._posted_bytes * stored)
        before, given = self._chunk
        part = self._source.part((self._posted - before) / given if given else 1.0)
        self.tally.part = None if part is None else part * stored

    async def flushed(self) -> None:
        """Returns once all that was handed in is stored; NotAllStored if it is not."""
        try:
            await self._producer.flush()
        except AnabranchError as error:
            raise self._told(error) from None
        finally:
            self.look()

    def _told(self, error: AnabranchError) -> NotAllStored:
        self.look()
        if isinstance(error, TimedOut):
            reason = "the broker sent no receipts in time; is it in trouble? --timeout allows more"
        else:
            # The client's advice is for programs.
            reason = str(error).replace("chunking=True", "--chunking")
        if not self._posted:
            return NotAllStored(reason)
        first = self._answered if self._first_failed is None else self._first_failed
        return NotAllStored(
            f"{reason} ({self.tally.messages:,} of {plural(self._posted)} stored; "
            f"the first that may not be is {self._source.where(first)})"
        )
