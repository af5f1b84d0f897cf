"""What readers see of a topic's log: its entries in order, less those that are hidden from them.

Data plane. `LogView` reads; `TopicLog` is a view that can be appended to, so that neither asks the other.
"""

from __future__ import annotations

from typing import Final

from anabranch.model.entry_runs import EntryRuns
from anabranch.model.position import Incarnation, LedgerId, Position
from anabranch.storage.core.message_counts import MessageCounts, below_in
from anabranch.storage.core.spans import NOTHING_DROPPED, Span, Spans
from anabranch.storage.core.topic_record import LedgerRecord, TopicRecord
from anabranch.storage.port import Entry, LogStore
from anabranch.storage.topic.publish_times import first_published_at, published_at

# Counts of messages look at so many stretches of a log one by one.
PIECES_MAX: Final = 256


class LogView:
    """Implements `LogReader` of the broker's ports."""

    def __init__(self, store: LogStore, record: TopicRecord) -> None:
        self._store = store
        self._record = record
        # What is kept, and what of it readers see. The same unless something is hidden.
        self._kept = self._spans = Spans(record)
        self._dropped = NOTHING_DROPPED
        self._stop: Position | None = None
        self._confirmed_entries = 0
        self._by_id: tuple[TopicRecord, dict[int, LedgerRecord]] | None = None
        self.appended_bytes = 0  # To the ledger that is being written.
        self._counts = MessageCounts()  # Of the ledger that is being written.

    @property
    def topic_record(self) -> TopicRecord:
        return self._record

    @property
    def ledger(self) -> int:
        """The one that is being written."""
        return self._record.ledgers[-1].id

    @property
    def confirmed_end(self) -> int:
        """One past the last confirmed entry of the ledger being written."""
        return self._confirmed_entries

    def _replace_record(self, record: TopicRecord) -> None:
        self._record = record
        self._kept = Spans(record, self._confirmed_entries)
        self._show()

    # -- hiding

    def hide(self, dropped: EntryRuns, stop: Position | None) -> None:
        """From now on readers step over what is dropped, which is confirmed, and end before `stop`.

        The same object for `dropped` means that it has not changed, which saves making the spans again."""
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

    def messages(self, start: Position, stop: Position) -> int:
        """How many messages the kept entries in [start, stop) hold, as exactly as `message_counts` says."""
        entries = self._spans.count(start, stop)
        if not entries:
            return 0
        pieces = self._spans.pieces(start, stop, PIECES_MAX)
        if pieces is not None:
            return sum(self._messages_in(ledger, first, end) for ledger, first, end in pieces)
        # Very many entries are stepped over between the others: by the mean of all.
        whole = self._kept.pieces(start, stop, PIECES_MAX) or [
            (ledger.id, 0, self._confirmed_entries if ledger.end is None else ledger.end)
            for ledger in self._record.ledgers
        ]
        among = sum(end - first for _, first, end in whole)
        held = sum(self._messages_in(ledger, first, end) for ledger, first, end in whole)
        return held * entries // among if among else entries

    def _messages_in(self, ledger: int, first: int, end: int) -> int:
        if ledger == self.ledger:
            return self._counts.below(end) - self._counts.below(first)
        record = self._totals.get(ledger)
        if record is None or record.end is None:
            return end - first
        messages, entries = record.messages, record.end
        return below_in(messages, entries, end) - below_in(messages, entries, first)

    @property
    def _totals(self) -> dict[int, LedgerRecord]:
        """The ledgers of the record by their ids."""
        if self._by_id is None or self._by_id[0] is not self._record:
            self._by_id = self._record, {ledger.id: ledger for ledger in self._record.ledgers}
        return self._by_id[1]

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

    def span_of(self, at: Position) -> Span:
        """The stretch of files that holds the entry at that place: also what readers step over in it."""
        return self._kept.span_at(self._kept.normalise(at))

    def dropped_in(self, ledger: int) -> list[tuple[int, int]]:
        """What readers step over there, in order: [first, end) of each run."""
        return list(zip(*self._dropped.of_ledger(ledger), strict=True))
