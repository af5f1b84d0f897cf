"""Arithmetic over a topic's ledgers, against a plain list of positions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.storage.core.spans import Spans
from anabranch.storage.core.topic_record import LedgerRecord, Skip, TopicRecord


@st.composite
def records(draw: st.DrawFn) -> TopicRecord:
    ids = sorted(draw(st.sets(st.integers(0, 20), min_size=1, max_size=5)))
    ends = [draw(st.integers(0, 6)) for _ in ids]
    ledgers = tuple(LedgerRecord(i, "a", e) for i, e in zip(ids[:-1], ends[:-1], strict=True))
    skips = tuple(
        Skip(draw(st.sampled_from(ids)), first, first + draw(st.integers(1, 3)))
        for first in draw(st.lists(st.integers(0, 6), max_size=2))
    )
    trimmed = draw(
        st.sampled_from([(-1, -1), *[(i, e) for i, e in zip(ids, ends, strict=True)], (ids[0], 2)])
    )
    return TopicRecord(ledgers=(*ledgers, LedgerRecord(ids[-1], "b")), trimmed=trimmed, skips=skips)


def positions(record: TopicRecord, end: int) -> list[tuple[int, int]]:
    kept = []
    for ledger in record.ledgers:
        last = ledger.end if ledger.end is not None else end
        for entry in range(last):
            is_skipped = any(s.ledger == ledger.id and s.first <= entry < s.next for s in record.skips)
            if (ledger.id, entry) >= record.trimmed and not is_skipped:
                kept.append((ledger.id, entry))
    return kept


@given(records(), st.integers(0, 5))
def test_spans_hold_exactly_the_kept_entries(record: TopicRecord, grown: int) -> None:
    last = record.ledgers[-1].id
    # Skips lie below what is confirmed now, and trimming never passes the end.
    floor = max([0, *(s.next for s in record.skips if s.ledger == last)])
    if record.trimmed[0] == last:
        floor = max(floor, record.trimmed[1])
    end = floor + grown
    spans = Spans(record, end - grown)
    spans.extend(end)
    kept = positions(record, end)
    walked, at = [], spans.first
    while at < spans.end:
        walked.append(at)
        at = spans.after(at)
    assert walked == kept
    assert spans.last == (kept[-1] if kept else (-1, -1))
    assert spans.count(spans.first, spans.end) == len(kept)
    for index, position in enumerate(kept):
        assert spans.at_index(index) == position
        assert spans.normalise(position) == position
        assert spans.before(position) == (kept[index - 1] if index else (-1, -1))
        assert spans.count(position, spans.end) == len(kept) - index
        assert spans.count(spans.first, position) == index
        span = spans.span_at(position)
        assert span.ledger == position[0]
        assert span.first <= position[1] < span.end


@given(records(), st.tuples(st.integers(-1, 21), st.integers(-1, 8)))
def test_normalise_finds_the_first_kept_entry_at_or_after(record: TopicRecord, at: tuple[int, int]) -> None:
    spans = Spans(record, 10)
    kept = [p for p in positions(record, 10) if p >= at]
    assert spans.normalise(at) == (kept[0] if kept else spans.end)
