"""`/admin/v2/persistent/…`: looking at single messages. The body is the payload; what is known of it is in headers.

A batch is answered whole, with its number of messages in `X-Pulsar-num-batch-message`: the client takes it apart.
"""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Literal
from urllib.parse import quote

from fastapi import APIRouter, Response

from anabranch.broker.admin.errors import RestError
from anabranch.broker.admin.params import BrokerDep, SubscriptionDep, TopicDep
from anabranch.broker.admin.partitions import single
from anabranch.broker.written_time import written_time
from anabranch.errors import OversizePayload, UnsupportedCompression
from anabranch.model.position import Position
from anabranch.storage.port import Buffer
from anabranch.storage.topic_log import TopicLog
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import decompress, open_entry
from anabranch.wire.entry import parse_metadata

router = APIRouter()

# Messages up to this size are answered on the event loop.
_SMALL_BYTES = 64 * 1024

# What stays as it is in a header. Anything else, line ends above all, is written as %XX.
_PRINTED = " !#$&'()*+,/:;=?@[]~"


@router.get("/subscription/{subscription}/position/{position}")
async def peek(broker: BrokerDep, topic: TopicDep, subscription: SubscriptionDep, position: int) -> Response:
    """The n-th entry, from 1, that the subscription has not acknowledged.

    One that does not exist has acknowledged nothing. Pulsar makes it then; here a look makes nothing.
    """
    opened = await single(broker, topic, partitioned=405)
    found = opened.subscriptions.get(subscription)
    if position < 1:
        raise RestError(412, "Message positions start at 1")
    if found is None:
        if position > opened.log.entries:
            raise RestError(404, "Message not found")
        return await _read(opened.log, opened.log.position_at(position - 1))
    peeked = await found.peek(position - 1)
    if peeked is None:
        raise RestError(404, "Message not found")
    at, entry = peeked
    return await _answered(at, entry[2])


@router.get("/ledger/{ledger}/entry/{entry}")
async def message_by_id(broker: BrokerDep, topic: TopicDep, ledger: int, entry: int) -> Response:
    return await _read((await single(broker, topic, partitioned=405)).log, (ledger, entry))


@router.get("/examinemessage")
async def examine(
    broker: BrokerDep,
    topic: TopicDep,
    initialPosition: Literal["earliest", "latest"] = "latest",
    messagePosition: int = 1,
) -> Response:
    """The n-th entry, from 1, counted from either end of the log."""
    log = (await single(broker, topic, partitioned=405)).log
    if not log.entries:
        raise RestError(412, "Could not examine messages: the topic has none")
    index = max(messagePosition, 1) - 1
    if index >= log.entries:
        raise RestError(404, "Message not found")
    return await _read(
        log, log.position_at(index if initialPosition == "earliest" else log.entries - 1 - index)
    )


async def _read(log: TopicLog, at: Position) -> Response:
    if log.normalise(at) != at or at >= log.end:
        raise RestError(404, "Message not found")
    ledger, entries = await log.read(at, 1, 1)
    return await _answered((ledger, entries[0][0]), entries[0][2])


async def _answered(at: Position, entry: Buffer) -> Response:
    # Parsing and unpacking a large one takes tens of milliseconds, which others would wait for.
    if len(entry) <= _SMALL_BYTES and _unpacked_bytes(entry) <= _SMALL_BYTES:
        return _answer(at, entry)
    return await asyncio.to_thread(_answer, at, bytes(entry))


def _unpacked_bytes(entry: Buffer) -> int:
    return parse_metadata(entry).uncompressed_size


def _answer(at: Position, entry: Buffer) -> Response:
    metadata, payload = open_entry(entry)
    data = bytes(payload)
    is_encrypted = bool(metadata.encryption_keys)
    packing = {}
    if metadata.compression != pb.NONE:
        try:
            # What is encrypted was packed first: only its reader can unpack it.
            data = (
                data if is_encrypted else decompress(metadata.compression, data, metadata.uncompressed_size)
            )
        except (UnsupportedCompression, OversizePayload):
            # As it is stored: what a broker unpacks in its own memory is bounded by what it stores.
            packing = {"X-Pulsar-compression": pb.CompressionType.Name(metadata.compression)}
    headers = {
        **packing,
        "X-Pulsar-Message-ID": f"{at[0]}:{at[1]}",
        "X-Pulsar-PROPERTY": json.dumps({_text(item.key): _text(item.value) for item in metadata.properties}),
        "X-Pulsar-Is-Encrypted": str(is_encrypted).lower(),
        "X-Pulsar-producer-name": quote(_text(metadata.producer_name), safe=_PRINTED),
        "X-Pulsar-sequence-id": str(metadata.sequence_id),
        "X-Pulsar-publish-time": written_time(metadata.publish_time),
        "X-Pulsar-txn-uncommitted": "false",
    }
    if metadata.HasField("num_messages_in_batch"):
        headers["X-Pulsar-num-batch-message"] = str(metadata.num_messages_in_batch)
        headers["X-Pulsar-batch-size"] = str(len(data))
    if metadata.event_time:
        headers["X-Pulsar-event-time"] = written_time(metadata.event_time)
    if metadata.HasField("deliver_at_time"):
        headers["X-Pulsar-deliver-at-time"] = written_time(metadata.deliver_at_time)
    if metadata.HasField("partition_key") and (key := _text(metadata.partition_key)).isascii():
        headers["X-Pulsar-partition-key"] = quote(key, safe=_PRINTED)
        headers["X-Pulsar-partition-key-b64-encoded"] = str(metadata.partition_key_b64_encoded).lower()
    if metadata.HasField("schema_version"):
        headers["X-Pulsar-Base64-schema-version"] = base64.b64encode(metadata.schema_version).decode()
    if metadata.HasField("chunk_id"):
        headers["X-Pulsar-chunk-id"] = str(metadata.chunk_id)
        headers["X-Pulsar-num-chunks-from-msg"] = str(metadata.num_chunks_from_msg)
    answer = Response(data, media_type="application/octet-stream")
    # Not through `headers=`, which would make them lower case: Java's admin client looks for these very letters.
    answer.raw_headers.extend((name.encode(), value.encode("latin-1")) for name, value in headers.items())
    return answer


def _text(found: str | bytes) -> str:
    """Protobuf hands a string that is not UTF-8 over as bytes."""
    return found.decode(errors="replace") if isinstance(found, bytes) else found
