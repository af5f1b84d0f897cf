"""Large messages put together from chunks: any order, repeats, other tries, bounds, and chunks that nobody needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.consuming.chunk_reader import SILENT_S, ChunkReader
from anabranch.client.consuming.core.chunks import Chunks
from anabranch.client.errors import CryptoFailed, MessageIncomplete
from anabranch.client.message import EntryOrigin, ReceivedEntry
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import compress


def chunk(index: int, count: int = 3, uuid: str = "a", sequence: int = 0) -> pb.MessageMetadata:
    return pb.MessageMetadata(
        producer_name="p",
        sequence_id=sequence,
        publish_time=1,
        uuid=uuid,
        chunk_id=index,
        num_chunks_from_msg=count,
    )


@given(st.lists(st.integers(0, 3), max_size=12))
def test_chunks_in_any_order_and_more_than_once_make_the_message(order: list[int]) -> None:
    chunks = Chunks()
    wanted = {0, 1, 2, 3}
    for place, index in enumerate([*order, *range(4)]):
        whole = chunks.add(chunk(index, count=4), (1, place), b"%d" % index, 0.0)
        wanted.discard(index)
        assert (whole is None) == bool(wanted)
        if whole is not None:
            assert whole.data == b"0123"
            assert place in {entry for _, entry in whole.places}
            # Each of them is either acknowledged with the message, or was replaced by a later one.
            assert sorted([*whole.places, *chunks.outdated]) == [(1, n) for n in range(place + 1)]
            break
    assert (len(chunks), chunks.bytes, chunks.first) == (0, 0, None)


def test_messages_may_be_mixed_and_the_first_open_chunk_is_known() -> None:
    chunks = Chunks()
    chunks.add(chunk(0, uuid="a", sequence=1), (1, 5), b"a", 0.0)
    chunks.add(chunk(0, count=2, uuid="b", sequence=2), (1, 6), b"b", 0.0)
    assert chunks.first == (1, 5)
    chunks.add(chunk(1, uuid="a", sequence=1), (1, 7), b"a", 0.0)
    whole = chunks.add(chunk(2, uuid="a", sequence=1), (1, 8), b"a", 0.0)
    assert whole is not None
    assert whole.places == ((1, 5), (1, 7), (1, 8))
    assert chunks.first == (1, 6)


def test_another_try_of_the_same_message_replaces_the_first() -> None:
    chunks = Chunks()
    chunks.add(chunk(0, uuid="first"), (1, 0), b"x", 0.0)
    chunks.add(chunk(0, uuid="second"), (1, 1), b"x", 0.0)
    assert [partial.uuid for partial in chunks.replaced] == ["first"]
    assert chunks.first == (1, 1)


def test_the_oldest_is_dropped_when_there_are_too_many_or_too_large_ones() -> None:
    chunks = Chunks(incomplete_max=2, bytes_max=100)
    for number in range(3):
        chunks.add(chunk(0, uuid=str(number), sequence=number), (1, number), b"x", 0.0)
    assert [partial.uuid for partial in chunks.dropped] == ["0"]
    chunks.add(chunk(1, uuid="2", sequence=2), (1, 9), b"x" * 100, 0.0)
    assert [partial.uuid for partial in chunks.dropped] == ["0", "1", "2"]
    assert chunks.bytes == 0


def test_chunks_of_no_bytes_are_bounded_too() -> None:
    chunks = Chunks(chunks_max=10)
    for index in range(11):
        chunks.add(chunk(index, count=1 << 30), (1, index), b"", 0.0)
    assert [len(partial.chunks) for partial in chunks.dropped] == [11]
    chunks.add(chunk(0, count=2, uuid="b"), (1, 11), b"x", 0.0)
    assert chunks.add(chunk(1, count=2, uuid="b"), (1, 12), b"x", 0.0) is not None


def test_what_nothing_is_heard_of_is_taken_out() -> None:
    chunks = Chunks()
    chunks.add(chunk(0, uuid="a", sequence=1), (1, 0), b"x", 10.0)
    chunks.add(chunk(0, uuid="b", sequence=2), (1, 1), b"x", 20.0)
    assert [partial.uuid for partial in chunks.silent_since(15.0)] == ["a"]
    chunks.touch(30.0)
    assert chunks.silent_since(25.0) == []


class Segment:
    """What surrounds a reader of chunks."""

    def __init__(self, *, silent_s: float = 0.0, pressed_s: float = 60.0) -> None:
        self.acked: list[tuple[int, int]] = []
        self.put: list[ReceivedEntry] = []
        self.is_idle = True
        self.looks = 0
        self.changed = asyncio.Event()
        self.reader = ChunkReader(
            self.put.append,
            self.ack,
            self.look,
            silent_s=silent_s,
            pressed_s=pressed_s,
            look_s=0.001,
        )

    def look(self) -> bool:
        self.looks += 1
        self.changed.set()
        return self.is_idle

    def ack(self, place: tuple[int, int]) -> None:
        self.acked.append(place)

    async def until(self, met: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not met():
                self.changed.clear()
                await self.changed.wait()

    def add(
        self, metadata: pb.MessageMetadata, number: int, data: bytes, origin: EntryOrigin | None = None
    ) -> ReceivedEntry | None:
        return self.reader.add(ReceivedEntry(origin or EntryOrigin("t"), 1, number, metadata, data))


async def test_a_chunk_that_completes_a_message_becomes_its_entry() -> None:
    segment = Segment()
    packed = compress(pb.ZLIB, b"hello" * 1000)
    middle = len(packed) // 2
    for index, part in enumerate((packed[:middle], packed[middle:])):
        metadata = chunk(index, count=2)
        metadata.compression = pb.ZLIB
        metadata.uncompressed_size = 5000
        entry = segment.add(metadata, index, part)
    assert entry is not None
    (message,) = entry.messages()
    assert message.payload == b"hello" * 1000
    assert entry.chunks == ((1, 0), (1, 1))
    segment.reader.close()


async def test_chunks_whose_others_never_came_are_acknowledged_in_the_end() -> None:
    segment = Segment()
    segment.is_idle = False
    segment.add(chunk(0), 7, b"x")
    await segment.until(lambda: segment.looks >= 3)
    # While the application has something to do, more may be waiting.
    assert segment.acked == []
    segment.is_idle = True
    await segment.until(lambda: segment.acked)
    assert segment.acked == [(1, 7)]
    assert segment.reader.first is None


async def test_chunks_are_waited_for_however_slow_the_broker_is() -> None:
    segment = Segment(silent_s=SILENT_S)
    segment.add(chunk(0, count=2), 7, b"x")
    await segment.until(lambda: segment.looks >= 3)
    assert segment.acked == []
    assert segment.add(chunk(1, count=2), 8, b"y") is not None
    segment.reader.close()


async def test_where_there_are_too_many_those_that_were_silent_for_long_are_let_go() -> None:
    segment = Segment(silent_s=SILENT_S, pressed_s=0.0)
    for number in range(101):
        segment.add(chunk(0, uuid=str(number), sequence=number), number, b"x")
    assert (segment.put, segment.acked) == ([], [(1, 0)])
    segment.reader.close()


async def test_a_message_dropped_for_want_of_room_is_told() -> None:
    segment = Segment()
    for number in range(101):
        segment.add(chunk(0, uuid=str(number), sequence=number), number, b"x")
    (lost,) = segment.put
    with pytest.raises(MessageIncomplete, match="3 chunks from 'p', of which 1 came"):
        lost.messages()
    assert segment.acked == []
    segment.reader.close()


async def test_the_first_try_of_a_message_that_comes_after_another_leaves_it_alone() -> None:
    segment = Segment()
    segment.add(chunk(0, count=2, uuid="second"), 2, b"x")
    assert segment.add(chunk(0, count=2, uuid="first"), 1, b"?") is None
    assert segment.acked == [(1, 1)]
    whole = segment.add(chunk(1, count=2, uuid="second"), 3, b"y")
    assert whole is not None
    assert whole.data == b"xy"
    segment.reader.close()


async def test_the_first_try_of_a_message_is_acknowledged_once_another_comes() -> None:
    segment = Segment()
    segment.add(chunk(0, uuid="first"), 1, b"x")
    segment.add(chunk(0, uuid="second"), 2, b"x")
    assert segment.acked == [(1, 1)]
    segment.reader.close()


@pytest.mark.parametrize("index", [-1, 3, 7, (1 << 31) - 1])
async def test_a_chunk_with_a_number_that_its_message_has_not_is_acknowledged_and_stops_nobody(
    index: int,
) -> None:
    segment = Segment()
    assert segment.add(chunk(index), 1, b"x") is None
    assert segment.acked == [(1, 1)]
    assert segment.reader.first is None
    segment.add(chunk(0, uuid="b", sequence=1), 2, b"x")
    # One that names more chunks than the first of its message did.
    assert segment.add(chunk(4, count=9, uuid="b", sequence=1), 3, b"x") is None
    assert segment.acked == [(1, 1), (1, 3)]
    assert segment.reader.first == (1, 2)
    segment.reader.close()


class Keys:
    """Reverses what it decrypts, and knows one key."""

    def __init__(self, on_failure: str) -> None:
        self.on_failure = on_failure

    def decrypt(self, metadata: pb.MessageMetadata, payload: bytes) -> bytes:
        if metadata.encryption_keys[0].key != "ours":
            raise CryptoFailed("no key")
        return payload[::-1]


def encrypted(index: int, key: str) -> pb.MessageMetadata:
    metadata = chunk(index, count=2)
    metadata.encryption_keys.add(key=key, value=b"")
    return metadata


async def test_each_chunk_is_decrypted_by_itself() -> None:
    segment = Segment()
    origin = EntryOrigin("t", decryption=Keys("fail"))
    assert segment.add(encrypted(0, "ours"), 0, b"leh", origin) is None
    entry = segment.add(encrypted(1, "ours"), 1, b"ol", origin)
    assert entry is not None
    assert entry.messages()[0].payload == b"hello"


@pytest.mark.parametrize("on_failure", ["fail", "skip", "deliver"])
async def test_a_chunk_that_cannot_be_decrypted_is_told_or_passed_over(on_failure: str) -> None:
    segment = Segment()
    entry = segment.add(encrypted(0, "theirs"), 0, b"x", EntryOrigin("t", decryption=Keys(on_failure)))
    if on_failure == "skip":
        assert entry is None
        assert segment.acked == [(1, 0)]
    else:
        assert entry is not None
        with pytest.raises(CryptoFailed):
            entry.messages()
