"""The core of compaction against a naive model: the latest value of each key, at the id it had."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass
from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.broker.compaction.entries import last_slot
from anabranch.broker.compaction.fast_survey import FastCompactor
from anabranch.broker.compaction.survey import Compactor, InputChangedError
from anabranch.columns.compaction import UNPACKED_BYTES_MAX
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch, build_entry, build_message, open_entry, unpack
from anabranch.wire.entry import metadata_span
from anabranch.wire.frames import Buffer

SECRET = b"a secret of the test, long enough"
GARBAGE = b"\x0e\x01\0\0\0\0\0\0\0\x14" + b"\xff" * 20 + b"payload"


@dataclass(frozen=True)
class Sent:
    key: str | None
    value: bytes
    is_null: bool = False


@dataclass(frozen=True)
class SentEntry:
    """`is_batch` is false for one message on its own."""

    messages: tuple[Sent, ...]
    is_batch: bool = True
    compression: pb.CompressionType = pb.NONE

    def build(self) -> bytes:
        metadata = pb.MessageMetadata(
            producer_name="p", sequence_id=1, publish_time=1, compression=self.compression
        )
        if not self.is_batch:
            (one,) = self.messages
            if one.key is not None:
                metadata.partition_key = one.key
            if one.is_null:
                metadata.null_value = True
            return build_message(metadata, one.value)
        singles = []
        for one in self.messages:
            single = pb.SingleMessageMetadata(payload_size=0)
            if one.key is not None:
                single.partition_key = one.key
            if one.is_null:
                single.null_value = True
            singles.append((single, one.value))
        return build_batch(metadata, singles)


KEYS = st.sampled_from([None, "", "a", "b", "c", "d", "e", "schlüssel"])
MESSAGES = st.builds(
    lambda key, value, is_null: Sent(key, b"" if is_null else value, is_null),
    KEYS,
    st.sampled_from([b"", b"x", b"yy"]),
    st.booleans(),
)
COMPRESSIONS = st.sampled_from([pb.NONE, pb.ZLIB, pb.LZ4, pb.ZSTD])
ENTRIES = st.one_of(
    st.builds(
        lambda messages, kind: SentEntry(tuple(messages), True, kind),
        st.lists(MESSAGES, min_size=1, max_size=5),
        COMPRESSIONS,
    ),
    st.builds(lambda message, kind: SentEntry((message,), False, kind), MESSAGES, COMPRESSIONS),
)


def compacted(
    entries: list[Buffer], *, keys_max: int = 1000, keeps_keyless: bool = False
) -> list[Buffer | None]:
    """By both, which agree to the byte."""
    slow = Compactor(secret=SECRET, keys_max=keys_max, keeps_keyless=keeps_keyless)
    fast = FastCompactor(secret=SECRET, keeps_keyless=keeps_keyless)
    for entry in entries:
        slow.survey([entry])
    while not slow.end_pass():
        slow.survey(entries)
    fast.survey(entries)
    assert fast.end_pass()
    left = slow.compact(entries)
    half = len(entries) // 2
    assert [*fast.compact(entries[:half]), *fast.compact(entries[half:])] == left
    assert fast.removed == slow.removed
    slow.finish()
    fast.finish()
    return left


def seen(entry: Buffer | None) -> dict[int, tuple[str | None, bytes]]:
    """Key and value by place in the batch, as a client sees them."""
    if entry is None:
        return {}
    return {
        place: (one.partition_key if one.HasField("partition_key") else None, bytes(value))
        for place, (one, value) in enumerate(unpack(*open_entry(entry)))
        if not one.compacted_out
    }


def model(entries: list[SentEntry], keeps_keyless: bool) -> list[dict[int, tuple[str | None, bytes]]]:
    latest: dict[str, tuple[int, int]] = {}
    for n, entry in enumerate(entries):
        for place, one in enumerate(entry.messages):
            if one.key is None:
                continue
            if one.value:
                latest[one.key] = (n, place)
            else:
                latest.pop(one.key, None)
    return [
        {
            place: (one.key, one.value)
            for place, one in enumerate(entry.messages)
            if (keeps_keyless if one.key is None else latest.get(one.key) == (n, place))
        }
        for n, entry in enumerate(entries)
    ]


@settings(max_examples=300, deadline=None)
@given(st.lists(ENTRIES, max_size=12), st.sampled_from([1, 2, 3, 1000]), st.booleans())
def test_what_is_left_is_the_latest_value_of_each_key_whatever_the_room(
    sent: list[SentEntry], keys_max: int, keeps_keyless: bool
) -> None:
    entries: list[Buffer] = [one.build() for one in sent]
    left = compacted(entries, keys_max=keys_max, keeps_keyless=keeps_keyless)
    assert [seen(entry) for entry in left] == model(sent, keeps_keyless)
    for old, new in zip(entries, left, strict=True):
        # Nothing is built again of which everything is left, and nothing is kept of which nothing is.
        assert new is None or seen(new)
        assert (new is old) == (bool(seen(old)) and seen(new) == seen(old))
        if new is not None:
            kept = max(seen(new)) if any(entry.is_batch and entry.build() == old for entry in sent) else -1
            assert last_slot(new) == kept


@settings(max_examples=100, deadline=None)
@given(st.lists(ENTRIES, max_size=8), st.lists(ENTRIES, max_size=8))
def test_compacting_what_was_compacted_and_more_is_as_compacting_all(
    early: list[SentEntry], late: list[SentEntry]
) -> None:
    old: list[Buffer] = [one.build() for one in early]
    new: list[Buffer] = [one.build() for one in late]
    first = compacted(old)
    kept = [entry for entry in first if entry is not None]
    twice = compacted([*kept, *new])
    places = [n for n, entry in enumerate(first) if entry is not None] + [
        len(old) + n for n in range(len(new))
    ]
    found = {place: seen(entry) for place, entry in zip(places, twice, strict=True) if entry is not None}
    assert found == {n: left for n, left in enumerate(model([*early, *late], False)) if left}


def test_more_keys_than_there_is_room_for_take_more_passes_and_the_same_is_left() -> None:
    sent = [SentEntry((Sent(f"k{n % 300}", b"%d" % n),), False) for n in range(1000)]
    entries: list[Buffer] = [one.build() for one in sent]
    compactor = Compactor(secret=SECRET, keys_max=50)
    while True:
        compactor.survey(entries)
        if compactor.end_pass():
            break
    assert 6 <= compactor.passes <= 20
    left = compactor.compact(entries)
    compactor.finish()
    assert [entry is not None for entry in left] == [n >= 700 for n in range(1000)]
    assert compactor.removed == 700


def test_kernels_take_more_passes_too_once_their_table_is_full() -> None:
    count = 20_000
    entries: list[Buffer] = []
    for first in range(0, 2 * count, 100):
        messages = tuple(Sent(f"k{n % count}", b"%d" % n) for n in range(first, first + 100))
        entries.append(SentEntry(messages).build())
    compactor = FastCompactor(secret=SECRET, slots_max=1 << 13)
    while True:
        for n in range(0, len(entries), 7):
            compactor.survey(entries[n : n + 7])
        if compactor.end_pass():
            break
    assert 4 <= compactor.passes <= 12
    left = compactor.compact(entries)
    compactor.finish()
    assert [entry is not None for entry in left] == [n >= 200 for n in range(400)]
    assert left[200:] == entries[200:]
    assert compactor.removed == count


def test_an_encrypted_batch_is_kept_and_an_encrypted_message_goes_by_its_key() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=2)
    metadata.encryption_keys.add(key="k", value=b"v")
    batch = build_entry(metadata, b"not to be read")
    single = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, partition_key="a")
    single.encryption_keys.add(key="k", value=b"v")
    old, new = build_entry(single, b"old, unreadable"), build_entry(single, b"new, unreadable")
    assert compacted([batch, old, new]) == [batch, None, new]


def test_a_batch_that_cannot_be_read_is_kept() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=9)
    torn = build_entry(metadata, b"\x00\x00\x00\x63nonsense")
    assert compacted([torn]) == [torn]


def test_nothing_is_left_of_an_empty_batch() -> None:
    empty, full = SentEntry(()).build(), SentEntry((Sent("a", b"x"),)).build()
    assert compacted([empty, full, empty]) == [None, full, None]


def piece(uuid: str, number: int, of: int, key: str = "a") -> bytes:
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=1,
        publish_time=1,
        partition_key=key,
        uuid=uuid,
        chunk_id=number,
        num_chunks_from_msg=of,
        total_chunk_msg_size=10,
    )
    return build_entry(metadata, b"piece")


def test_the_pieces_of_a_large_message_stand_or_fall_together() -> None:
    old = [piece("one", 0, 2), piece("one", 1, 2)]
    new = [piece("two", 0, 3), piece("two", 1, 3), piece("two", 2, 3)]
    torn = [piece("three", 0, 2)]
    assert compacted([*old, *new, *torn]) == [None, None, *new, *torn]
    # A message whose pieces are mixed with others' is whole all the same.
    mixed = [new[0], old[0], new[1], old[1], new[2]]
    assert compacted([*mixed]) == [new[0], None, new[1], None, new[2]]
    gone = SentEntry((Sent("a", b""),), False).build()
    assert compacted([*new, gone]) == [None] * 4


def test_a_large_message_does_not_fall_with_a_later_one_of_the_same_id() -> None:
    """A producer that counts from the start again uses its ids again."""
    one = [piece("p-0", 0, 2, "a"), piece("p-0", 1, 2, "a")]
    other = [piece("p-0", 0, 2, "b"), piece("p-0", 1, 2, "b")]
    newer = SentEntry((Sent("b", b"newer"),), False).build()
    assert compacted([*one, *other, newer]) == [*one, None, None, newer]
    assert compacted([*one, *other]) == [*one, *other]
    assert compacted([*other, *one, newer]) == [None, None, *one, newer]


def test_a_large_message_that_was_begun_anew_is_left_once() -> None:
    """Its producer was cut off and sent all of it again; its readers let go of what they had."""
    begun = [piece("p-0", 0, 3), piece("p-0", 1, 3)]
    whole = [*begun, piece("p-0", 2, 3)]
    assert compacted([*begun, *whole]) == [None, None, *whole]
    assert compacted([*whole, *whole]) == [None, None, None, *whole]
    # With other room, so that there are several passes.
    keys = [SentEntry((Sent(str(n), b"x"),), False).build() for n in range(20)]
    assert compacted([*begun, *keys, *whole], keys_max=3) == [None, None, *keys, *whole]


# A pair of properties of which one is not UTF-8, and a compression that nobody knows.
ODD_FIELDS = [b"\x22\x06\x0a\x01k\x12\x01\xff", b"\x40\x11"]


@pytest.mark.parametrize("odd", ODD_FIELDS)
@pytest.mark.parametrize("keeps_keyless", [False, True])
def test_what_only_python_can_read_is_compacted_message_by_message(odd: bytes, keeps_keyless: bool) -> None:
    def batch(*messages: Sent) -> bytes:
        plain = SentEntry(messages).build()
        start, end = metadata_span(plain)
        return entry_of(plain[start:end] + odd, plain[end:])

    old, new = batch(Sent("a", b"1"), Sent(None, b"2"), Sent("b", b"3")), batch(Sent("a", b"4"))
    plain = SentEntry((Sent("a", b"0"), Sent("c", b"5"))).build()
    left = compacted([plain, old, new], keeps_keyless=keeps_keyless)
    assert [seen(entry) for entry in left] == [
        {1: ("c", b"5")},
        {1: (None, b"2"), 2: ("b", b"3")} if keeps_keyless else {2: ("b", b"3")},
        {0: ("a", b"4")},
    ]


def entry_of(metadata: bytes, payload: bytes) -> bytes:
    body = len(metadata).to_bytes(4, "big") + metadata
    return b"\x0e\x01" + crc32c(payload, crc32c(body)).to_bytes(4, "big") + body + payload


@pytest.mark.parametrize("kind", [Compactor, FastCompactor])
def test_passes_that_see_other_messages_are_noticed(kind: type[Compactor] | type[FastCompactor]) -> None:
    entry = SentEntry((Sent("a", b"x"),), False).build()
    compactor = kind(secret=SECRET)
    compactor.survey([entry, entry])
    assert compactor.end_pass()
    compactor.compact([entry])
    with pytest.raises(InputChangedError, match="changed meanwhile"):
        compactor.finish()


@pytest.mark.parametrize(
    ("left", "last"), [([], 2), ([0, 1], 1), ([-1], -1), ([2**31 - 1], 2), ([-(2**31)], -1), ([0, 2], 2)]
)
def test_the_last_message_of_a_batch_is_one_of_its_own_whatever_its_producer_says(
    left: list[int], last: int
) -> None:
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, compacted_batch_indexes=left
    )
    batch = build_batch(metadata, [(pb.SingleMessageMetadata(payload_size=0), b"x")] * 3)
    assert last_slot(batch) == last
    alone = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, compacted_batch_indexes=left)
    assert last_slot(build_message(alone, b"x")) == -1
    assert last_slot(GARBAGE) == -1


@pytest.mark.parametrize("compactor", [Compactor, FastCompactor])
@pytest.mark.parametrize("count", [2, 2**31 - 1])
def test_what_nobody_can_read_is_kept_as_it_is(
    compactor: type[Compactor] | type[FastCompactor], count: int
) -> None:
    odd = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=count)
    entries = [GARBAGE, build_message(odd, b"payload"), SentEntry((Sent("a", b"1"),)).build()]
    made = compactor(secret=SECRET, keeps_keyless=False)
    while True:
        made.survey(entries)
        if made.end_pass():
            break
    assert made.compact(entries) == entries
    made.finish()


def noise(size: int) -> bytes:
    """Bytes that pack to about a third: what compresses like logs do, and not like a bomb."""
    return Random(7).randbytes(size // 3) * 3


@pytest.mark.parametrize("kind", [Compactor, FastCompactor])
def test_a_batch_that_unpacks_to_more_than_brokers_store_is_compacted_as_others_are(
    kind: type[Compactor] | type[FastCompactor],
) -> None:
    """A key of it that was deleted later would come back otherwise."""
    large = SentEntry((Sent("a", noise(6 << 20)), Sent("b", b"1")), compression=pb.ZSTD).build()
    entries: list[Buffer] = [large, SentEntry((Sent("a", b"", is_null=True),)).build()]
    made = kind(secret=SECRET)
    made.survey(entries)
    assert made.end_pass()
    first, second = made.compact(entries)
    made.finish()
    assert second is None
    assert first is not None
    assert [one.partition_key for one, _ in unpack(*open_entry(first)) if not one.compacted_out] == ["b"]


@pytest.mark.parametrize("kind", [Compactor, FastCompactor])
@pytest.mark.parametrize(("size", "count"), [(400 << 20, 2), (6 << 20, 2), (40 << 20, 10_000_000)])
def test_a_bomb_is_kept_and_takes_no_memory(
    kind: type[Compactor] | type[FastCompactor], size: int, count: int
) -> None:
    head = pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, compression=pb.ZSTD, num_messages_in_batch=count
    )
    packed = build_message(head, bytes(size)) if count == 2 else build_message(head, noise(size))
    made = kind(secret=SECRET)
    tracemalloc.start()
    try:
        made.survey([packed])
        assert made.end_pass()
        assert made.compact([packed]) == [packed]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    made.finish()


def test_batches_that_unpack_to_much_are_not_in_memory_at_once() -> None:
    """A thousand of them come in a megabyte: each is allowed, and all of them would be 5 GB."""
    size = 4 << 20
    entries = [SentEntry((Sent(f"{n % 3}", bytes(size)),), compression=pb.ZSTD).build() for n in range(60)]
    compactor = FastCompactor(secret=SECRET)
    tracemalloc.start()
    try:
        compactor.survey(entries)
        assert compactor.end_pass()
        left = compactor.compact(entries)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    compactor.finish()
    assert [n for n, entry in enumerate(left) if entry is not None] == [57, 58, 59]
    assert peak < 2 * UNPACKED_BYTES_MAX < 60 * size
