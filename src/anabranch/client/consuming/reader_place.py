"""Where a reader starts in a segment, in the form for brokers, and whether the segment ever had that place."""

from __future__ import annotations

from typing import Final

from anabranch.client.errors import BadCheckpoint, TopicMadeAgain
from anabranch.client.message import signed
from anabranch.client.transport.connection import ClientConnection
from anabranch.client.transport.pool import ask
from anabranch.model.cut import BEGINNING, MessagePosition
from anabranch.wire import pulsar_pb2 as pb

C = pb.BaseCommand

_WHOLE_ENTRY: Final = 2**31 - 1
_UNSIGNED: Final = (1 << 64) - 1


def behind(position: MessagePosition | None) -> pb.MessageIdData:
    """The last message before a position, in the form for brokers; for None the place before all messages."""
    ledger, entry, index = (-1, 0, 0) if position is None or position == BEGINNING else position
    if index:
        index -= 1
    elif entry:
        entry, index = entry - 1, _WHOLE_ENTRY
    else:
        entry, index = -1, -1
    return pb.MessageIdData(ledgerId=ledger & _UNSIGNED, entryId=entry & _UNSIGNED, batch_index=index)


def bits_from(index: int, count: int) -> int:
    """The bits of a batch's messages from an index on."""
    return ~((1 << index) - 1) & ((1 << count) - 1)


async def check(connection: ClientConnection, consumer: int, topic: str, position: MessagePosition) -> None:
    """Raises BadCheckpoint if the place lies behind everything that a segment of Pulsar's ever had: nothing would be
    read from there.

    Pulsar accepts any place. Our brokers themselves refuse a place that a segment never had.
    """
    if connection.is_ours or position == BEGINNING:
        return
    answer = await ask(connection, C.GET_LAST_MESSAGE_ID, "getLastMessageId", consumer_id=consumer)
    last = answer.last_message_id
    end = (signed(last.ledgerId), signed(last.entryId) + 1)
    if end[0] >= 0 and position[:2] > end:
        raise unknown(topic, position)


def made_again(topic: str) -> TopicMadeAgain:
    return TopicMadeAgain(
        f"{topic} was deleted and made again while it was read: what was not read of the former is gone. Start at "
        "'earliest' to read the present one from its beginning"
    )


def unknown(topic: str, position: MessagePosition) -> BadCheckpoint:
    return BadCheckpoint(
        f"ledger {position[0]}, entry {position[1]} of this checkpoint was never in {topic}: it was made for another "
        "topic, or the topic was deleted and made again. Give a checkpoint of this one, or start at 'earliest'"
    )
