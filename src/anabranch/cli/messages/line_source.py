"""Lines of a file or of standard input, many at a time, and their messages.

A thread reads: files, pipes, terminals and any other input of a shell are read alike, and neither receipts nor pings
wait for a slow one.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from anabranch.cli.parsing.options import UsageError, unescaped

LINE_BYTES_MAX: Final = 64 << 20
CHUNK_BYTES: Final = 256 * 1024
CHUNKS_AHEAD: Final = 4

# The key, or None, and the value.
Keyed = tuple[str | None, bytes]


class DescriptorChunks:
    """The bytes read from a file descriptor, in order."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes | OSError] = asyncio.Queue()
        self._room = threading.Semaphore(CHUNKS_AHEAD)
        # The thread is not awaited: it may be stuck in a read that never ends.
        threading.Thread(target=self._read, name="input", daemon=True).start()

    def _read(self) -> None:
        found: bytes | OSError = b"."
        while found and not isinstance(found, OSError):
            self._room.acquire()
            try:
                found = os.read(self._descriptor, CHUNK_BYTES)
            except OSError as error:
                found = error
            try:
                self._loop.call_soon_threadsafe(self._queue.put_nowait, found)
            except RuntimeError:  # The loop is closed: the command has ended.
                return

    async def next(self) -> bytes:
        """The next bytes; empty at the end."""
        found = await self._queue.get()
        if isinstance(found, OSError):
            raise UsageError(f"cannot read the messages: {found.strerror}")
        self._room.release()
        return found


class Lines:
    """`next` returns the complete lines so far, without their ends; the last line may have none."""

    def __init__(self, descriptor: int) -> None:
        self.bytes_read = 0
        self.number = 1  # The number of the first line that `next` will return.
        self._chunks = DescriptorChunks(descriptor)
        self._rest: list[bytes] = []  # The parts of an incomplete line.
        self._given = 0
        self._is_over = False

    async def next(self) -> list[bytes]:
        """The next lines; empty at the end."""
        self.number += self._given
        found: list[bytes] = []
        while not found and not self._is_over:
            data = await self._chunks.next()
            self.bytes_read += len(data)
            self._rest.append(data)
            if b"\n" in data:
                found = b"".join(self._rest).split(b"\n")
                self._rest = [found.pop()]
            elif not data:
                self._is_over = True
                found = [line] if (line := b"".join(self._rest)) else []
            elif sum(map(len, self._rest)) > LINE_BYTES_MAX:
                raise UsageError(
                    f"line {self.number:,} is over {LINE_BYTES_MAX >> 20} MB: is this a file of lines?"
                )
        self._given = len(found)
        if any(line.endswith(b"\r") for line in found):
            found = [line.removesuffix(b"\r") for line in found]
        return found


# -- keys

# The messages of lines, the first of which has that number. UsageError is raised after those before a wrong line.
Keying = Callable[[list[bytes], int], Iterable[Keyed]]


def keying(key: str | None, separator: str | None, field: str | None) -> Keying:
    """How lines become messages: with one key for all, one before a separator, or one in a JSON object."""
    if separator is not None:
        return _separated(unescaped(separator))
    if field is not None:
        return _from_json(field)
    return lambda lines, first: [(key, line) for line in lines]


def _separated(separator: bytes) -> Keying:
    def keyed(lines: list[bytes], first: int) -> Iterator[Keyed]:
        for number, line in enumerate(lines, first):
            key, is_there, value = line.partition(separator)
            if not is_there:
                raise UsageError(f"line {number:,} has no {separator.decode()!r} behind its key")
            try:
                yield key.decode(), value
            except UnicodeDecodeError:
                raise UsageError(f"the key of line {number:,} is not UTF-8") from None

    return keyed


def _from_json(field: str) -> Keying:
    import msgspec

    decode = msgspec.json.Decoder(dict[str, Any]).decode

    def keyed(lines: list[bytes], first: int) -> Iterator[Keyed]:
        for number, line in enumerate(lines, first):
            try:
                key = decode(line)[field]
            except (msgspec.MsgspecError, UnicodeDecodeError):
                raise UsageError(f"line {number:,} is no JSON object") from None
            except KeyError:
                raise UsageError(f"line {number:,} has no field {field!r}") from None
            if isinstance(key, dict | list | None):
                raise UsageError(f"line {number:,}: the field {field!r} is neither text nor number")
            yield key if isinstance(key, str) else msgspec.json.encode(key).decode(), line

    return keyed
