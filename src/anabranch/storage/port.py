"""The port between a broker and its durable log. Data plane on the append and read side.

A *ledger* is a run of entries of one topic written by one broker incarnation. All ledgers of an incarnation share one
write-ahead log. A `LogStore` writes the log of its own incarnation and reads every incarnation's. It knows ledgers and
bytes only; its callers know topics, cursors and retention (`topic_log.py`).

Callers rely on three promises:

* **Confirmed** is the only end that callers ever see. An entry or state record is confirmed once its commit, and every
  commit before it, is stored, and no fence was found after that. Nothing unconfirmed is ever read.
* **Fencing** is absolute: once `take` has returned, the previous writer confirms nothing more for those ledgers.
* **Order**: entries and state records of one ledger are recovered in append order, without gaps.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from anabranch.errors import AnabranchError
from anabranch.model.histogram import Histogram
from anabranch.model.position import Incarnation, LedgerId

Buffer = bytes | bytearray | memoryview

# (entry id, number of messages in it, the entry's bytes). A plain tuple: one is made per entry read. The view stays
# valid as long as it is held.
Entry = tuple[int, int, memoryview]


class LogError(AnabranchError):
    """The log could not do what it was asked to do."""

    # ServiceNotReady: the client looks the topic up again and tries there.
    code = 6


class FencedError(LogError):
    """Another broker has taken this ledger (or the whole incarnation); nothing more will be confirmed here."""


class LogFailedError(LogError):
    """A write or sync failed. It is never retried: the incarnation is over, and recovery reads what is on disk."""


class LogFullError(LogError):
    """Only the reserve of disk is left: publishes are refused, state records and deletes still work."""

    retryable = True


class LogInUseError(LogError):
    """The folder belongs to another running process, or lies on a file system where a log must not be."""


class LogMissingError(LogError):
    """Entries that should exist are not there: an error, never a skip."""


class LogDamagedError(LogError):
    """A record does not match its checksum. Reads of the ledger stop here until an operator skips the damage."""

    def __init__(self, ledger: int, first_bad: int, next_good: int | None, where: str, offset: int) -> None:
        super().__init__(f"ledger {ledger} entry {first_bad}: damaged record in {where} at byte {offset}")
        self.ledger = ledger
        self.first_bad = first_bad
        # The first entry known to be readable again, or None if nothing of the ledger follows the damage.
        self.next_good = next_good
        self.where = where
        self.offset = offset


class LedgerListener(Protocol):
    """Notifications to a ledger's owner, on the event loop's thread."""

    def confirmed(self, entries_end: int, state_end: int) -> None:
        """Entries with ids below `entries_end` and state records numbered below `state_end` are confirmed.

        Called once per commit that held anything of this ledger, in order. An owner that raises loses its ledger."""

    def lost(self, error: LogError) -> None:
        """The ledger takes no more writes; what is unconfirmed now will never be confirmed. Called once.

        Unconfirmed records are not undone: as after a crash, the next owner of the topic may find them stored."""


@runtime_checkable
class FoldingListener(LedgerListener, Protocol):
    """A listener that can provide its whole state, so that a checkpoint need not carry a snapshot and every delta."""

    def snapshot(self) -> bytes:
        """The owner's state in full: everything appended so far, confirmed or not, as `append_snapshot` would take it.

        Called on the event loop between its callbacks, never inside an append; it must not append. An owner that
        raises loses its ledger: what is stored of its state are then the records appended so far."""


class LedgerWriter(Protocol):
    """The writing end of one ledger. All calls are synchronous and cheap; they copy into the commit being filled."""

    @property
    def ledger(self) -> LedgerId: ...

    @property
    def next_entry(self) -> int:
        """The id the next appended entry will get; ids start at 0."""

    @property
    def entries_end(self) -> int:
        """The confirmed end: one past the last confirmed entry."""

    @property
    def has_told_all(self) -> bool:
        """Whether the ledger is closed and its listener knows that everything appended to it is confirmed: it hears
        nothing more. True already during the call that says so."""

    def append(self, entry: Buffer, messages: int) -> int:
        """Copies `entry` into the commit being filled and gives it the next id. Raises if the ledger is lost.

        The buffer may be reused on return. `messages` is how many messages the entry carries, in 32 bits. On any error
        nothing was appended; ValueError if no log could store the entry."""

    def append_many(self, entries: Sequence[Buffer], messages: Sequence[int]) -> int:
        """`append` for each pair, in order, at a fraction of the cost per entry; returns the id of the first. Not for
        empty lists.

        On an error some of the first entries may have been appended: `next_entry` says how many."""

    def append_state(self, delta: bytes) -> int:
        """A small change of the owner's state (an ack, a new cursor …), ordered with the entries.

        Returns its number; it is stored once `confirmed` reports a `state_end` above that."""

    def append_snapshot(self, state: bytes) -> int:
        """The owner's state in full. On recovery it replaces every state record before it."""

    def close(self) -> None:
        """Closes the ledger: unconfirmed records are still stored and confirmed, nothing more may be appended.

        Until the incarnation ends the store keeps the ledger's last snapshot and deltas for its checkpoints, and
        `take` of the own incarnation returns them, so that the same broker can open the topic again."""


@dataclass(frozen=True, slots=True)
class LedgerState:
    """What a ledger held when its writer ended (or, for a live local ledger, what it holds now)."""

    entries_end: int
    # The last snapshot and the deltas after it, in order; None and () if none was ever written.
    snapshot: bytes | None
    deltas: tuple[bytes, ...]
    # Bytes of the entries, so that sizes can be reported without reading.
    bytes: int
    # Messages in the entries, for figures alone; -1 if not known. No part of what a ledger is: recovery may have met
    # entries that it cannot read, and counts those as one message each.
    messages: int = field(default=-1, compare=False)


class LiveLedger(NamedTuple):
    """A ledger as a topic's record names it: entries [first, end) live. `end` is None while its writer is at work."""

    ledger: LedgerId
    incarnation: Incarnation
    first: int
    end: int | None
    # The folder for rewritten files of this ledger.
    namespace: str
    # The path of the record; "" if the caller does not say.
    record: str = ""


# The path of a record that there never is. A ledger opened with it and `is_named=False` lives as long as its process.
NO_RECORD = "/no-record"

# What the records at those paths name at this moment. A record that does not exist names nothing: an empty list. A
# record that could not be read is left out of the answer.
Living = Callable[[Sequence[str]], Awaitable[Mapping[str, Sequence[LiveLedger]]]]

# The incarnations that brokers write which are registered at this moment; None if that could not be found out.
Writers = Callable[[], Awaitable[Collection[Incarnation] | None]]


@dataclass(frozen=True, slots=True)
class FileRun:
    """A stretch of one file that holds consecutive records of one ledger, possibly with other records between them."""

    path: str
    # Byte offset of each record, and its length with the record header; parallel to entry ids from `first`.
    first: int
    offsets: Sequence[int]
    lengths: Sequence[int]
    # The file is full and has an index of its own, which holds the same places.
    has_index: bool = False


@dataclass(frozen=True, slots=True)
class ObjectRun:
    """A stretch of one object that holds records of one ledger and of no other: the entries [first, end) in their
    order, and perhaps entries before and behind these, and state records."""

    key: str
    first: int
    end: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The files or objects in which a reader that bypasses the broker finds entries. Readers check ledger, entry and
    CRC of each record.

    If one is missing, plan again. After `expires_at_ms` (the store's clock) they may be removed at any time. The plan
    may end before what was asked for, where that would take too long; it never is empty.
    """

    ledger: LedgerId
    first: int
    end: int
    runs: tuple[FileRun, ...]
    expires_at_ms: int
    # Of a log in an object store, instead of `runs`; and where the objects are, for readers with credentials of their
    # own.
    objects: tuple[ObjectRun, ...] = ()
    objects_url: str = ""


class LogStore(Protocol):
    @property
    def incarnation(self) -> Incarnation:
        """This writer's name, never used before or again."""

    @property
    def ended(self) -> LogError | None:
        """Why this incarnation is over and nothing more can be written under it; None while it lives."""

    @property
    def is_accepting(self) -> bool:
        """False while only the reserve of disk is left. `append` then raises `LogFullError`; everything else works."""

    @property
    def capacity_bytes(self) -> int | None:
        """The most bytes that the log may take: its own limit, or its size plus the free space. None if unknown.

        Of a log that several processes write, the part of that for the files which this one knows, and whose live
        entries its `stats` count."""

    def told_space(self) -> str:
        """A sentence for people: how much room there is and what bounds it, as of the last check of the disk."""

    def on_accepting_change(self, callback: Callable[[bool], None]) -> None: ...

    def on_end(self, callback: Callable[[], None]) -> None:
        """Calls back once this incarnation is over, whether or not a ledger is open; owners are notified before
        that."""

    @property
    def unconfirmed_bytes(self) -> int:
        """Bytes appended and not yet confirmed: the measure for back-pressure."""

    async def start(self) -> None: ...

    async def close(self) -> None:
        """Confirms what is unconfirmed, writes the hand-over so that the next start need not recover, and ends."""

    # -- writing

    def open_ledger(
        self,
        ledger: LedgerId,
        listener: LedgerListener,
        namespace: str,
        record: str = "",
        *,
        is_named: bool = True,
    ) -> LedgerWriter:
        """A writer for a ledger id never used before. The caller has stored (ledger, incarnation) in its record.

        `namespace` names the folder for rewritten files of this ledger, `record` is the path of that record. A ledger
        that the record will name only when it is complete is opened with `is_named=False`: it lives until `know` names
        it, it is deleted, or this incarnation ends."""

    # -- taking over

    async def take(
        self, incarnation: Incarnation, ledgers: Collection[LedgerId] | None
    ) -> Mapping[LedgerId, LedgerState]:
        """Fences those ledgers of `incarnation` (None: all of them), recovers, and returns their final states.

        Idempotent, also across processes: the result is stored create-only and later callers read it. A ledger the
        incarnation never wrote is absent from the answer. For this store's own incarnation the answer is the present
        state of closed ledgers, and nothing is fenced."""

    async def release(self, ledgers: Collection[LedgerId]) -> Mapping[LedgerId, LedgerState]:
        """The writer's last word on ledgers of this incarnation that it has closed: their final states.

        Returns once everything appended to them is confirmed. Nothing will ever be added, so a later `take` by anybody,
        also after the end of this incarnation, has the same answer. Raises LogError if the answer cannot be given for
        all of them: a ledger is still open, was taken by another broker, is not known here, or the log has ended."""

    def look_for_fences(self) -> None:
        """Notifies the owners of ledgers that other brokers have taken. Owners that write find the fence without
        this."""

    # -- reading (confirmed entries only)

    def read_cached(
        self, ledger: LedgerId, first: int, entries_max: int, bytes_max: int
    ) -> list[Entry] | None:
        """Entries from `first` on, if they are in the recent-entries cache; None if they must be read from storage.

        An empty list means: nothing confirmed at or after `first`, in a ledger that this store is writing. Of one that
        it has closed or lost it does not know the end: another broker that took it may have found more. At least one
        entry is returned even if it alone exceeds `bytes_max`."""

    async def read(
        self,
        ledger: LedgerId,
        incarnation: Incarnation,
        first: int,
        end: int,
        entries_max: int,
        bytes_max: int,
    ) -> list[Entry]:
        """Entries [first, end) of any ledger, as many as the limits allow and at least one.

        `end` is the end of the ledger as the caller knows it (from the topic's record for past ledgers, the confirmed
        end for its own). Raises LogDamagedError if the first entry wanted is damaged (good entries before damage are
        returned first), LogMissingError if it does not exist."""

    async def plan(self, ledger: LedgerId, incarnation: Incarnation, first: int, end: int) -> ReadPlan: ...

    async def signed(self, keys: Sequence[str], seconds: int) -> list[str]:
        """URLs with which anybody can read these objects of plans for so long. None at all if the log has none."""

    # -- giving disk back

    def trim(self, ledger: LedgerId, incarnation: Incarnation, first_live: int) -> None:
        """Entries below `first_live` are dead. The caller has made that durable first."""

    def delete(self, ledger: LedgerId, incarnation: Incarnation) -> None:
        """The whole ledger is dead; no record names it any more."""

    def know(self, live: Iterable[LiveLedger]) -> None:
        """A record that the caller has just stored names these ledgers: all of the topic's that are readable.

        Called for every topic that is opened: other brokers may have written to it since `retain`."""

    def retain(self, live: Iterable[LiveLedger]) -> None:
        """Called once after start, with every ledger in any record, as all records were read since then.

        All other ledgers of ended incarnations are dead, unless `know` has named them. After this call, ledgers that
        neither it nor `know` nor `take` has named are not served. Rewriting and deletion begin only after it."""

    def ask(self, living: Living, writers: Writers | None = None) -> None:
        """From now on the store may ask at any time what records name, and which incarnations have a writer.

        Brokers that share a log need it: a topic that has moved to another broker is trimmed there, and the log of a
        broker that has ended is looked after by the others."""

    async def reclaim(self) -> None:
        """Runs one pass of deletion and rewriting to its end now (it also happens by itself in the background)."""

    def stats(self) -> Mapping[str, float]:
        """Figures for metrics: bytes on disk, live bytes, files, cache bytes, commits …"""
        ...

    def histograms(self) -> Mapping[str, Histogram]:
        """Durations in seconds: `append`, an entry until it is confirmed; `sync`, a write to disk."""
