"""A topic's record, however many ledgers it has."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from anabranch.metadata.port import VALUE_BYTES_MAX
from anabranch.storage.core.packed_ledgers import LedgerRow, pack, unpack
from anabranch.storage.core.topic_record import LedgerRecord, TopicRecord

ROWS = st.builds(
    LedgerRow,
    st.integers(0, 1 << 60),
    st.sampled_from(("a", "ü", "0001763443200000-abcdef123456")),
    st.none() | st.integers(0, 1 << 50),
    st.integers(0, 1 << 60),
    st.integers(0, 1 << 50),
    st.integers(-1, 1 << 60),
)


@given(st.lists(ROWS, max_size=20))
def test_packed_ledgers_come_back(rows: list[LedgerRow]) -> None:
    assert unpack(pack(rows)) == rows


def test_a_record_of_few_ledgers_is_stored_as_ever() -> None:
    record = TopicRecord(ledgers=(LedgerRecord(1, "a", 5, 10, 7), LedgerRecord(2, "b")), topic_id="t")
    assert record.encode() == (
        b'{"ledgers":[{"id":1,"incarnation":"a","end":5,"bytes":10,"created_ms":7},{"id":2,"incarnation":"b"}],'
        b'"topic_id":"t"}'
    )


def test_a_record_of_twenty_thousand_moves_can_be_stored() -> None:
    """Each time to another broker, of which each had started again meanwhile, with everything kept."""
    chance = random.Random(1)
    ledgers, now_ms = [], 1_763_443_200_000
    for move in range(20_000):
        now_ms += chance.randint(1_000, 600_000)
        incarnation = f"{now_ms:013d}-{chance.getrandbits(48):012x}"
        size = chance.randint(1, 10**9)
        ledgers.append(LedgerRecord(move * 7, incarnation, chance.randint(1, 10**6), size, now_ms))
    last = LedgerRecord(140_000, "last", created_ms=now_ms)
    record = TopicRecord(ledgers=tuple(ledgers)).with_ledger(last, state_source=None)
    stored = record.encode()
    assert len(stored) < VALUE_BYTES_MAX * 3 / 4
    assert TopicRecord.decode(stored) == record
