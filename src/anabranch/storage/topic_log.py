"""A topic's managed log: its ledgers as one readable, appendable, trimmable whole.

Opening a topic fences whoever wrote its last ledger, learns that ledger's end and the topic's state, and starts a
ledger of this incarnation, whose id and incarnation are in the record before anything is written to it. The record
says which entries exist; it changes only by compare-and-set.

This module decides nothing about cursors: the state is bytes to it, kept by the owner (`broker/topic.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

import msgspec

from anabranch.errors import AnabranchError
from anabranch.metadata.errors import AlreadyExists, VersionConflict
from anabranch.metadata.port import MetadataStore
from anabranch.model.entry_runs import EntryRuns
from anabranch.model.position import Incarnation, LedgerId, Position
from anabranch.storage.compacted_writer import CompactedWriter
from anabranch.storage.ledger_ids import LedgerIds
from anabranch.storage.port import (
    Buffer,
    Entry,
    LedgerState,
    LedgerWriter,
    LogDamagedError,
    LogError,
    LogStore,
)
from anabranch.storage.publish_times import first_published_at, published_at
from anabranch.storage.spans import NOTHING_DROPPED, Span, Spans
from anabranch.storage.topic_record import CompactedLedger, LedgerRecord, Skip, TopicRecord

log = logging.getLogger(__name__)


class TopicGoneError(AnabranchError):
    """The topic does not exist, or is being deleted."""

    code = 11  # ServerError.TopicNotFound of the wire protocol.


class TopicLogOwner(Protocol):
    """What the topic that owns the log is told."""

    def entries_confirmed(self, entries_end: int) -> None:
        """Entries of the ledger being written are confirmed up to `entries_end`."""

    def log_lost(self, error: LogError) -> None:
        """No more writes here, ever. The topic must be closed, and opened again if it is still ours."""

    def encode_state(self) -> bytes:
        """The topic's state in full, as of everything appended so far."""


class TopicLog:
    """Implements `LogReader` and `Journal` of the broker's ports."""

    def __init__(
        self,
        path: str,
        namespace: str,
        store: LogStore,
        metadata: MetadataStore,
        record: TopicRecord,
        version: int,
        recovered: LedgerState | None,
    ) -> None:
        self._path = path
        self._namespace = namespace
        self._store = store
        self._metadata = metadata
        self._record = record
        self._version = version
        # What is kept, and what of it readers see. The same unless something is hidden.
        self._kept = self._spans = Spans(record)
        self._dropped = NOTHING_DROPPED
        self._stop: Position | None = None
        self._journal: deque[tuple[int, Callable[[Exception | None], None]]] = deque()
        self._lost: LogError | None = None
        # Changes of the record wait for each other: each must build on the one before.
        self._changing = asyncio.Lock()
        # Those under way, kept from being collected; see `change_record`.
        self._unfinished: set[asyncio.Task[None]] = set()
        self._has_stored_state = False
        self.appended_bytes = 0  # To the ledger that is being written.
        self._confirmed_entries = 0
        # The state the last owner left, for the new owner to fold; None on a new topic.
        self.recovered: LedgerState | None = recovered
        self._owner: TopicLogOwner
        self._writer: LedgerWriter

    # -- opening

    @staticmethod
    async def create(
        path: str,
        metadata: MetadataStore,
        now_ms: int,
        properties: dict[str, str] | None = None,
        topic_id: str = "",
    ) -> bool:
        """Makes the record of a topic that does not exist; False if it does."""
        record = TopicRecord(properties=properties or {}, created_ms=now_ms, topic_id=topic_id)
        try:
            await metadata.create(path, record.encode())
        except AlreadyExists:
            return False
        return True

    @staticmethod
    async def create_open(
        path: str,
        namespace: str,
        store: LogStore,
        metadata: MetadataStore,
        ids: LedgerIds,
        now_ms: int,
        properties: dict[str, str],
        topic_id: str = "",
    ) -> TopicLog | None:
        """`create` and `open` with one write instead of two; None if the topic exists."""
        ledger = LedgerRecord(id=await ids.next(0), incarnation=store.incarnation, created_ms=now_ms)
        record = TopicRecord(properties=properties, created_ms=now_ms, topic_id=topic_id)
        record = record.with_ledger(ledger, state_source=None)
        try:
            stored = await metadata.create(path, record.encode())
        except AlreadyExists:
            return None
        return TopicLog(path, namespace, store, metadata, record, stored.version, None)

    @staticmethod
    async def open(
        path: str, namespace: str, store: LogStore, metadata: MetadataStore, ids: LedgerIds, now_ms: int
    ) -> TopicLog:
        """Takes the topic over from whoever had it. `start` must follow before anything is appended."""
        while True:
            found = await metadata.get(path)
            if found is None:
                raise TopicGoneError(f"no topic at {path}")
            record = TopicRecord.decode(found.value)
            if record.is_deleting:
                raise TopicGoneError(f"the topic at {path} is being deleted")
            record, source, state = await _take_over(record, store)
            ledger = LedgerRecord(
                id=await ids.next(record.ledger_id_min),
                incarnation=store.incarnation,
                created_ms=now_ms,
            )
            opened = record.with_ledger(ledger, state_source=source)
            try:
                stored = await metadata.put(path, opened.encode(), if_version=found.version)
            except VersionConflict:
                # Somebody else changed the record since we read it: look again, fence again.
                continue
            _forget_unlisted(record, opened, store)
            return TopicLog(path, namespace, store, metadata, opened, stored.version, state)

    def start(self, owner: TopicLogOwner) -> None:
        """Opens the ledger for writing; its first record is the owner's state."""
        self._owner = owner
        ledger = LedgerId(self._record.ledgers[-1].id)
        self._writer = self._store.open_ledger(ledger, self, self._namespace)
        try:
            self._writer.append_snapshot(owner.encode_state())
        except BaseException:
            # Nobody will ever write to it.
            self._writer.close()
            raise

    @property
    def topic_record(self) -> TopicRecord:
        return self._record

    # -- writing

    async def is_current(self) -> bool:
        """Whether the topic's record still names our ledger last. Who writes nothing does not meet the fence."""
        found = await self._metadata.get(self._path)
        ledgers = TopicRecord.decode(found.value).ledgers if found is not None and found.value else ()
        return bool(ledgers) and ledgers[-1].id == self.ledger

    @property
    def ledger(self) -> int:
        return self._record.ledgers[-1].id

    @property
    def next_entry(self) -> int:
        return self._writer.next_entry

    @property
    def appended_end(self) -> Position:
        """One past the last entry appended, confirmed or not."""
        return self._record.ledgers[-1].id, self._writer.next_entry

    @property
    def confirmed_end(self) -> int:
        """One past the last confirmed entry of the ledger being written."""
        return self._confirmed_entries

    def append_many(self, entries: Sequence[Buffer], messages: Sequence[int]) -> int:
        """Appends entries one after the other; the id of the first."""
        first = self._writer.append_many(entries, messages)
        self.appended_bytes += sum(map(len, entries))
        return first

    def append(self, entry: Buffer, messages: int) -> int:
        number = self._writer.append(entry, messages)
        self.appended_bytes += len(entry)
        return number

    def record(self, delta: bytes, done: Callable[[Exception | None], None] | None = None) -> None:
        if self._lost is not None:
            if done is not None:
                done(self._lost)
            return
        try:
            number = self._writer.append_state(delta)
        except LogError as error:
            if done is not None:
                done(error)
            return
        if done is not None:
            self._journal.append((number, done))

    def confirmed(self, entries_end: int, state_end: int) -> None:
        self._has_stored_state = self._has_stored_state or state_end > 0
        try:
            if entries_end > self._confirmed_entries:
                self._confirmed_entries = entries_end
                self._kept.extend(entries_end)
                if self._spans is not self._kept:
                    self._spans.extend(entries_end)
                self._owner.entries_confirmed(entries_end)
        finally:
            # Whoever waits for a change of the state has waited for that alone.
            journal = self._journal
            while journal and journal[0][0] < state_end:
                _answer(journal.popleft()[1], None)

    def lost(self, error: LogError) -> None:
        self._lost = error
        journal, self._journal = self._journal, deque()
        for _, done in journal:
            _answer(done, error)
        self._owner.log_lost(error)

    def snapshot(self) -> bytes:
        return self._owner.encode_state()

    def store_snapshot(self, done: Callable[[Exception | None], None]) -> None:
        """Stores the owner's state in full, for what no delta can say; `done` as for `record`."""
        if self._lost is not None:
            done(self._lost)
            return
        try:
            number = self._writer.append_snapshot(self._owner.encode_state())
        except LogError as error:
            done(error)
        except Exception as error:
            log.exception("the state of %s cannot be said", self._path)
            done(LogError(f"the state of {self._path} cannot be said: {error!r}"))
        else:
            self._journal.append((number, done))

    def close(self) -> None:
        """Lets the ledger go, with the state in full as its last record so that reopening replays nothing.

        Where that cannot be said, the records before it stand: whoever opens the topic next folds those."""
        if self._lost is not None:
            return
        try:
            self._writer.append_snapshot(self._owner.encode_state())
        except LogError:
            """The log ended meanwhile: what was stored before counts."""
        except Exception:
            log.exception("the state of %s cannot be said: what was stored before counts", self._path)
        finally:
            self._writer.close()

    # -- hiding

    def hide(self, dropped: EntryRuns, stop: Position | None) -> None:
        """From now on readers step over what is dropped, which is confirmed, and end before `stop`.

        The same object for `dropped` means that it has not changed, which saves making the spans anew."""
        is_same = dropped is self._dropped and self._spans is not self._kept
        self._dropped, self._stop = dropped, stop
        if not is_same or not self._spans.stop_at(stop, self._confirmed_entries):
            self._show()

    @property
    def is_hiding(self) -> bool:
        return self._stop is not None

    def _show(self) -> None:
        if self._dropped or self._stop is not None:
            self._spans = Spans(self._record, self._confirmed_entries, dropped=self._dropped, stop=self._stop)
        else:
            self._spans = self._kept

    @property
    def kept_first(self) -> Position:
        """The first entry that takes up space, seen or not; the end of the log if there is none."""
        return self._kept.first

    @property
    def kept_end(self) -> Position:
        """Where the next entry to be confirmed will lie, also while readers end before."""
        return self._kept.end

    # -- reading

    @property
    def first(self) -> Position:
        return self._spans.first

    @property
    def end(self) -> Position:
        return self._spans.end

    @property
    def last(self) -> Position:
        return self._spans.last

    @property
    def written_end(self) -> Position:
        """One past the last entry there ever was; (0, 0) if there was none."""
        ledger, entry = self.last
        return max((ledger, entry + 1), self._record.gone, (0, 0))

    def normalise(self, at: Position) -> Position:
        return self._spans.normalise(at)

    def after(self, at: Position) -> Position:
        return self._spans.after(at)

    def before(self, at: Position) -> Position:
        return self._spans.before(at)

    def count(self, start: Position, stop: Position) -> int:
        return self._spans.count(start, stop)

    @property
    def entries(self) -> int:
        return self._spans.count(self._spans.first, self._spans.end)

    @property
    def size_bytes(self) -> int:
        """Bytes of the kept entries; a partly trimmed ledger counts in proportion."""
        total = 0
        for ledger in self._record.ledgers:
            is_ours = ledger.id == self.ledger
            end = self._confirmed_entries if is_ours else ledger.end or 0
            size = self.appended_bytes if is_ours else ledger.bytes
            trimmed = self._record.trimmed[1] if ledger.id == self._record.trimmed[0] else 0
            total += size * max(0, end - trimmed) // end if end else 0
        return total

    def read_cached(self, at: Position, entries_max: int, bytes_max: int) -> tuple[int, list[Entry]] | None:
        at = self._spans.normalise(at)
        span = self._spans.span_at(at)
        if at[1] >= span.end:
            return at[0], []
        entries = self._store.read_cached(
            LedgerId(at[0]), at[1], min(entries_max, span.end - at[1]), bytes_max
        )
        return None if entries is None else (at[0], entries)

    async def read(self, at: Position, entries_max: int, bytes_max: int) -> tuple[int, list[Entry]]:
        at = self._spans.normalise(at)
        span = self._spans.span_at(at)
        if at[1] >= span.end:
            return at[0], []
        entries = await self._store.read(
            LedgerId(at[0]), Incarnation(span.incarnation), at[1], span.end, entries_max, bytes_max
        )
        return at[0], entries

    async def published_at(self, at: Position) -> int | None:
        """When the entry there was published, by its producer's clock; None if neither it nor one nearby says so."""

        async def read(_: int, entries_max: int, bytes_max: int) -> list[Entry]:
            return (await self.read(at, entries_max, bytes_max))[1]

        return await published_at(0, read)

    async def find_by_publish_time(self, publish_time_ms: int) -> Position:
        """The first entry published then or later, by the producers' clocks; the end if there is none."""
        # The same spans throughout: those of a log that is trimmed meanwhile count from another beginning.
        spans = self._spans

        async def read(index: int, entries_max: int, bytes_max: int) -> list[Entry]:
            return (await self.read(spans.at_index(index), entries_max, bytes_max))[1]

        found = await first_published_at(publish_time_ms, spans.count(spans.first, spans.end), read)
        return self.normalise(spans.at_index(found))

    def position_at(self, index: int) -> Position:
        """The position of the index-th kept entry, or the end."""
        return self._spans.at_index(index)

    # -- the record

    async def change_record(self, change: Callable[[TopicRecord], TopicRecord]) -> None:
        """Compare-and-set. A conflict means somebody else has opened the topic: this log is not ours any more.

        Who gives up waiting does not stop it: the store may have carried it out, and then the version is another."""
        await self._to_its_end(self._change_record(change))

    async def _to_its_end(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            # Nobody hears how it ends.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise

    async def _change_record(self, change: Callable[[TopicRecord], TopicRecord]) -> None:
        async with self._changing:
            if self._record.is_deleting:
                raise TopicGoneError(f"{self._path} is being deleted")
            changed = change(self._record)
            stored = await self._metadata.put(self._path, changed.encode(), if_version=self._version)
            self._version = stored.version
            self._replace_record(changed)

    def _replace_record(self, record: TopicRecord) -> None:
        self._record = record
        self._kept = Spans(record, self._confirmed_entries)
        self._show()

    async def trim(self, upto: Position) -> None:
        """Gives up every entry below `upto`. The record says so first; only then is the disk given back."""
        upto = min(upto, self.end)
        if not self._has_stored_state or upto <= self._record.trimmed:
            return
        if self._kept.count(self._kept.first, upto) == 0:
            return
        before = self._record
        # What nobody was ever to see is not missed.
        ledger, entry = self.before(upto)
        gone = max(self._record.gone, (ledger, entry + 1))
        await self._to_its_end(self._trim(before, upto, gone))

    async def _trim(self, before: TopicRecord, upto: Position, gone: Position) -> None:
        await self._change_record(lambda record: record.without_trimmed(upto, gone=gone))
        _forget_unlisted(before, self._record, self._store)
        for kept in self._record.ledgers:
            if kept.id == upto[0]:
                self._store.trim(LedgerId(kept.id), Incarnation(kept.incarnation), upto[1])

    # -- what compaction has left

    @property
    def incarnation(self) -> Incarnation:
        return self._store.incarnation

    def compacted_writer(self, ledger: LedgerId) -> CompactedWriter:
        """Writes a ledger beside this log. Until `use_compacted` it is in no record, and a crash makes it nothing."""
        return CompactedWriter(self._store, ledger, self._namespace)

    async def use_compacted(self, compacted: CompactedLedger, named: Callable[[], None]) -> None:
        """From now on this is what compaction has left. Once that is stored, `named` leads readers there, and the
        ledger before it is given up."""
        before = self._record.compacted
        await self.change_record(lambda record: msgspec.structs.replace(record, compacted=compacted))
        named()
        if before is not None:
            self._store.delete(LedgerId(before.id), Incarnation(before.incarnation))

    async def read_compacted(
        self, compacted: CompactedLedger, first: int, end: int, entries_max: int, bytes_max: int
    ) -> list[Entry]:
        ledger, incarnation = LedgerId(compacted.id), Incarnation(compacted.incarnation)
        return await self._store.read(ledger, incarnation, first, end, entries_max, bytes_max)

    def has_lost(self, since: Position) -> bool:
        """Whether an entry at or behind that position was given up."""
        return since < self._record.gone

    def is_foreign(self, at: Position) -> bool:
        """Whether that position can be of no entry of this topic, nor right behind one: its ledger is another's."""
        record = self._record
        if at <= max(record.gone, (0, 0)) or any(ledger.id == at[0] for ledger in record.ledgers):
            return False
        # The beginning of a ledger may be that of one which stayed empty, and is not listed any more.
        return at[1] > 0 or at[0] >= record.ledger_id_min

    async def seal(self) -> None:
        """Writes the end into the record. The owner has stopped appending and everything appended is confirmed."""
        end = self._kept.end
        await self.change_record(lambda record: msgspec.structs.replace(record, sealed_end=end))

    async def skip_damage(self, damage: LogDamagedError) -> int:
        """Steps over a damaged stretch for good; returns how many entries that gives up."""
        span = next(s for s in self._record.ledgers if s.id == damage.ledger)
        end = span.end if span.end is not None else self._confirmed_entries
        skip = Skip(
            damage.ledger, damage.first_bad, damage.next_good if damage.next_good is not None else end
        )
        await self.change_record(lambda record: msgspec.structs.replace(record, skips=(*record.skips, skip)))
        return skip.next - skip.first

    async def delete(self) -> None:
        """Removes the topic for good. Marked first, so that a deletion cut short is finished and never undone."""
        await self.change_record(lambda record: msgspec.structs.replace(record, is_deleting=True))
        if self._lost is None:
            self._writer.close()
        await finish_delete(self._path, self._record, self._version, self._store, self._metadata)

    def span_of(self, at: Position) -> Span:
        """The stretch of files that holds the entry at that place: also what readers step over in it."""
        return self._kept.span_at(self._kept.normalise(at))

    def dropped_in(self, ledger: int) -> list[tuple[int, int]]:
        """What readers step over there, in order: [first, end) of each run."""
        return list(zip(*self._dropped.of_ledger(ledger), strict=True))


def _answer(done: Callable[[Exception | None], None], error: Exception | None) -> None:
    """One of many who wait: what goes wrong with its answer is no concern of the others."""
    try:
        done(error)
    except Exception:
        log.exception("telling of a stored change failed")


def _forget_unlisted(before: TopicRecord, after: TopicRecord, store: LogStore) -> None:
    """What the record no longer names is dead, and the log need not keep its state either."""
    listed = {ledger.id for ledger in after.ledgers}
    for ledger in before.ledgers:
        if ledger.id not in listed:
            store.delete(LedgerId(ledger.id), Incarnation(ledger.incarnation))


async def finish_delete(
    path: str, record: TopicRecord, version: int, store: LogStore, metadata: MetadataStore
) -> None:
    """The rest of a deletion whose mark is stored. Whoever finds a marked record may run it, any number of times.

    It removes that record only: another one may have finished before, and somebody made a topic of that name since."""
    with contextlib.suppress(VersionConflict):
        await metadata.delete(path, if_version=version)
    for ledger in record.ledgers:
        store.delete(LedgerId(ledger.id), Incarnation(ledger.incarnation))
    if (compacted := record.compacted) is not None:
        store.delete(LedgerId(compacted.id), Incarnation(compacted.incarnation))


async def _take_over(
    record: TopicRecord, store: LogStore
) -> tuple[TopicRecord, int | None, LedgerState | None]:
    """Fences the writers of the record's open ledgers: the record with their ends, and where the state was found.

    The state is in the last ledger that stored any: a ledger whose writer died before its first commit has none.
    """
    states: dict[int, LedgerState] = {}
    for ledger in record.ledgers:
        if ledger.end is None:
            taken = await store.take(Incarnation(ledger.incarnation), [LedgerId(ledger.id)])
            states |= {int(number): state for number, state in taken.items()}
    record = record.with_ends(states)
    if (compacted := record.compacted) is not None and compacted.incarnation != store.incarnation:
        # Written in full and closed; the store learns that somebody wants it.
        await store.take(Incarnation(compacted.incarnation), [LedgerId(compacted.id)])
    for ledger in reversed(record.ledgers):
        found = states.get(ledger.id)
        if found is None:
            taken = await store.take(Incarnation(ledger.incarnation), [LedgerId(ledger.id)])
            found = taken.get(LedgerId(ledger.id))
        if found is not None and found.snapshot is not None:
            return record, ledger.id, found
    return record, None, None
