"""A topic's managed log: its ledgers as one readable, appendable, trimmable whole.

Opening a topic has the writer of its last ledger release it, or fences that writer. It learns the ledger's end and the
topic's state, and starts a ledger of this incarnation, whose id and incarnation are in the record before anything is
written to it. The record says which entries exist; it changes only by compare-and-set.

This module writes; `view` reads, `stored_record` changes the record, `taking_over` fences the last owner. None decides
anything about cursors: the state is bytes here, kept by the owner (`broker/topic/topic.py`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from anabranch.errors import unraised
from anabranch.metadata.errors import AlreadyExists, VersionConflict
from anabranch.metadata.port import MetadataStore
from anabranch.model.position import Incarnation, LedgerId, Position
from anabranch.storage.core.topic_record import CompactedLedger, LedgerRecord, Skip, TopicRecord
from anabranch.storage.port import (
    Buffer,
    Entry,
    LedgerState,
    LedgerWriter,
    LogDamagedError,
    LogError,
    LogStore,
)
from anabranch.storage.topic.compacted_writer import CompactedWriter
from anabranch.storage.topic.ledger_ids import LedgerIds
from anabranch.storage.topic.stored_record import Change, StoredRecord, TopicGoneError, to_its_end
from anabranch.storage.topic.taking_over import (
    LastWord,
    finish_delete,
    forget_unlisted,
    no_last_word,
    take_over,
)
from anabranch.storage.topic.view import LogView

log = logging.getLogger(__name__)


class TopicLogOwner(Protocol):
    """The topic that owns the log, as the log notifies it."""

    def entries_confirmed(self, entries_end: int) -> None:
        """Entries of the ledger being written are confirmed up to `entries_end`."""

    def log_lost(self, error: LogError) -> None:
        """No more writes here, ever. The topic must be closed, and opened again if it is still ours."""

    def encode_state(self) -> bytes:
        """The topic's state in full, as of everything appended so far."""


class _NoOwner:
    """The owner of a log that is closed and has told its owner everything: topic and log must not keep each other in
    memory."""

    def entries_confirmed(self, entries_end: int) -> None: ...

    def log_lost(self, error: LogError) -> None: ...

    def encode_state(self) -> bytes:
        return b""  # The closed ledger refuses it.


_NO_OWNER: Final = _NoOwner()


class TopicLog(LogView):
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
        super().__init__(store, record)
        self._path = path
        self._namespace = namespace
        self._metadata = metadata
        self._stored = StoredRecord(path, metadata, record, version)
        self._journal: deque[tuple[int, Callable[[Exception | None], None]]] = deque()
        # Callers get copies of it: an error that was raised keeps those it passed in memory.
        self._lost: LogError | None = None
        self._is_closed = False
        self._has_stored_state = False
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
        path: str,
        namespace: str,
        store: LogStore,
        metadata: MetadataStore,
        ids: LedgerIds,
        now_ms: int,
        last_word: LastWord = no_last_word,
    ) -> TopicLog:
        """Takes the topic over from its former owner, which is asked for its last word. `start` must follow before
        anything is appended."""
        while True:
            # Fresh: the topic may have been created through another broker a moment ago.
            found = await metadata.get(path, fresh=True)
            if found is None:
                raise TopicGoneError(f"no topic at {path}")
            record = TopicRecord.decode(found.value)
            if record.is_deleting:
                raise TopicGoneError(f"the topic at {path} is being deleted")
            # Before the last word: from then on the topic's clients wait.
            number = await ids.next(record.ledger_id_min)
            record, source, state = await take_over(path, record, store, last_word)
            ledger = LedgerRecord(id=number, incarnation=store.incarnation, created_ms=now_ms)
            opened = record.with_ledger(ledger, state_source=source)
            if await metadata.get(path, fresh=True) != found:
                # Taking over takes time. A topic that was deleted and made again meanwhile may have the same version.
                continue
            try:
                stored = await metadata.put(path, opened.encode(), if_version=found.version)
            except VersionConflict:
                # Another broker changed the record since we read it: read it again, ask or fence again.
                continue
            forget_unlisted(record, opened, store)
            # Ledgers of owners before the last one, too: this store may never have heard of them.
            store.know(opened.live(path, namespace))
            return TopicLog(path, namespace, store, metadata, opened, stored.version, state)

    def start(self, owner: TopicLogOwner) -> None:
        """Opens the ledger for writing; its first record is the owner's state."""
        self._owner = owner
        ledger = LedgerId(self._record.ledgers[-1].id)
        self._writer = self._store.open_ledger(ledger, self, self._namespace, self._path)
        try:
            self._writer.append_snapshot(owner.encode_state())
        except BaseException:
            # No broker will ever write to it.
            self._close_ledger()
            raise

    # -- writing

    async def is_current(self) -> bool:
        """Whether the topic's record still names our ledger last. Who writes nothing does not meet the fence."""
        return await self._stored.is_current()

    @property
    def next_entry(self) -> int:
        return self._writer.next_entry

    @property
    def appended_end(self) -> Position:
        """One past the last entry appended, confirmed or not."""
        return self._record.ledgers[-1].id, self._writer.next_entry

    def append_many(self, entries: Sequence[Buffer], messages: Sequence[int]) -> int:
        """Appends entries one after the other; the id of the first."""
        before = self._writer.next_entry
        try:
            first = self._writer.append_many(entries, messages)
        except BaseException:
            # Some of the first entries may have been appended.
            self._counts.add(messages[: self._writer.next_entry - before])
            raise
        self._counts.add(messages)
        self.appended_bytes += sum(map(len, entries))
        return first

    def append(self, entry: Buffer, messages: int) -> int:
        number = self._writer.append(entry, messages)
        self._counts.add_one(messages)
        self.appended_bytes += len(entry)
        return number

    def record(self, delta: bytes, done: Callable[[Exception | None], None] | None = None) -> None:
        if self._lost is not None:
            if done is not None:
                done(unraised(self._lost))
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
            # Callers that wait for a change of the state waited for this record alone.
            journal = self._journal
            while journal and journal[0][0] < state_end:
                _answer(journal.popleft()[1], None)
            if self._is_closed:
                self._let_go_if_told()

    def lost(self, error: LogError) -> None:
        self._lost = error
        journal, self._journal = self._journal, deque()
        for _, done in journal:
            _answer(done, unraised(error))
        owner, self._owner = self._owner, _NO_OWNER
        owner.log_lost(unraised(error))

    def snapshot(self) -> bytes:
        return self._owner.encode_state()

    def store_snapshot(self, done: Callable[[Exception | None], None]) -> None:
        """Stores the owner's state in full, for what no delta can say; `done` as for `record`."""
        if self._lost is not None:
            done(unraised(self._lost))
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

        Where that cannot be said, the records before it stand: the next broker to open the topic folds those."""
        if self._lost is not None:
            return
        try:
            self._writer.append_snapshot(self._owner.encode_state())
        except LogError:
            """The log ended meanwhile: what was stored before counts."""
        except Exception:
            log.exception("the state of %s cannot be said: what was stored before counts", self._path)
        finally:
            self._close_ledger()

    def _close_ledger(self) -> None:
        self._writer.close()
        self._is_closed = True
        self._let_go_if_told()

    def _let_go_if_told(self) -> None:
        if self._writer.has_told_all:
            self._owner = _NO_OWNER

    # -- the record

    async def change_record(self, change: Change) -> None:
        """See `StoredRecord.change`: who gives up waiting does not stop it."""
        await self._stored.change(change, self._replace_record)

    async def trim(self, upto: Position) -> None:
        """Gives up every entry below `upto`. The record says so first; only then is the disk given back."""
        upto = min(upto, self.end)
        if not self._has_stored_state or upto <= self._record.trimmed:
            return
        if self._kept.count(self._kept.first, upto) == 0:
            return
        before = self._record
        # Entries that no reader was ever to see are not missing.
        ledger, entry = self.before(upto)
        gone = max(self._record.gone, (ledger, entry + 1))
        await to_its_end(self._trim(before, upto, gone), self._stored.unfinished)

    async def _trim(self, before: TopicRecord, upto: Position, gone: Position) -> None:
        await self._stored.change_now(
            lambda record: record.without_trimmed(upto, gone=gone), self._replace_record
        )
        forget_unlisted(before, self._record, self._store)
        for kept in self._record.ledgers:
            if kept.id == upto[0]:
                self._store.trim(LedgerId(kept.id), Incarnation(kept.incarnation), upto[1])

    # -- what compaction has left

    @property
    def incarnation(self) -> Incarnation:
        return self._store.incarnation

    def compacted_writer(self, ledger: LedgerId) -> CompactedWriter:
        """Writes a ledger beside this log. Until `use_compacted` it is in no record, and a crash makes it nothing."""
        return CompactedWriter(self._store, ledger, self._namespace, self._path)

    async def use_compacted(self, compacted: CompactedLedger, named: Callable[[], None]) -> None:
        """From now on this is what compaction has left. Once that is stored, `named` leads readers there, and the
        ledger before it is given up."""
        before = self._record.compacted
        await self.change_record(lambda record: msgspec.structs.replace(record, compacted=compacted))
        self._store.know(
            one for one in self._record.live(self._path, self._namespace) if one.ledger == compacted.id
        )
        named()
        if before is not None:
            self._store.delete(LedgerId(before.id), Incarnation(before.incarnation))

    async def read_compacted(
        self, compacted: CompactedLedger, first: int, end: int, entries_max: int, bytes_max: int
    ) -> list[Entry]:
        ledger, incarnation = LedgerId(compacted.id), Incarnation(compacted.incarnation)
        return await self._store.read(ledger, incarnation, first, end, entries_max, bytes_max)

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
            self._close_ledger()
        await finish_delete(self._path, self._record, self._stored.version, self._store, self._metadata)


def _answer(done: Callable[[Exception | None], None], error: Exception | None) -> None:
    """One of many who wait: what goes wrong with its answer is no concern of the others."""
    try:
        done(error)
    except Exception:
        log.exception("telling of a stored change failed")
