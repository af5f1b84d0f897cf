"""Reads a whole topic over a plain socket and joins the chunks of its messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import open_entry
from soak.link import Kind, Link, owner_port

PERMITS = 200
# A subscription that says nothing for so long has nothing more.
QUIET_SECONDS = 5.0


def wholes(port: int, topic: str) -> Iterator[tuple[pb.MessageIdData, bytes]]:
    """Each message of the topic, at the position of its last chunk."""
    return put_together(_entries(port, topic))


def left_in(port: int, topic: str, subscription: str) -> Iterator[tuple[pb.MessageIdData, bytes]]:
    """Each message that an Exclusive subscription without a consumer still has to deliver. They stay unacknowledged."""
    return put_together(_undelivered(port, topic, subscription))


def put_together(
    entries: Iterable[tuple[pb.MessageIdData, pb.MessageMetadata, bytes]],
) -> Iterator[tuple[pb.MessageIdData, bytes]]:
    """Joins chunks; if the chunks of a message start again, only the new ones count."""
    begun: dict[tuple[str, str], list[bytes]] = {}
    for at, metadata, payload in entries:
        if metadata.num_chunks_from_msg <= 1:
            yield at, payload
            continue
        name = (metadata.producer_name, metadata.uuid)
        parts = begun.setdefault(name, [])
        if metadata.chunk_id == 0:
            parts.clear()
        if metadata.chunk_id != len(parts):
            # A chunk that came twice, or one whose first chunk is missing.
            continue
        parts.append(payload)
        if len(parts) == metadata.num_chunks_from_msg:
            del begun[name]
            yield at, b"".join(parts)


def _entries(port: int, topic: str) -> Iterator[tuple[pb.MessageIdData, pb.MessageMetadata, bytes]]:
    with Link(owner_port(port, topic)) as link:
        link.subscribe(topic, "audit-of-chunks", durable=False, permits=PERMITS)
        request = pb.CommandGetLastMessageId(consumer_id=1, request_id=link.next_request())
        answer = link.ask(
            pb.BaseCommand(type=Kind.GET_LAST_MESSAGE_ID, getLastMessageId=request),
            Kind.GET_LAST_MESSAGE_ID_RESPONSE,
        )
        end = answer.command.getLastMessageIdResponse.last_message_id
        if end.entryId >= 1 << 63:
            return  # Nothing was ever published.
        used = 0
        while True:
            frame = link.wait(lambda got: got.type == Kind.MESSAGE)
            at = frame.command.message.message_id
            metadata, payload = open_entry(frame.payload)
            yield at, metadata, bytes(payload)
            if (at.ledgerId, at.entryId) == (end.ledgerId, end.entryId):
                return
            used += 1
            if used == PERMITS // 2:
                link.flow(used)
                used = 0


def _undelivered(
    port: int, topic: str, subscription: str
) -> Iterator[tuple[pb.MessageIdData, pb.MessageMetadata, bytes]]:
    with Link(owner_port(port, topic)) as link:
        link.subscribe(topic, subscription, permits=PERMITS)
        while (frame := link.receive(QUIET_SECONDS)) is not None:
            if frame.command.type == Kind.MESSAGE:
                metadata, payload = open_entry(frame.payload)
                yield frame.command.message.message_id, metadata, bytes(payload)
                link.flow(1)
