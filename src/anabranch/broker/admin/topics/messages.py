"""`/admin/v2/persistent/…`: reads single messages. The body is the payload; its metadata is in headers.

A batch is answered whole, with its number of messages in `X-Pulsar-num-batch-message`: the client unpacks it.
"""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Literal
from urllib.parse import quote

from anabranch.broker.admin.http.answer import HttpAnswer
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.parameters import Long, SubscriptionName
from anabranch.broker.admin.http.routes import topic_routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.admin.topics.partitions import single
from anabranch.broker.policy.written_time import written_time
from anabranch.errors import OversizePayload, UnsupportedCompression
from anabranch.model.names import Domain, TopicName
from anabranch.model.position import Position
from anabranch.storage.port import Buffer
from anabranch.storage.topic.topic_log import TopicLog
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import decompress, open_entry
from anabranch.wire.entry import parse_metadata

routes = topic_routes(Domain.PERSISTENT, Needs.CONSUME)

# Messages up to this size are decoded on the event loop.
_SMALL_BYTES = 64 * 1024

# Characters that a header keeps as they are. All others, above all line ends, are written as %XX.
_PRINTED = " !#$&'()*+,/:;=?@[]~"


@routes.get("/subscription/{subscription}/position/{position}")
async def peek(
    services: AdminServices, topic: TopicName, subscription: SubscriptionName, position: int
) -> HttpAnswer:
    """The n-th entry, from 1, that the subscription has not acknowledged.

    For a subscription that does not exist these are all entries. Pulsar would create it; this request creates nothing.
    """
    opened = await single(services, topic, partitioned=405)
    found = opened.subscriptions.get(subscription)
    if position < 1:
        raise RestError(412, "Message positions start at 1")
    if found is None:
        if position > opened.log.entries:
            raise RestError(404, "Message not found")
        return await read_entry(opened.log, opened.log.position_at(position - 1))
    peeked = await found.peek(position - 1)
    if peeked is None:
        raise RestError(404, "Message not found")
    at, entry = peeked
    return await answered(at, entry[2])


@routes.get("/ledger/{ledger}/entry/{entry}")
async def message_by_id(services: AdminServices, topic: TopicName, ledger: Long, entry: Long) -> HttpAnswer:
    return await read_entry((await single(services, topic, partitioned=405)).log, (ledger, entry))


@routes.get("/examinemessage")
async def examine(
    services: AdminServices,
    topic: TopicName,
    initialPosition: Literal["earliest", "latest"] = "latest",
    messagePosition: int = 1,
) -> HttpAnswer:
    """The n-th entry, from 1, counted from either end of the log."""
    log = (await single(services, topic, partitioned=405)).log
    if not log.entries:
        raise RestError(412, "Could not examine messages: the topic has none")
    index = max(messagePosition, 1) - 1
    if index >= log.entries:
        raise RestError(404, "Message not found")
    return await read_entry(
        log, log.position_at(index if initialPosition == "earliest" else log.entries - 1 - index)
    )


async def read_entry(log: TopicLog, at: Position) -> HttpAnswer:
    """The answer about the entry there; 404 if the log has none."""
    if log.normalise(at) != at or at >= log.end:
        raise RestError(404, "Message not found")
    ledger, entries = await log.read(at, 1, 1)
    return await answered((ledger, entries[0][0]), entries[0][2])


async def answered(at: Position, entry: Buffer) -> HttpAnswer:
    """The answer about that entry."""
    # Parsing and unpacking a large one takes tens of milliseconds, which would block the loop.
    if len(entry) <= _SMALL_BYTES and _unpacked_bytes(entry) <= _SMALL_BYTES:
        return _answer(at, entry)
    return await asyncio.to_thread(_answer, at, bytes(entry))


def _unpacked_bytes(entry: Buffer) -> int:
    return parse_metadata(entry).uncompressed_size


def _answer(at: Position, entry: Buffer) -> HttpAnswer:
    metadata, payload = open_entry(entry)
    data = bytes(payload)
    is_encrypted = bool(metadata.encryption_keys)
    packing = {}
    if metadata.compression != pb.NONE:
        try:
            # Encrypted payloads were compressed first: only their reader can unpack them.
            data = (
                data if is_encrypted else decompress(metadata.compression, data, metadata.uncompressed_size)
            )
        except (UnsupportedCompression, OversizePayload):
            # As it is stored: the size that a broker unpacks in memory is bounded by the size that it stores.
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
    return HttpAnswer(data, "application/octet-stream", headers=headers)


def _text(found: str | bytes) -> str:
    """The text. Protobuf returns a string that is not UTF-8 as bytes."""
    return found.decode(errors="replace") if isinstance(found, bytes) else found
