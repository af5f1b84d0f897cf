"""Which publishes count as seen before."""

from __future__ import annotations

import pytest

from anabranch.broker.state import dedup
from anabranch.broker.state.dedup import Deduplication
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch, build_entry

Stored = tuple[pb.MessageMetadata, bytes]


def metadata(sequence_id: int, *, highest: int = 0, chunk: int = 0, chunks: int = 0) -> pb.MessageMetadata:
    made = pb.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1)
    if highest:
        made.highest_sequence_id = highest
    if chunks:
        made.chunk_id, made.num_chunks_from_msg = chunk, chunks
    return made


def test_an_id_at_or_below_the_highest_appended_is_a_duplicate() -> None:
    table = Deduplication()
    assert not table.is_duplicate("p", 0)
    table.push("p", 7)
    assert table.is_duplicate("p", 7)
    assert table.is_duplicate("p", 3)
    assert not table.is_duplicate("p", 8)
    assert not table.is_duplicate("q", 7)


def test_a_producer_is_told_what_is_confirmed_not_what_is_appended() -> None:
    table = Deduplication()
    table.push("p", 7)
    assert table.last_confirmed("p") == -1
    table.confirm("p", 7)
    assert table.last_confirmed("p") == 7


def test_a_confirmation_never_takes_an_id_back() -> None:
    table = Deduplication({"p": 9})
    table.confirm("p", 4)
    assert table.last_confirmed("p") == 9


def batch(first: int, ids: list[int], *, highest: int = 0, encrypted: bool = False) -> Stored:
    """A batch that names `first`, its messages with those ids."""
    head = metadata(first, highest=highest)
    if encrypted:
        head.encryption_keys.add(key="k", value=b"v")
    messages = [(pb.SingleMessageMetadata(payload_size=0, sequence_id=id), b"x") for id in ids]
    entry = build_batch(head, messages)
    return head, entry


def single(sequence_id: int, **more: int) -> Stored:
    head = metadata(sequence_id, **more)
    return head, build_entry(head, b"x")


def store(table: Deduplication, stored: Stored) -> bool:
    """As publishing does; returns whether it was new."""
    head, entry = stored
    named = max(head.sequence_id, head.highest_sequence_id)
    if table.is_duplicate("p", named):
        return False
    table.push("p", named, table.covered_by("p", head, entry))
    table.confirm("p", named)
    return True


def test_a_chunked_message_counts_at_its_last_chunk() -> None:
    table = Deduplication()
    for chunk in range(2):
        table.replay(*single(5, chunk=chunk, chunks=3))
    assert not table.is_duplicate("p", 5)
    table.replay(*single(5, chunk=2, chunks=3))
    assert table.is_duplicate("p", 5)


def test_a_batch_counts_up_to_its_highest_id() -> None:
    table = Deduplication()
    table.replay(*single(5, highest=9))
    assert table.is_duplicate("p", 9)
    assert table.last_confirmed("p") == 9


@pytest.mark.parametrize("is_live", [True, False])
def test_a_producer_that_names_the_first_id_of_a_batch_is_told_the_last_one_it_has_stored(
    is_live: bool,
) -> None:
    # Else its next life would send the rest of the batch again.
    table = Deduplication()
    for stored in (batch(5, [5, 6, 7, 8]), batch(9, [9, 10, 11])):
        if is_live:
            assert store(table, stored)
        else:
            table.replay(*stored)
    assert table.last_confirmed("p") == 11
    assert table.is_duplicate("p", 9)
    table = Deduplication(table.pushed, table.covered_image())
    assert table.last_confirmed("p") == 11


@pytest.mark.parametrize("is_live", [True, False])
@pytest.mark.parametrize(
    ("stored", "last"),
    [
        # The last one, as clients by the C++ library named it until 4.1.
        (batch(8, [5, 6, 7, 8]), 8),
        # One id for the whole batch, and messages without any.
        (batch(5, [0, 0, 0, 0]), 5),
        # The first one of a key's.
        (batch(5, [5, 8, 9]), 5),
        # Exactly what it says, however many messages there are.
        (batch(9, [5, 7, 9], highest=9), 9),
        (batch(5, [5, 6, 9], highest=9), 9),
        # Nobody can look.
        (batch(5, [5, 6, 7], encrypted=True), 5),
    ],
)
def test_a_producer_is_told_no_more_than_a_batch_is_known_to_hold(
    stored: Stored, last: int, is_live: bool
) -> None:
    table = Deduplication()
    if is_live:
        assert store(table, stored)
    else:
        table.replay(*stored)
    assert table.last_confirmed("p") == last


@pytest.mark.parametrize(
    "sent",
    [
        # Two keys in turn, by clients that name the first id, the last, or the last twice.
        [batch(0, [0, 2]), batch(1, [1, 3]), batch(4, [4, 6, 8]), batch(5, [5, 7])],
        [batch(2, [0, 2]), batch(3, [1, 3]), batch(7, [5, 7]), batch(8, [4, 6, 8])],
        [batch(2, [0, 2], highest=2), batch(3, [1, 3], highest=3), single(4), batch(8, [5, 8], highest=8)],
        # The first batch has one key only and looks like a row.
        [batch(0, [0, 1, 2]), batch(3, [3, 4, 6]), batch(5, [5, 7]), batch(8, [8, 9])],
        # One id for each batch.
        [batch(0, [0] * 9), batch(1, [0] * 7), single(2), batch(3, [0] * 5)],
        [batch(0, [0, 1, 2], highest=2), batch(3, [3, 4], highest=4), single(5), batch(6, [6, 7], highest=7)],
    ],
)
@pytest.mark.parametrize("crashes_after", range(5))
def test_every_batch_is_stored_once_however_its_client_cuts_them(
    sent: list[Stored], crashes_after: int
) -> None:
    table = Deduplication()
    for n, stored in enumerate(sent):
        if n == crashes_after:
            # Nothing but the log is left of it, and the client sends again what it has no receipt of.
            table = Deduplication()
            for before in sent[:n]:
                table.replay(*before)
            assert not any(store(table, again) for again in sent[max(0, n - 2) : n])
        assert store(table, stored)
    assert not any(store(table, again) for again in sent)


def test_a_batch_that_is_old_in_part_is_stored() -> None:
    table = Deduplication()
    assert store(table, batch(0, [0, 1, 2], highest=2))
    assert store(table, batch(2, [2, 3], highest=3))
    assert table.last_confirmed("p") == 3
    assert not store(table, batch(1, [1, 2, 3], highest=3))


def test_what_no_answer_could_name_is_not_learned_from_a_log_of_old() -> None:
    table = Deduplication({"q": 2**64 - 1})
    assert table.last_confirmed("q") == 2**63 - 1
    table.replay(*single(7))
    table.replay(*single(2**64 - 1))
    table.replay(*batch(2**64 - 1, [1, 2]))
    assert table.last_confirmed("p") == 7
    table.replay(*batch(2**63 - 2, [2**63 - 2, 2**63 - 1, 2**63]))
    assert table.last_confirmed("p") == 2**63 - 1


def test_a_producer_is_behind_while_something_it_appended_is_unconfirmed() -> None:
    table = Deduplication()
    assert not table.is_behind("p")
    table.push("p", 7)
    assert table.is_behind("p")
    table.confirm("p", 7)
    assert not table.is_behind("p")


def test_the_producer_silent_longest_is_forgotten_first() -> None:
    table = Deduplication()
    for n in range(dedup.PRODUCERS_MAX):
        table.push(f"p{n}", 1)
    table.push("p0", 2)
    table.push("one more", 1)
    assert table.is_duplicate("p0", 2)
    assert not table.is_duplicate("p1", 1)


def test_what_is_read_back_counts_by_the_last_id_and_not_by_the_highest() -> None:
    # Entries that were stored while nobody deduplicated may be of a producer that began again.
    table = Deduplication({"p": 90})
    for sequence_id in (91, 0, 1):
        table.replay(*single(sequence_id))
    assert table.last_confirmed("p") == 1
    assert not table.is_duplicate("p", 2)


def test_what_a_hidden_producer_wrote_does_not_count_against_anybody() -> None:
    # Its attempt may be decided, and forgotten, by the time that the log is read back.
    table = Deduplication({"p": 3})
    made, entry = single(1_000)
    made.txnid_most_bits = made.txnid_least_bits = 7
    table.replay(made, entry)
    assert table.last_confirmed("p") == 3
    assert not table.is_duplicate("p", 4)
