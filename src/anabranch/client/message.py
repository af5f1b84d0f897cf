"""Data plane. A received message, the entry it came in, and how an entry is split into its messages.

An entry is kept as it arrived until the application gets to it, and a message is little more than a place in its entry:
payload, key and properties are read on access. Splitting a batch reads only the two sizes of each message, by hand (0.5
µs a message, where building protobuf objects and a dataclass took 4 µs).
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from struct import Struct
from struct import error as StructError
from typing import Any, Final, Generic, Protocol

from crc32c import crc32c
from google.protobuf.message import DecodeError

from anabranch.client.errors import CryptoFailed
from anabranch.client.message_id import MessageId
from anabranch.client.values import V
from anabranch.errors import AnabranchError, ChecksumMismatch, MalformedFrame
from anabranch.model.keyhash import bucket_hash
from anabranch.model.wanted import Wanted, hash_within
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire import varint
from anabranch.wire.batch import decompress
from anabranch.wire.entry import metadata_span
from anabranch.wire.frames import MAGIC_CHECKSUM, strip_broker_metadata, verify
from anabranch.wire.sizes import UNPACKED_BYTES_MAX
from anabranch.wire.stamps import span_of

# The head of a message in a batch: the size of its metadata, and the metadata's first three bytes.
_HEAD: Final = Struct(">IBBB").unpack_from
_ENTRY_HEAD: Final = Struct(">HII").unpack_from
_PAYLOAD_SIZE: Final = 0x18
_BEFORE_SIZE: Final = (0x12, 0x0A)  # The tags of key and properties.
_parse_metadata = pb.MessageMetadata.FromString
_parse_single = pb.SingleMessageMetadata.FromString


class PayloadSchema(Protocol):
    """Decodes payloads to values."""

    def decode(self, payload: bytes, version: bytes) -> Any: ...


class Decryption(Protocol):
    """Decrypts payloads; `on_failure` is "fail", "skip" or "deliver"."""

    @property
    def on_failure(self) -> str: ...

    def decrypt(self, metadata: pb.MessageMetadata, payload: bytes) -> bytes: ...


class EntryOrigin:
    """Where entries come from and how they are read: shared by the entries of one segment."""

    __slots__ = ("decryption", "partition", "schema", "segment", "topic")

    def __init__(
        self,
        topic: str,
        *,
        segment: int = -1,
        partition: int = -1,
        schema: PayloadSchema | None = None,
        decryption: Decryption | None = None,
    ) -> None:
        self.topic = topic
        self.segment = segment
        self.partition = partition
        self.schema = schema
        self.decryption = decryption


class ReceivedEntry:
    """What a broker sent in one piece: a message, a batch, or the joined chunks of a large message.

    `wanted` has a bit for each message of a batch to be given to the application; -1 means all of them. `owner`, `life`
    and `batch` are the receiver's own notes.
    """

    __slots__ = (
        "batch",
        "chooses",
        "chunks",
        "count",
        "data",
        "entry",
        "fault",
        "in_batch",
        "ledger",
        "life",
        "metadata",
        "number",
        "origin",
        "owner",
        "raw",
        "redeliveries",
        "resume",
        "start",
        "wanted",
    )

    def __init__(
        self,
        origin: EntryOrigin,
        ledger: int,
        entry: int,
        metadata: pb.MessageMetadata,
        data: bytes,
        redeliveries: int = 0,
        owner: Any = None,
        life: Any = None,
        start: int = 0,
    ) -> None:
        self.origin = origin
        self.ledger = ledger
        self.entry = entry
        self.metadata = metadata
        # The payload is `data` from `start` on; `data` is `raw`, the entry as it came, until it is unpacked.
        self.data = self.raw = data
        self.start = start
        self.redeliveries = redeliveries
        self.owner = owner
        self.life = life
        self.in_batch = in_batch = metadata.HasField("num_messages_in_batch")
        self.count = metadata.num_messages_in_batch if in_batch else 1
        # Never made from the count, which is unverified until the batch is split.
        self.wanted = -1
        self.batch: Any = None
        # Set if not all of its messages need be for this reader, where several share a segment by entry buckets.
        self.chooses: Wanted | None = None
        self.fault: Exception | None = None  # Why the entry cannot be read.
        self.number = 0  # The number of its first message, in the order of giving out.
        self.chunks: tuple[tuple[int, int], ...] = ()  # The places of its chunks, if it was chunked.
        # The place of the first chunk that belonged to no whole message when this entry came: a reader that also wants
        # the incomplete messages must resume there.
        self.resume: tuple[int, int] | None = None

    def want(self, bits: int) -> None:
        """Removes messages whose bit is not set."""
        self.wanted &= bits

    @property
    def waiting(self) -> int:
        """How many of its messages are for the application."""
        return self.count if self.wanted < 0 else self.wanted.bit_count()

    @property
    def unpacked_size(self) -> int:
        """The size of its payload once unpacked, or as it came: an upper bound of what unpacking returns."""
        metadata = self.metadata
        if metadata.compression:
            return min(metadata.uncompressed_size, UNPACKED_BYTES_MAX)
        return len(self.data) - self.start

    @property
    def is_inside(self) -> bool:
        """Whether it lies between the chunks of another message: acknowledging up to it would acknowledge those."""
        return self.resume is not None and self.resume < (self.ledger, self.entry)

    def messages(self) -> list[Message]:
        """The messages, the last one first. Raises if the entry is damaged or cannot be decrypted."""
        found, chooses = self._all_messages(), self.chooses
        if chooses is None:
            return found
        span, at = span_of(self.metadata), (self.ledger, self.entry)
        return [
            message
            for message in found
            if chooses.has(hash_within(span, message.bucket_hash), (*at, max(0, message.index)))
        ]

    def choose(self) -> int:
        """The bits of its messages that are for this reader, once it is unpacked."""
        return sum(1 << max(0, message.index) for message in self.messages())

    def _all_messages(self) -> list[Message]:
        metadata = self.metadata
        if self.fault is not None:
            raise self.fault
        if metadata.encryption_keys and not self._decrypt():
            return [Message(self, -1, 0, self.start, len(self.data), metadata)]
        if metadata.compression:
            self.unpacked()
        if not self.in_batch:
            return [Message(self, -1, 0, self.start, len(self.data), metadata)]
        found = self._split()
        if self.wanted != -1:
            found = [message for message in found if self.wanted >> message.index & 1]
        found.reverse()
        return found

    def decrypted(self) -> bytes:
        """Its bytes before encryption; raises CryptoFailed if there is no key for them."""
        metadata = self.metadata
        if self.fault is not None:
            raise self.fault
        if metadata.encryption_keys:
            decryption = self.origin.decryption
            if decryption is None:
                names = ", ".join(_text(key.key) for key in metadata.encryption_keys)
                raise CryptoFailed(f"a message encrypted for {names}: open the consumer with encryption=")
            try:
                self.data = decryption.decrypt(metadata, self._payload())
            except AnabranchError:
                raise
            except Exception as error:  # The application's own keys may raise anything.
                raise CryptoFailed(f"a message cannot be decrypted: {error!r}") from error
            self.start = 0
            del metadata.encryption_keys[:]
        return self._payload()

    def unpacked(self, bytes_max: int = UNPACKED_BYTES_MAX) -> bytes:
        """Its bytes before compression and encryption; raises OversizePayload beyond `bytes_max`."""
        data, metadata = self.decrypted(), self.metadata
        if metadata.compression:
            size = metadata.uncompressed_size
            self.data = decompress(metadata.compression, data, size, size_max=bytes_max)
            self.start = 0
            metadata.compression = pb.NONE
        return self._payload()

    def _payload(self) -> bytes:
        return self.data[self.start :] if self.start else self.data

    @property
    def skips_failures(self) -> bool:
        """Whether an entry that cannot be decrypted is skipped."""
        decryption = self.origin.decryption
        return decryption is not None and decryption.on_failure == "skip"

    def _decrypt(self) -> bool:
        """Whether the payload is readable now; it is not with `on_failure="deliver"` and no key for it."""
        try:
            self.decrypted()
        except CryptoFailed:
            decryption = self.origin.decryption
            if decryption is None or decryption.on_failure != "deliver":
                raise
            # As its producer made it: one message, however many it contains.
            self.in_batch = False
            self.wanted = -1
            self.count = 1
            return False
        return True

    def _split(self) -> list[Message]:
        data = self.data
        if self.count < 1:
            raise MalformedFrame(f"a batch of {self.count} messages")
        found: list[Message] = []
        add = found.append
        at = self.start
        try:
            for index in range(self.count):
                size, tag, low, high = _HEAD(data, at)
                head = at + 4
                body = head + size
                p = head + 1
                if tag != _PAYLOAD_SIZE:
                    while tag in _BEFORE_SIZE and low < 128:
                        p += low + 1
                        tag, low, high = data[p], data[p + 1], data[p + 2]
                        p += 1
                    if tag != _PAYLOAD_SIZE:
                        return self._split_with_care()
                if low < 128:
                    at = body + low
                elif high < 128:
                    at = body + low + (high - 1 << 7)
                else:
                    at = body + varint.decode(data, p)[0]
                add(Message(self, index, head, body, at, None))
        except (StructError, IndexError, ValueError):
            at = len(data) + 1
        # Reading ahead may fail at the last message if it is small.
        return found if at <= len(data) else self._split_with_care()

    def _split_with_care(self) -> list[Message]:
        """Splits with protobuf: accepts metadata with its fields in any order, and checks every byte."""
        data = self.data
        found: list[Message] = []
        at = self.start
        for index in range(self.count):
            head = at + 4
            body = head + int.from_bytes(data[at:head], "big")
            if body > len(data):
                raise MalformedFrame(f"a batch ends within message {index} of {self.count}")
            try:
                single = _parse_single(data[head:body])
            except DecodeError as error:
                raise MalformedFrame(f"metadata of message {index} cannot be read: {error}") from error
            at = body + single.payload_size
            if not body <= at <= len(data):
                raise MalformedFrame(f"message {index} of {self.count} has {single.payload_size} bytes")
            found.append(Message(self, index, head, body, at, single))
        return found


class Message(Generic[V]):
    """One message. `index` is its place in a batch, or -1."""

    __slots__ = ("_about", "_at", "_end", "_head", "container", "index")

    def __init__(
        self, container: ReceivedEntry, index: int, head: int, at: int, end: int, about: Any
    ) -> None:
        self.container = container
        self.index = index
        self._head = head
        self._at = at
        self._end = end
        # Its own metadata: outside a batch the entry's, which has the same fields; in a batch, read when needed.
        self._about = about

    def __repr__(self) -> str:
        return f"<Message {self.id} of {self.topic}, {self._end - self._at} bytes>"

    @property
    def payload(self) -> bytes:
        """The bytes as they were sent."""
        return self.container.data[self._at : self._end]

    @property
    def value(self) -> V:
        """The payload decoded by the consumer's schema: the bytes themselves without a schema, None for a null, which
        its type leaves out."""
        if self.about.null_value:
            return None  # type: ignore[return-value]
        container = self.container
        schema = container.origin.schema
        if schema is None:
            return self.payload  # type: ignore[return-value]
        return schema.decode(self.payload, container.metadata.schema_version)  # type: ignore[no-any-return]

    @property
    def about(self) -> pb.SingleMessageMetadata | pb.MessageMetadata:
        """The protocol's own metadata of the message."""
        found = self._about
        if found is None:
            try:
                found = self._about = _parse_single(self.container.data[self._head : self._at])
            except DecodeError as error:
                raise MalformedFrame(f"metadata of message {self.id} cannot be read: {error}") from error
        return found  # type: ignore[no-any-return]

    # -- set by the producer

    @property
    def key(self) -> str | None:
        about = self.about
        return _text(about.partition_key) if about.HasField("partition_key") else None

    @property
    def key_bytes(self) -> bytes | None:
        """The key's bytes; for a key that was sent as bytes, the decoded base64 of `key`.

        If `key` is not base64 after all, its text."""
        about = self.about
        if not about.HasField("partition_key"):
            return None
        found: str | bytes = about.partition_key
        key = found.encode() if isinstance(found, str) else found
        if not about.partition_key_b64_encoded:
            return key
        try:
            return b64decode(key + b"=" * (-len(key) % 4))
        except ValueError:
            return key

    @property
    def bucket_hash(self) -> int:
        """The hash by which readers of some entry buckets choose messages: its key's, or that of its producer's
        name."""
        key = None if self.about.null_partition_key else self.key_bytes
        return bucket_hash(self.producer.encode() if key is None else key)

    @property
    def ordering_key(self) -> bytes | None:
        about = self.about
        return about.ordering_key if about.HasField("ordering_key") else None

    @property
    def properties(self) -> Mapping[str, str]:
        return {_text(item.key): _text(item.value) for item in self.about.properties}

    @property
    def event_time_ms(self) -> int:
        """The application's milliseconds since 1970, 0 if it gave none."""
        return self.about.event_time

    @property
    def sequence_id(self) -> int:
        about = self.about
        return about.sequence_id if about.HasField("sequence_id") else self.container.metadata.sequence_id

    @property
    def publish_time_ms(self) -> int:
        return self.container.metadata.publish_time

    @property
    def producer(self) -> str:
        return _text(self.container.metadata.producer_name)

    @property
    def schema_version(self) -> bytes:
        return self.container.metadata.schema_version

    @property
    def replicated_from(self) -> str:
        return self.container.metadata.replicated_from

    # -- where it is

    @property
    def topic(self) -> str:
        """The topic that was subscribed to, never one of its segments."""
        return self.container.origin.topic

    @property
    def segment(self) -> int:
        return self.container.origin.segment

    @property
    def partition(self) -> int:
        return self.container.origin.partition

    @property
    def id(self) -> MessageId:
        container = self.container
        origin = container.origin
        segment = origin.segment if origin.segment >= 0 else origin.partition
        return MessageId(segment, container.ledger, container.entry, self.index)

    @property
    def ledger(self) -> int:
        return self.container.ledger

    @property
    def entry(self) -> int:
        return self.container.entry

    @property
    def size(self) -> int:
        """How many messages its batch has."""
        return self.container.count

    @property
    def redeliveries(self) -> int:
        """How often the broker has delivered the message before."""
        return self.container.redeliveries

    @property
    def number(self) -> int:
        """Its place in the order in which its consumer gives messages out."""
        index = self.index
        return self.container.number + (index if index > 0 else 0)

    @property
    def is_last_of_entry(self) -> bool:
        return self.index in (-1, self.container.count - 1)


def read_entry(
    origin: EntryOrigin, body: pb.CommandMessage, payload: memoryview, owner: Any = None, life: Any = None
) -> ReceivedEntry:
    """An entry as a broker sent it. Its faults are raised when its messages are read.

    `payload` may be reused afterwards.
    """
    at = body.message_id
    raw = bytes(payload)
    fault: AnabranchError | None = None
    try:
        magic, crc, size = _ENTRY_HEAD(raw)
        start, end = 10, 10 + size
        if magic != MAGIC_CHECKSUM:
            # A broker has put its own metadata in front, or an old producer made the entry without a checksum.
            raw = bytes(strip_broker_metadata(memoryview(raw)))
            start, end = metadata_span(raw)
            is_whole = verify(raw)
        else:
            is_whole = crc32c(memoryview(raw)[6:]) == crc
        if not is_whole:
            raise ChecksumMismatch(f"entry {at.ledgerId}:{at.entryId} does not match its checksum")
        metadata = _parse_metadata(raw[start:end])
    except (AnabranchError, DecodeError, StructError) as error:
        metadata, end = pb.MessageMetadata(), len(raw)
        fault = error if isinstance(error, AnabranchError) else None
        fault = fault or MalformedFrame(f"entry {at.ledgerId}:{at.entryId} cannot be read: {error}")
    entry = ReceivedEntry(
        origin, at.ledgerId, at.entryId, metadata, raw, body.redelivery_count, owner, life, end
    )
    entry.fault = fault
    return entry


def signed(number: int) -> int:
    """A ledger or entry id with its sign: unsigned fields carry -1 for the place before everything, and for
    repetitions."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _text(found: str | bytes) -> str:
    """Protobuf returns a string that is not UTF-8 as bytes, and any producer may send one."""
    return found if isinstance(found, str) else found.decode(errors="replace")
