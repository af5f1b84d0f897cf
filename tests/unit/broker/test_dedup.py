"""Which publishes count as seen before."""

from __future__ import annotations

from anabranch.broker import dedup
from anabranch.broker.dedup import Deduplication
from anabranch.wire import pulsar_pb2 as pb


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


def test_a_chunked_message_counts_at_its_last_chunk() -> None:
    table = Deduplication()
    for chunk in range(2):
        table.replay(metadata(5, chunk=chunk, chunks=3))
    assert not table.is_duplicate("p", 5)
    table.replay(metadata(5, chunk=2, chunks=3))
    assert table.is_duplicate("p", 5)


def test_a_batch_counts_up_to_its_highest_id() -> None:
    table = Deduplication()
    table.replay(metadata(5, highest=9))
    assert table.is_duplicate("p", 9)
    assert table.last_confirmed("p") == 9


def test_a_batch_that_names_only_its_first_id_counts_one_id_for_each_message() -> None:
    table = Deduplication()
    batch = metadata(5)
    batch.num_messages_in_batch = 4
    table.replay(batch)
    assert table.last_confirmed("p") == 8


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
        table.replay(metadata(sequence_id))
    assert table.last_confirmed("p") == 1
    assert not table.is_duplicate("p", 2)
