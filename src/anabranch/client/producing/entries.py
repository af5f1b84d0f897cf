"""Data plane. Turns a run into the frames to send: joined, compressed, encrypted, cut into chunks, checksummed.

There is one entry for each run, of up to a thousand messages: protobuf objects are cheap enough here. Frames are lists
of pieces, so that a batch of columns is never copied on its way to the socket.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeAlias

from crc32c import crc32c

from anabranch.client.errors import BadArgument
from anabranch.client.hidden_writes.write import Write
from anabranch.client.producing.core.runs import BatchRun, BlockRun, MessageRun, WholeRun
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import compress, split_batch
from anabranch.wire.encode import encode_payload_header
from anabranch.wire.sizes import UNPACKED_BYTES_MAX

Payload: TypeAlias = bytes | memoryview
Pieces: TypeAlias = list[Payload]

# The room reserved in each chunk for metadata beyond that of the first chunk: its number, the encryption's tag.
CHUNK_SLACK_BYTES: Final = 256

_SEND: Final = pb.BaseCommand.SEND


class Encrypts(Protocol):
    """End-to-end encryption: adds what readers need to the metadata."""

    def encrypt(self, metadata: pb.MessageMetadata, payload: Payload) -> bytes: ...


class Target(NamedTuple):
    """Where frames go: a producer's id on its connection, and the broker's answer there.

    `is_stamped`: a segment of a scalable topic, where each entry tells which entry buckets its messages belong to.
    `is_named_by_last`: an entry's sequence id is its last message's instead of its first one's.
    """

    producer_id: int
    schema_version: bytes
    message_bytes_max: int
    is_stamped: bool = False
    is_named_by_last: bool = False

    def number_of(self, run: MessageRun) -> int:
        """The sequence id of the run's entry, which its receipts name."""
        return run.last if self.is_named_by_last else run.first


class Entries:
    """How one producer makes entries."""

    def __init__(
        self,
        name: str,
        now_ms: Callable[[], int],
        *,
        compression: int = pb.NONE,
        encryption: Encrypts | None = None,
        is_chunking: bool = False,
        write: Write | None = None,
    ) -> None:
        self._name = name
        self._halves = None if write is None else write.halves
        self._now_ms = now_ms
        self._compression = compression
        self._encryption = encryption
        self._is_chunking = is_chunking
        self._tries = 0

    def frames(self, run: MessageRun, target: Target) -> list[Pieces]:
        """The frames of a run, each answered by its own receipt. Raises if no broker would accept them."""
        number = target.number_of(run)
        metadata = pb.MessageMetadata(
            producer_name=self._name, sequence_id=number, publish_time=self._now_ms()
        )
        if self._halves is not None:
            metadata.txnid_most_bits, metadata.txnid_least_bits = self._halves
        if target.schema_version:
            metadata.schema_version = target.schema_version
        if target.is_stamped:
            # At the last moment: a run that was cut for a classic topic may be sent to the scalable one it became.
            metadata.entry_hash_min, metadata.entry_hash_max = run.bucket_span()
        if isinstance(run, WholeRun):
            return self._whole(run, metadata, target)
        payload = self._packed(metadata, self._batch(run, metadata))
        if len(payload) > target.message_bytes_max:
            raise _too_large(
                len(payload), target.message_bytes_max, "make batches smaller with Batching(bytes_max=…)"
            )
        send = pb.CommandSend(
            producer_id=target.producer_id,
            sequence_id=number,
            num_messages=run.count,
            highest_sequence_id=run.last,
        )
        return [_frame(send, metadata, payload)]

    def _batch(self, run: MessageRun, metadata: pb.MessageMetadata) -> Payload:
        metadata.num_messages_in_batch = run.count
        metadata.highest_sequence_id = run.last
        if isinstance(run, BlockRun):
            copy_key(metadata, run.sample())
            return run.payload()
        assert isinstance(run, BatchRun)
        hashes = run.hashes
        if hashes[0] == hashes[-1] and hashes.count(hashes[0]) == len(hashes):
            copy_key(metadata, run.encoded(0))
        return b"".join(run.parts)

    def _packed(self, metadata: pb.MessageMetadata, payload: Payload) -> Payload:
        """Compresses the payload, and encrypts it as one piece."""
        payload = self._compressed(metadata, payload)
        if self._encryption is not None:
            payload = self._encryption.encrypt(metadata, payload)
        return payload

    def _compressed(self, metadata: pb.MessageMetadata, payload: Payload) -> Payload:
        if self._compression == pb.NONE:
            return payload
        if len(payload) > UNPACKED_BYTES_MAX:
            # However small it is compressed: the broker would store a message that no client reads.
            raise BadArgument(
                f"a message of {len(payload)} bytes: readers unpack {UNPACKED_BYTES_MAX} at most; cut it into several, "
                "or send it without compression and with chunking=True"
            )
        metadata.compression = self._compression  # type: ignore[assignment]  # An int of the enum.
        metadata.uncompressed_size = len(payload)
        return compress(self._compression, payload)  # type: ignore[arg-type]  # Codecs accept any buffer.

    def _whole(self, run: WholeRun, metadata: pb.MessageMetadata, target: Target) -> list[Pieces]:
        _describe(metadata, run)
        payload = self._compressed(metadata, run.whole.payload)
        limit = target.message_bytes_max
        if len(payload) <= limit:
            if self._encryption is not None:
                payload = self._encryption.encrypt(metadata, payload)
            send = pb.CommandSend(producer_id=target.producer_id, sequence_id=run.first, num_messages=1)
            return [_frame(send, metadata, payload)]
        if not self._is_chunking:
            raise _too_large(len(payload), limit, "chunking=True sends such messages in parts")
        return self._chunks(run.first, metadata, memoryview(payload), target)

    def _chunks(
        self, number: int, metadata: pb.MessageMetadata, payload: memoryview, target: Target
    ) -> list[Pieces]:
        # Each attempt has its own name: a reader that has met some chunks of an earlier one must not mix them.
        self._tries += 1
        metadata.uuid = f"{self._name}-{number}-{self._tries}"
        metadata.total_chunk_msg_size = len(payload)
        room = max(1, target.message_bytes_max - metadata.ByteSize() - CHUNK_SLACK_BYTES)
        starts = range(0, len(payload), room)
        metadata.num_chunks_from_msg = len(starts)
        frames = []
        for chunk, start in enumerate(starts):
            own = pb.MessageMetadata()
            own.CopyFrom(metadata)
            own.chunk_id = chunk
            part: Payload = payload[start : start + room]
            if self._encryption is not None:
                part = self._encryption.encrypt(own, part)
            send = pb.CommandSend(
                producer_id=target.producer_id, sequence_id=number, num_messages=1, is_chunk=True
            )
            frames.append(_frame(send, own, part))
        return frames


def copy_key(metadata: pb.MessageMetadata, sample: bytes | None) -> None:
    """Gives a batch of one key that key; consumers that share a topic by keys keep their order by it."""
    if sample is None:
        return
    single = split_batch(sample, 1)[0][0]
    if single.HasField("partition_key"):
        metadata.partition_key = single.partition_key
        if single.partition_key_b64_encoded:
            metadata.partition_key_b64_encoded = True


def _describe(metadata: pb.MessageMetadata, run: WholeRun) -> None:
    whole = run.whole
    for name, value in whole.properties:
        metadata.properties.add(key=name, value=value)
    if isinstance(whole.key, bytes):
        metadata.partition_key = b64encode(whole.key).decode()
        metadata.partition_key_b64_encoded = True
    elif whole.key is not None:
        metadata.partition_key = whole.key
    if whole.event_time_ms is not None:
        metadata.event_time = whole.event_time_ms
    if whole.deliver_at_ms is not None:
        metadata.deliver_at_time = whole.deliver_at_ms
    if whole.ordering_key is not None:
        metadata.ordering_key = whole.ordering_key
    if whole.is_null:
        metadata.null_value = True


def _frame(send: pb.CommandSend, metadata: pb.MessageMetadata, payload: Payload) -> Pieces:
    head = metadata.SerializeToString()
    body = len(head).to_bytes(4, "big") + head
    crc = crc32c(payload, crc32c(body))
    command = pb.BaseCommand(type=_SEND, send=send)
    header = encode_payload_header(command, 6 + len(body) + len(payload))
    return [b"%b\x0e\x01%b%b" % (header, crc.to_bytes(4, "big"), body), payload]


def _too_large(size: int, limit: int, remedy: str) -> BadArgument:
    return BadArgument(f"a message of {size} bytes, and the broker takes {limit}: {remedy}")
