"""What is encoded by hand is what protobuf reads, to the byte where protobuf would write the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire import varint
from anabranch.wire.encode import (
    encode_command,
    encode_message_header,
    encode_payload_header,
    encode_receipt_run,
    encode_receipts,
)
from anabranch.wire.frames import FrameDecoder

U64 = st.integers(0, 300) | st.integers(0, 2**29) | st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)


@given(U64)
def test_varints_come_back(n: int) -> None:
    data = varint.encode(n)
    assert varint.decode(data + b"\x01", 0) == (n, len(data))


@given(I64)
def test_a_negative_number_is_written_as_its_64_bits(n: int) -> None:
    written = pb.MessageIdData(ledgerId=0, entryId=0, ack_set=[n]).SerializeToString()
    assert written.endswith(b"\x28" + varint.encode(n))


@given(
    U64,
    U64,
    U64,
    st.integers(0, 2**32 - 1) | st.just(0),
    st.integers(-1, 2**31 - 1),
    st.lists(I64, max_size=20) | st.none(),
    st.integers(-1, 2**64 - 1) | st.none(),
    st.integers(0, 5_000_000),
)
def test_a_message_header_is_what_protobuf_would_write(
    consumer: int,
    ledger: int,
    entry: int,
    redeliveries: int,
    partition: int,
    ack_set: list[int] | None,
    epoch: int | None,
    size: int,
) -> None:
    message = pb.CommandMessage(
        consumer_id=consumer,
        message_id=pb.MessageIdData(ledgerId=ledger, entryId=entry, partition=partition),
        ack_set=ack_set,
    )
    if redeliveries:
        message.redelivery_count = redeliveries
    if epoch is not None and epoch >= 0:
        message.consumer_epoch = epoch
    command = pb.BaseCommand(type=pb.BaseCommand.MESSAGE, message=message)
    written = encode_message_header(consumer, ledger, entry, redeliveries, partition, ack_set, epoch, size)
    assert written == encode_payload_header(command, size)


@given(U64, st.lists(st.tuples(U64, U64, U64, U64), max_size=20))
def test_receipts_are_what_protobuf_would_write(
    producer: int, receipts: list[tuple[int, int, int, int]]
) -> None:
    frames = [
        pb.BaseCommand(
            type=pb.BaseCommand.SEND_RECEIPT,
            send_receipt=pb.CommandSendReceipt(
                producer_id=producer,
                sequence_id=sequence,
                message_id=pb.MessageIdData(ledgerId=ledger, entryId=entry),
                highest_sequence_id=highest,
            ),
        )
        for sequence, highest, ledger, entry in receipts
    ]
    written = encode_receipts(producer, receipts)
    assert written == b"".join(map(encode_command, frames))
    assert [frame[1] for frame in FrameDecoder().feed(written)] == frames


def test_the_receipt_of_a_duplicate_names_no_entry() -> None:
    (frame,) = FrameDecoder().feed(encode_receipts(1, [(5, 5, -1, -1)]))
    receipt = frame[1].send_receipt
    assert (receipt.message_id.ledgerId, receipt.message_id.entryId) == (2**64 - 1, 2**64 - 1)


@given(U64, U64, st.integers(0, 2**40), st.lists(st.tuples(U64, U64), max_size=20), st.booleans())
def test_a_run_of_receipts_is_the_receipts_one_by_one(
    producer: int, ledger: int, first: int, ids: list[tuple[int, int]], is_single: bool
) -> None:
    if is_single:
        ids = [(sequence, sequence) for sequence, _ in ids]
    receipts = [(sequence, highest, ledger, first + n) for n, (sequence, highest) in enumerate(ids)]
    assert encode_receipt_run(producer, ledger, first, ids) == encode_receipts(producer, receipts)
