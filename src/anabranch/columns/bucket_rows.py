"""Data plane. Which entries, and which rows of them, belong to some entry buckets: for many at once.

The rules are those of `anabranch.model.wanted`. A row's hash is the low half of its key's, and without a key that of
its producer's name, as our producers choose buckets: a producer's rows without a key stay in order. Ordering keys are
not among the columns: entries with those are stamped by our producers, and lie in one bucket each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anabranch.columns.hashing import hash_keys, murmur3
from anabranch.columns.jit import kernel
from anabranch.columns.positions import Flags, Longs, RowPlaces, only
from anabranch.columns.scan import HASH_MAX, HASH_MIN, META_END, PRODUCER, PRODUCER_SIZE, Facts
from anabranch.model.cut import BEGINNING, MessagePosition
from anabranch.model.segments import WHOLE
from anabranch.model.wanted import Wanted


def entries_met(facts: Facts, wanted: Wanted) -> Flags:
    """Which entries may have wanted rows."""
    low, high = _stamps(facts)
    met: Flags = np.zeros(len(facts), np.bool_)
    for part in wanted.parts:
        met |= (low <= part.range.end) & (high >= part.range.start)
    return met


def rows_wanted(batch: Any, counts: Longs, facts: Facts, ids: Longs, wanted: Wanted) -> tuple[Any, Longs]:
    """The wanted rows of decoded entries, and how many each entry has of them. `ids` are the entries' positions."""
    low, high = _stamps(facts)
    whole = np.zeros(len(facts), np.bool_)
    for part in wanted.parts:
        is_within = (low >= part.range.start) & (high <= part.range.end)
        whole |= is_within & ~_begins_before(ids, part.start)
    if whole[counts > 0].all():
        return batch, counts
    names: Longs = np.empty(len(facts), np.int64)
    _hash_names(facts, names)
    own = (hash_keys(batch.column("key")) & WHOLE.end).astype(np.int64)
    missing = _null_rows(batch.column("key"))
    if missing is not None:
        own = np.where(missing, np.repeat(names, counts), own)
    hashes = np.clip(own, np.repeat(low, counts), np.repeat(high, counts))
    keep = np.zeros(batch.num_rows, np.bool_)
    for part in wanted.parts:
        found = (hashes >= part.range.start) & (hashes <= part.range.end)
        if part.start > BEGINNING:
            found &= ~RowPlaces.of(batch).are_before(part.start)
        keep |= found
    entry = np.repeat(np.arange(len(facts)), counts)
    return only(batch, keep), np.bincount(entry[keep], minlength=len(facts)).astype(np.int64)


def _stamps(facts: Facts) -> tuple[Longs, Longs]:
    """The least and the greatest hash of each entry; those of the whole ring without a sound stamp."""
    low, high = facts[:, HASH_MIN], facts[:, HASH_MAX]
    is_sound = (low >= 0) & (low <= high) & (high <= WHOLE.end)
    return np.where(is_sound, low, WHOLE.start), np.where(is_sound, high, WHOLE.end)


def _begins_before(ids: Longs, at: MessagePosition) -> Flags:
    """Which entries have a first message before the position."""
    ledger, entry = ids[:, 0], ids[:, 1]
    is_before: Flags = (ledger < at[0]) | (
        (ledger == at[0]) & ((entry < at[1]) | ((entry == at[1]) & (at[2] > 0)))
    )
    return is_before


def _null_rows(column: Any) -> Flags | None:
    """Which rows have no value; None if all have one."""
    if not column.null_count:
        return None
    bits = np.frombuffer(column.buffers()[0], np.uint8)
    valid = np.unpackbits(bits, bitorder="little")[column.offset : column.offset + len(column)]
    missing: Flags = valid == 0
    return missing


@kernel
def _hash_names(facts: Facts, hashes: Longs) -> None:
    """The bucket hash of each entry's producer."""
    for entry in range(len(facts)):
        row = facts[entry]
        hashes[entry] = 0
        if row[PRODUCER] != 0:
            hashes[entry] = murmur3(row[PRODUCER], row[PRODUCER_SIZE], row[META_END]) & 0xFFFF
