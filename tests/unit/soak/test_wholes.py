"""Chunked messages in a log that was killed between their parts."""

from __future__ import annotations

from soak.wholes import put_together

from anabranch.wire import pulsar_pb2 as pb

Part = tuple[pb.MessageIdData, pb.MessageMetadata, bytes]


def part(entry: int, uuid: str, number: int, count: int, payload: bytes, producer: str = "p") -> Part:
    metadata = pb.MessageMetadata(producer_name=producer, sequence_id=0, publish_time=0)
    metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg = uuid, number, count
    return pb.MessageIdData(ledgerId=1, entryId=entry), metadata, payload


def found(*parts: Part) -> list[tuple[int, bytes]]:
    return [(at.entryId, payload) for at, payload in put_together(parts)]


def test_a_message_is_where_its_last_part_is() -> None:
    assert found(part(0, "a", 0, 2, b"x"), part(1, "", 0, 0, b"alone"), part(2, "a", 1, 2, b"y")) == [
        (1, b"alone"),
        (2, b"xy"),
    ]


def test_a_message_that_begins_anew_is_there_once() -> None:
    again = (part(0, "a", 0, 3, b"x"), part(1, "a", 1, 3, b"y"), part(2, "a", 0, 3, b"x"))
    assert found(*again, part(3, "a", 1, 3, b"y"), part(4, "a", 2, 3, b"z")) == [(4, b"xyz")]


def test_a_message_without_its_first_or_last_part_is_none() -> None:
    assert found(part(0, "a", 1, 2, b"y"), part(1, "b", 0, 2, b"x")) == []


def test_parts_of_two_producers_with_one_name_for_them_are_not_mixed() -> None:
    first, second = (part(0, "a", 0, 2, b"x"), part(2, "a", 1, 2, b"y"))
    other = part(1, "a", 0, 2, b"o", producer="q")
    assert found(first, other, second) == [(2, b"xy")]
