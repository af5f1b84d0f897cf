"""Data plane. Acknowledgements on their way to the log: gathered during one turn of the event loop, written as one
record.

A hundred thousand single acknowledgements a second become a few thousand records of a few bytes each. A caller that
waits for an acknowledgement is notified once the record that holds it is confirmed. Without a journal (a reader's
subscription) nothing is written, and callers are notified at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from anabranch.broker.ports import Done, Journal
from anabranch.broker.state import topic_state as state
from anabranch.model.position import Position


class AckWriter:
    """Gathers the acknowledgements of one subscription. Its owner calls `flush` once per turn in which it gathered
    something; `stored`, if set, is called whenever everything written is confirmed."""

    __slots__ = (
        "_below",
        "_entries",
        "_journal",
        "_loop",
        "_name",
        "_parts",
        "_unconfirmed",
        "_waiters",
        "stored",
    )

    def __init__(self, name: str, journal: Journal | None, loop: asyncio.AbstractEventLoop) -> None:
        self._name = name
        self._journal = journal
        self._loop = loop
        self.stored: Callable[[], None] | None = None
        # Records being written, and those that will never be confirmed.
        self._unconfirmed = 0
        self._entries: dict[int, list[int]] = {}
        # The unacknowledged messages of each batch, and its size.
        self._parts: dict[Position, tuple[int, int]] = {}
        self._below: Position | None = None
        self._waiters: list[Done] = []

    @property
    def is_durable(self) -> bool:
        return self._journal is not None

    @property
    def is_stored(self) -> bool:
        """Whether every acknowledgement is confirmed: none of them can be lost any more."""
        is_gathering = self._entries or self._parts or self._below is not None
        return self._journal is None or not (self._unconfirmed or is_gathering)

    # -- gathering

    def entry(self, at: Position) -> None:
        """Gathers the entry even if it was acknowledged before: its answer must not come before the first one's
        record."""
        found = self._entries.get(at[0])
        if found is None:
            self._entries[at[0]] = [at[1]]
        else:
            found.append(at[1])

    def part(self, at: Position, unacked: int, size: int) -> None:
        # Each call has the whole batch: a client that acknowledges its messages one by one would write as many copies.
        before = self._parts.get(at)
        self._parts[at] = (unacked, size) if before is None else (unacked & before[0], size or before[1])

    def below(self, at: Position) -> None:
        self._below = at if self._below is None else max(at, self._below)

    def wait(self, done: Done) -> None:
        self._waiters.append(done)

    # -- writing

    def flush(self) -> None:
        below, self._below = self._below, None
        entries, self._entries = self._entries, {}
        parts, self._parts = self._parts, {}
        waiters, self._waiters = self._waiters, []
        records: list[bytes] = []
        if self._journal is not None:
            if below is not None:
                records.append(state.acked_below(self._name, below))
            if entries or parts:
                left = [(at, unacked, size) for at, (unacked, size) in parts.items()]
                records.append(state.acked(self._name, entries, left))
        self.write(records, _tell_all(waiters))

    def write(self, records: Sequence[bytes], done: Done | None = None) -> None:
        """Writes the given records; `done` is called once the last one is confirmed."""
        if self._journal is None or not records:
            if done is not None:
                done(None)
            return
        for record in records[:-1]:
            self._journal.record(record)
        self._unconfirmed += 1
        self._journal.record(records[-1], partial(self._confirmed, done))

    def _confirmed(self, done: Done | None, error: Exception | None) -> None:
        if error is None:
            self._unconfirmed -= 1
        if done is not None:
            done(error)
        if self.stored is not None and not self._unconfirmed:
            self.stored()

    def write_down(self, record: bytes) -> asyncio.Future[None]:
        """A future that is done once the record is confirmed. Acknowledgements gathered before are written before it.

        Several callers may wait for it (`outcome`), and one that stops waiting cancels nothing.
        """
        self.flush()
        written: asyncio.Future[None] = self._loop.create_future()

        def done(error: Exception | None) -> None:
            if written.done():
                return
            if error is None:
                written.set_result(None)
            else:
                written.set_exception(error)

        self.write([record], done)
        # The caller may no longer wait by then.
        written.add_done_callback(lambda _: written.cancelled() or written.exception())
        return written

    def when_written(self, done: Done) -> None:
        """Calls `done` once everything gathered so far is confirmed."""
        self.flush()
        # Records are confirmed in order: an empty one is confirmed after all that were written before.
        self.write([state.acked(self._name, {}, [])], done)


def _tell_all(waiters: list[Done]) -> Done | None:
    if len(waiters) < 2:
        return waiters[0] if waiters else None

    def tell(error: Exception | None) -> None:
        for done in waiters:
            done(error)

    return tell
