"""Which record names a ledger: kept beside the log, so that other brokers can ask after a ledger whose writer is dead.

Each incarnation appends a line to `names-NNNN` in its folder for each ledger that it opens. A rewritten file has the
names of its ledgers between its records and its footer. A name that is lost (the file is not synced) costs nothing but
time: without one, a ledger is kept until a broker starts and reads all records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from anabranch.model.position import Incarnation
from anabranch.storage.core import format as fmt
from anabranch.storage.on_disk.fences import read_whole
from anabranch.storage.on_disk.files import Files

log = logging.getLogger(__name__)

PREFIX = "names-"

# A file with more lines than this, and more than twice as many as there are ledgers, is written again.
_LINES_MIN = 10_000


class LedgerName(NamedTuple):
    incarnation: Incarnation
    # The path of the topic's record.
    record: str
    # False while the record does not name the ledger yet.
    is_named: bool = True


Names = Mapping[int, LedgerName]


def encode_names(names: Names) -> bytes:
    """A block of a rewritten file; nothing for no names."""
    if not names:
        return b""
    rows = [(ledger, *name) for ledger, name in sorted(names.items())]
    return fmt.encode_record(0, len(rows), 0, fmt.SNAPSHOT, msgspec.json.encode(rows))


def decode_names(data: memoryview) -> dict[int, LedgerName]:
    """The names in the bytes between a rewritten file's records and its footer; none in files of old releases."""
    record = fmt.read_record(data, 0, len(data))
    if record is None or not record.is_good or (record.ledger, record.kind) != (0, fmt.SNAPSHOT):
        return {}
    body = data[fmt.RECORD_BYTES : record.size]
    rows = msgspec.json.decode(body, type=list[tuple[int, str, str, bool]])
    return {row[0]: LedgerName(Incarnation(row[1]), row[2], row[3]) for row in rows}


def _line(ledger: int, name: LedgerName) -> bytes:
    text = f"{ledger}\t{int(name.is_named)}\t{name.record}".encode()
    return b"%08x\t%s\n" % (crc32c(text), text)


def _lines(data: bytes) -> Iterator[tuple[int, bool, str]]:
    """Lines that are whole: the last one may be cut short, and a wrong path would lead to the wrong record."""
    for line in data.split(b"\n"):
        crc, _, text = line.partition(b"\t")
        if crc and crc == b"%08x" % crc32c(text):
            ledger, is_named, record = text.decode().split("\t", 2)
            yield int(ledger), is_named == "1", record


def load_names(files: Files, folder: Path) -> dict[int, LedgerName]:
    """The names that an incarnation wrote down. Blocking."""
    incarnation = Incarnation(folder.name)
    found: dict[int, LedgerName] = {}
    for name in sorted(one for one in files.list(folder) if one.startswith(PREFIX)):
        for ledger, is_named, record in _lines(read_whole(files, folder / name)):
            found[ledger] = LedgerName(incarnation, record, is_named)
    return found


class NameWriter:
    """Writes the names of this incarnation's ledgers, on the helper thread, in the order of the calls."""

    def __init__(self, files: Files, folder: Path, helper: Executor) -> None:
        self._files = files
        self._folder = folder
        self._helper = helper
        self._fd: int | None = None
        self._number = 0
        self._at = 0
        self._lines = 0
        self._is_closed = False

    def add(self, ledger: int, name: LedgerName) -> None:
        if self._is_closed:
            return
        self._lines += 1
        self._helper.submit(self._try, self._append, [_line(ledger, name)])

    def wants_rewriting(self, ledgers: int) -> bool:
        return self._lines > max(_LINES_MIN, 2 * ledgers)

    def rewrite(self, names: Iterable[tuple[int, LedgerName]]) -> None:
        lines = [_line(ledger, name) for ledger, name in names]
        self._lines = len(lines)
        self._helper.submit(self._try, self._begin, lines)

    def close(self) -> None:
        """Before the helper thread ends; may be called twice."""
        if not self._is_closed:
            self._is_closed = True
            self._helper.submit(self._try, self._close)

    def _try(self, call: object, *args: object) -> None:
        """On the helper thread. Names are a help: without them the log works as well."""
        try:
            call(*args)  # type: ignore[operator]
        except OSError as error:
            log.warning("writing the names of ledgers failed: %s", error)

    def _append(self, lines: list[bytes]) -> None:
        if self._fd is None:
            self._number += 1
            self._fd = self._files.create(self._path(self._number), 0)
            self._at = 0
        data = b"".join(lines)
        self._files.write(self._fd, [data], self._at)
        self._at += len(data)

    def _begin(self, lines: list[bytes]) -> None:
        """Continues in a new file, which has everything; only then does the old one go."""
        old = self._number
        self._close()
        self._append(lines)
        if old:
            self._files.unlink(self._path(old))

    def _close(self) -> None:
        if self._fd is not None:
            self._files.close(self._fd)
            self._fd = None

    def _path(self, number: int) -> Path:
        return self._folder / f"{PREFIX}{number:04d}"
