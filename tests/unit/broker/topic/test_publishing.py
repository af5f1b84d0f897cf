"""From a SEND to its answer, on a log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from anabranch.broker.config.listeners import Addresses
from anabranch.broker.state.bucket_dedup import BucketDeduplication
from anabranch.broker.state.dedup import Deduplication
from anabranch.broker.topic.producer import AttachedProducer
from anabranch.broker.topic.publishing import Publishing
from anabranch.broker.topic.stamps import Stamps
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.buckets import Splits
from anabranch.model.position import Incarnation
from anabranch.storage.memory import MemoryLogStore
from anabranch.storage.port import Buffer, LogError
from anabranch.storage.topic.ledger_ids import LedgerIds
from anabranch.storage.topic.topic_log import TopicLog
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch, build_entry, encode_send
from anabranch.wire.frames import BAD_CHECKSUM, BAD_IDS, BAD_METADATA, EXTENDED, IS_CHUNK, FrameDecoder


class Link:
    """A connection that decodes what it is sent."""

    is_open = True
    address = "here"
    client_version = "test"

    def __init__(self) -> None:
        self._decoder = FrameDecoder()
        self.answers: list[tuple[str, int, int]] = []
        self.highest: list[int] = []
        self.owed = 0

    def write(self, pieces: Sequence[Buffer]) -> None:
        for frame in self._decoder.feed(b"".join(pieces)):
            command = frame[1]
            if command.type == pb.BaseCommand.SEND_RECEIPT:
                receipt = command.send_receipt
                entry = receipt.message_id.entryId
                self.highest.append(receipt.highest_sequence_id)
                self.answers.append(
                    ("receipt", receipt.sequence_id, entry - (1 << 64) if entry >> 63 else entry)
                )
            else:
                self.answers.append(("error", command.send_error.sequence_id, command.send_error.error))

    def send(self, command: pb.BaseCommand) -> None: ...

    def awaits_producer(self, producer: AttachedProducer) -> bool:
        return True

    def attach_producer(self, producer: AttachedProducer) -> None: ...

    def producer_closed(self, producer: AttachedProducer, moved_to: Addresses | None = None) -> None: ...

    async def is_alive(self) -> bool:
        return True

    def hold(self, seconds: float) -> None: ...

    def owes(self, count: int) -> None:
        self.owed += count

    def answered(self, count: int) -> None:
        self.owed -= count


class Rig:
    """A topic's publishing half and its log."""

    def __init__(self, splits: Splits = ()) -> None:
        """With splits, of a segment with several entry buckets."""
        self.stamps = Stamps(splits) if splits else None
        self.dedup = BucketDeduplication(splits) if splits else Deduplication()
        self.store = MemoryLogStore(incarnation=Incarnation("one"))
        self.link = Link()
        self.producer = AttachedProducer(1, "p", self.link)
        self.was_full = False
        self.lost: LogError | None = None
        self._told = asyncio.Event()

    async def open(self, *, is_sealed: bool = False) -> Rig:
        metadata = await MemoryMetadata(lambda: 1).connect()
        await self.store.start()
        await TopicLog.create("/t", metadata, 1)
        self.log = await TopicLog.open("/t", "a/b", self.store, metadata, LedgerIds(metadata), 1)
        self.publishing = Publishing(
            self.log,
            self.dedup,
            is_sealed=is_sealed,
            producers=("p", "q"),
            on_full=lambda: setattr(self, "was_full", True),
            stamps=self.stamps,
        )
        self.log.start(self)
        return self

    def entries_confirmed(self, entries_end: int) -> None:
        self.publishing.confirmed(entries_end)
        self._told.set()

    def log_lost(self, error: LogError) -> None:
        self.lost = error

    def encode_state(self) -> bytes:
        return b""

    def send(self, sequence_id: int, *, flags: int = 0, metadata: pb.MessageMetadata | None = None) -> None:
        metadata = metadata or pb.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1)
        entry = memoryview(build_entry(metadata, b"x"))
        self.publishing.publish(self.producer, [(6, 1, sequence_id, 1, sequence_id, flags, entry)])

    def send_batch(self, first: int, ids: Sequence[int], *, highest: int | None = None) -> None:
        """A batch as its client sends it: with the last id or without, in the command and in the metadata."""
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=first, publish_time=1)
        if highest is not None:
            metadata.highest_sequence_id = highest
        messages = [(pb.SingleMessageMetadata(payload_size=0, sequence_id=id), b"x") for id in ids]
        entry = build_batch(metadata, messages)
        sent = encode_send(
            entry, producer_id=1, sequence_id=first, num_messages=len(ids), highest_sequence_id=highest
        )
        self.publishing.publish(self.producer, FrameDecoder().feed(sent))

    async def told(self) -> None:
        self._told.clear()
        await asyncio.wait_for(self._told.wait(), 5)

    async def until_answered(self, count: int) -> list[tuple[str, int, int]]:
        while len(self.link.answers) < count:
            await self.told()
        return self.link.answers


async def test_receipts_come_in_order_once_entries_are_confirmed() -> None:
    rig = await Rig().open()
    for n in range(5):
        rig.send(n)
    assert rig.link.answers == []
    assert await rig.until_answered(5) == [("receipt", n, n) for n in range(5)]


async def test_a_duplicate_is_acknowledged_only_after_the_original_is_confirmed() -> None:
    rig = await Rig().open()
    rig.publishing.deduplicate(True)
    rig.send(4)
    rig.send(4)
    assert rig.link.answers == []
    assert await rig.until_answered(2) == [("receipt", 4, 0), ("receipt", 4, -1)]
    assert rig.log.entries == 1


async def test_a_late_duplicate_is_acknowledged_at_once() -> None:
    rig = await Rig().open()
    rig.publishing.deduplicate(True)
    rig.send(4)
    await rig.until_answered(1)
    rig.send(3)
    assert rig.link.answers[-1] == ("receipt", 3, -1)


async def test_the_chunks_of_one_message_are_not_duplicates_of_each_other() -> None:
    rig = await Rig().open()
    rig.publishing.deduplicate(True)
    for attempt in range(2):
        for chunk in range(3):
            metadata = pb.MessageMetadata(
                producer_name="p",
                sequence_id=7,
                publish_time=1,
                chunk_id=chunk,
                num_chunks_from_msg=3,
                uuid="u",
            )
            rig.send(7, flags=IS_CHUNK, metadata=metadata)
        answers = await rig.until_answered(3 * (attempt + 1))
    assert [entry for _, _, entry in answers] == [0, 1, 2, -1, -1, -1]


# Two keys in turn. The wheel names the first id of each batch, Java the last one twice.
BY_KEY = [
    [(0, [0, 2], None), (1, [1, 3], None), (4, [4, 6, 7, 8], None), (5, [5], None)],
    [(2, [0, 2], 2), (3, [1, 3], 3), (5, [5], None), (8, [4, 6, 7, 8], 8)],
]


@pytest.mark.parametrize("batches", BY_KEY)
async def test_batches_by_key_are_stored_and_receipted_by_the_ids_that_they_name(
    batches: list[tuple[int, list[int], int | None]],
) -> None:
    rig = await Rig().open()
    rig.publishing.deduplicate(True)
    for first, ids, highest in batches:
        rig.send_batch(first, ids, highest=highest)
    answers = await rig.until_answered(4)
    assert answers == [("receipt", first, n) for n, (first, _, _) in enumerate(batches)]
    assert rig.link.highest == [first if highest is None else highest for first, _, highest in batches]
    for first, ids, highest in batches:
        rig.send_batch(first, ids, highest=highest)
    assert (await rig.until_answered(8))[4:] == [("receipt", first, -1) for first, _, _ in batches]
    assert rig.log.entries == 4


async def test_a_batch_that_is_old_in_part_is_stored_before_it_is_receipted() -> None:
    rig = await Rig().open()
    rig.publishing.deduplicate(True)
    rig.send_batch(0, [0, 1, 2], highest=2)
    rig.send_batch(1, [1, 2, 3], highest=3)
    assert await rig.until_answered(2) == [("receipt", 0, 0), ("receipt", 1, 1)]


async def test_a_chunk_that_completes_no_message_is_not_called_stored() -> None:
    rig = await Rig().open()
    rig.publishing.deduplicate(True)
    rig.send(0)
    for chunk in range(3):
        metadata = pb.MessageMetadata(
            producer_name="p", sequence_id=1, publish_time=1, chunk_id=chunk, num_chunks_from_msg=3, uuid="u"
        )
        rig.send(1, flags=IS_CHUNK, metadata=metadata)
        await rig.until_answered(2 + chunk)
        assert rig.publishing.dedup.last_confirmed("p") == (1 if chunk == 2 else 0)


@pytest.mark.parametrize("is_deduplicating", [True, False])
@pytest.mark.parametrize("flag", [BAD_METADATA, BAD_IDS])
async def test_what_the_frame_shows_to_be_wrong_is_refused_in_its_turn(
    flag: int, is_deduplicating: bool
) -> None:
    rig = await Rig().open()
    rig.publishing.deduplicate(is_deduplicating)
    rig.send(1)
    rig.send(2, flags=flag)
    rig.send(3)
    answers = await rig.until_answered(3)
    assert answers == [("receipt", 1, 0), ("error", 2, pb.NotAllowedError), ("receipt", 3, 1)]


def unreadable() -> memoryview:
    head = b"\xff\xff\xff"
    return memoryview(b"\x0e\x01\0\0\0\0" + len(head).to_bytes(4, "big") + head + b"x")


async def test_metadata_that_nobody_can_read_is_refused_where_it_decides() -> None:
    rig = await Rig().open()
    rig.publishing.publish(rig.producer, [(6, 1, 1, 1, 1, IS_CHUNK, unreadable())])
    rig.publishing.deduplicate(True)
    rig.publishing.publish(rig.producer, [(6, 1, 2, 1, 2, 0, unreadable())])
    rig.publishing.deduplicate(False)
    rig.publishing.limit_messages(0, 1000)
    rig.publishing.publish(rig.producer, [(6, 1, 3, 1, 3, 0, unreadable())])
    rig.publishing.limit_messages(0, 0)
    rig.publishing.require_encryption(True)
    rig.publishing.publish(rig.producer, [(6, 1, 4, 1, 4, 0, unreadable())])
    answers = await rig.until_answered(4)
    assert answers == [("receipt", 1, 0), *(("error", n, pb.NotAllowedError) for n in (2, 3, 4))]


async def test_where_messages_are_deduplicated_nobody_sends_under_the_name_of_one_who_is_there() -> None:
    rig = await Rig().open()
    other = pb.MessageMetadata(producer_name="q", sequence_id=1, publish_time=1)
    nobody = pb.MessageMetadata(producer_name="r", sequence_id=1, publish_time=1)
    rig.send(1, metadata=other)
    rig.publishing.deduplicate(True)
    rig.send(2, metadata=other)
    rig.send(3, metadata=nobody)
    answers = await rig.until_answered(3)
    assert answers == [("receipt", 1, 0), ("error", 2, pb.NotAllowedError), ("receipt", 3, 1)]


async def test_without_deduplication_ids_may_repeat() -> None:
    rig = await Rig().open()
    rig.send(4)
    rig.send(4)
    assert await rig.until_answered(2) == [("receipt", 4, 0), ("receipt", 4, 1)]


async def test_an_error_never_overtakes_a_receipt() -> None:
    rig = await Rig().open()
    rig.send(1)
    rig.send(2, flags=BAD_CHECKSUM)
    rig.send(3)
    answers = await rig.until_answered(3)
    assert answers == [("receipt", 1, 0), ("error", 2, pb.ChecksumError), ("receipt", 3, 1)]


async def test_a_sealed_topic_answers_what_came_before_and_refuses_what_comes_after() -> None:
    rig = await Rig().open()
    rig.send(1)
    rig.publishing.seal()
    rig.send(2)
    assert await rig.until_answered(2) == [("receipt", 1, 0), ("error", 2, pb.TopicTerminatedError)]


async def test_a_publish_in_a_transaction_is_refused() -> None:
    rig = await Rig().open()
    rig.send(1, flags=EXTENDED)
    assert rig.link.answers == [("error", 1, pb.NotAllowedError)]


async def test_a_full_disk_closes_producers_and_answers_nothing() -> None:
    rig = await Rig().open()
    rig.store.set_accepting(False)
    rig.send(1)
    assert rig.was_full
    assert rig.link.answers == []


async def test_what_a_full_disk_refused_is_not_a_duplicate_when_it_comes_again() -> None:
    rig = await Rig().open()
    rig.publishing.deduplicate(True)
    rig.store.set_accepting(False)
    rig.send(1)
    rig.store.set_accepting(True)
    rig.send(1)
    assert await rig.until_answered(1) == [("receipt", 1, 0)]


async def test_a_closed_producer_is_sent_nothing() -> None:
    rig = await Rig().open()
    other = AttachedProducer(2, "q", Link())
    rig.send(1)
    rig.producer.is_closed = True
    entry = memoryview(
        build_entry(pb.MessageMetadata(producer_name="q", sequence_id=0, publish_time=1), b"y")
    )
    rig.publishing.publish(other, [(6, 2, 0, 1, 0, 0, entry)])
    link = other.link
    assert isinstance(link, Link)
    while not link.answers:
        await rig.told()
    assert rig.link.answers == []


@pytest.mark.parametrize("count", [1, 3])
async def test_nothing_is_accepted_once_stopped(count: int) -> None:
    rig = await Rig().open()
    for n in range(count):
        rig.send(n)
    rig.publishing.stop()
    rig.send(count)
    await rig.until_answered(count)
    assert rig.log.next_entry == count


async def test_what_a_connection_is_owed_is_what_will_be_answered_or_given_up() -> None:
    rig = await Rig().open()
    for n in range(3):
        rig.send(n)
    rig.send(3, flags=BAD_CHECKSUM)
    assert rig.link.owed == 4
    await rig.until_answered(4)
    assert rig.link.owed == 0
    rig.publishing.deduplicate(True)
    rig.send(5)
    rig.send(5)
    rig.producer.is_closed = True
    assert rig.link.owed == 2
    await rig.told()
    assert rig.link.owed == 0
    rig.send(6)
    rig.publishing.abandon()
    assert rig.link.owed == 0
    rig.publishing.stop()
    rig.send(7)
    assert rig.link.owed == 0
