"""What clients saw, noted by the clients: one file per producer and per subscription, one event per line.

The order of the lines of a file is the order in which its process saw things; files are not ordered among each other.
Nothing in a history comes from the broker's own statistics.

    s producer index                     handed to the client
    r producer index  P L E B  T         receipt, with partition, ledger, entry and batch index (-1: not in a batch);
                                         T is the machine's monotonic time in ms, which hidden writes leave out
    l producer index                     on opening the broker said that this producer is stored up to this index
    x producer index  why                the client gave it up; it may be stored or not
    o consumer                           a new connection of this consumer
    m consumer producer index key  P L E B    received
    a consumer P L E B                   this one acknowledged (B = -1: the whole entry), and
    A consumer P L E B                   … the broker answered that the ack is stored
    c consumer P L E B                   all up to this one acknowledged, and
    C consumer P L E B                   … the broker answered that the ack is stored
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

Fields = tuple[str, ...]


class Place(NamedTuple):
    """The position of a message."""

    partition: int
    ledger: int
    entry: int
    batch: int

    @property
    def whole(self) -> Place:
        """The position of its entry."""
        return self._replace(batch=-1)


def place(fields: Fields, at: int) -> Place:
    return Place(*(int(one) for one in fields[at : at + 4]))


class Writer:
    """Appends events from any thread; `flush` makes them visible to followers of the file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1 << 16)
        self._lock = threading.Lock()

    def note(self, *fields: object) -> None:
        line = "\t".join(map(str, fields))
        with self._lock:
            self._file.write(line + "\n")

    def flush(self) -> None:
        with self._lock:
            self._file.flush()

    def close(self) -> None:
        with self._lock:
            self._file.close()


class Follower:
    """Reads a history while it grows: each call gives the whole lines added since the last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def new(self) -> Iterator[Fields]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._at += end
        for line in data[:end].decode().splitlines():
            yield tuple(line.split("\t"))
