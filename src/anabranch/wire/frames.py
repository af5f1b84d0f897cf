"""Data plane. Cuts a byte stream into frames, and checks the entries that arrive in SEND.

A frame on the wire is `[size u32] [command size u32] [BaseCommand] [entry]`, the entry only behind SEND
and MESSAGE. An entry is `[0x0e01] [CRC32C u32] [metadata size u32] [MessageMetadata] [payload]`, its
checksum covering all that follows it. Old producers leave magic and checksum out, and a broker may put
`[0x0e02] [size u32] [BrokerEntryMetadata]` in front. What we store is the entry without that last part.

Frames come out as plain tuples (a dataclass for each would cost more than reading the command does):

    (type, command, payload)   any command; payload is a memoryview, or None if nothing followed
    (6, producer_id, sequence_id, num_messages, highest_sequence_id, flags, entry)        SEND
    (6, …, flags | EXTENDED, entry, command)   a SEND of a transaction or a replicator

`highest_sequence_id` of a SEND is the last id that it names, so it is never below `sequence_id`. `num_messages` is what
consumers count, the metadata's number, whatever the command says: a batch's metadata is read here, and that of others
where it may hold such a number. Entries that cannot be accepted are flagged (`REFUSED`), and the connection stays open.
The decoder holds no socket: a shell receives into `writable()` and reports with `received(n)`, as asyncio's
BufferedProtocol does, and a test simply calls `feed`.
"""

from __future__ import annotations

from functools import cache
from struct import Struct
from typing import Any, Final, TypeAlias

from crc32c import crc32c
from google.protobuf.message import DecodeError, Message

from anabranch.errors import MalformedFrame, OversizeFrame
from anabranch.wire import pulsar_pb2 as pb

Frame: TypeAlias = tuple[Any, ...]
Buffer: TypeAlias = bytes | bytearray | memoryview

MESSAGE_BYTES_MAX: Final = 5 * 1024 * 1024
# The bytes that a frame may hold beyond the message itself: sizes, the command and the broker's own metadata.
FRAME_OVERHEAD_BYTES: Final = 10 * 1024
FRAME_BYTES_MAX: Final = MESSAGE_BYTES_MAX + FRAME_OVERHEAD_BYTES
# Between brokers.
PEER_FRAME_BYTES_MAX: Final = 16 * 1024 * 1024 + FRAME_OVERHEAD_BYTES

# Limits for connections of unknown peers. A command without its entry: parsing a megabyte of small parts takes some 20
# ms, and other connections wait meanwhile. Items of one list in a command that contain strings, such as properties:
# each of them is checked.
COMMAND_BYTES_MAX: Final = 1024 * 1024
COMMAND_ITEMS_MAX: Final = 10_000
# The same limit for the metadata of an entry: each reader of the entry parses all of it in one turn.
METADATA_BYTES_MAX: Final = 1024 * 1024

MAGIC_CHECKSUM: Final = 0x0E01
MAGIC_BROKER_METADATA: Final = 0x0E02

# Flags of a SEND tuple.
IS_CHUNK: Final = 1
IS_MARKER: Final = 2
BAD_CHECKSUM: Final = 4  # The entry is damaged: answer SEND_ERROR ChecksumError, store nothing.
NO_CHECKSUM: Final = 8
EXTENDED: Final = 16  # The whole command follows as an eighth item.
BAD_METADATA: Final = 32  # The metadata is unreadable, too large, or counts messages that cannot be there.
BAD_IDS: Final = 64  # Sequence ids that no answer could carry: ids in answers are signed.
REFUSED: Final = BAD_CHECKSUM | EXTENDED | BAD_METADATA | BAD_IDS

SEND: Final = 6

SEQUENCE_ID_MAX: Final = (1 << 63) - 1
# The most messages that a batch may claim. Each takes six bytes before compression, so this is over 5 MB of nothing.
BATCH_MESSAGES_MAX: Final = 1_000_000
_SINGLE_BYTES_MIN: Final = 6
# The tag of `num_messages_in_batch`. Metadata without this byte has no such field; the byte alone may be part of any
# other.
_COUNT_TAG: Final = 0x58

# One read of sizes, then `08 06 32 len` (type SEND and the command's length), `08 id`, `10`.
_SEND_HEAD: Final = Struct(">IIIBBB").unpack_from
_ENTRY_HEAD: Final = Struct(">HII").unpack_from
# The fixed part of that word, less the four bytes which the command size counts and `len` does not.
_SEND_WORD: Final = 0x08063200 - 4
# Reads by fixed layout may run past the received bytes, never past the buffer.
_SLACK: Final = 32

_parse_command = pb.BaseCommand.FromString
_parse_metadata: Any = pb.MessageMetadata.FromString  # Accepts any buffer, which its type does not say.
# The part that each type of command must bring along. Commands without required fields (PING) may omit it.
_BODY: Final = {
    field.number: field.name
    for field in pb.BaseCommand.DESCRIPTOR.fields
    if field.message_type is not None and any(part.is_required for part in field.message_type.fields)
}
# Too frequent for a full check (1.5 µs). Ids left out read as 0, and all ids here are the peer's own.
_UNCHECKED: Final = frozenset({SEND, 7, 9, 10, 11})  # SEND_RECEIPT, MESSAGE, ACK, FLOW
# Marks a SEND that protobuf has to read.
_UNEXPECTED: Final = (1, 0, -1)


class FrameDecoder:
    """One connection's receive buffer and the frames in it.

    Payload views point into that buffer: they are valid until the next `writable()`, so a caller copies what it keeps
    before it returns to the event loop. The buffer starts small, doubles while reads fill it, up to `buffer_bytes_max`,
    and beyond that only while a larger frame is arriving. It is halved when reads bring more than `frames_max` frames:
    the cost of small frames is per frame, and other connections wait meanwhile. Commands are as large as frames may be,
    unless `command_bytes_max` and `command_items_max` say otherwise.
    """

    __slots__ = (
        "_buffer",
        "_capacity",
        "_command_limits",
        "_end",
        "_frames_max",
        "_need",
        "_quiet",
        "_size",
        "_size_max",
        "_size_min",
        "_start",
        "_view",
        "frame_bytes_max",
    )

    def __init__(
        self,
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        buffer_bytes_min: int = 16 * 1024,
        buffer_bytes_max: int = 1024 * 1024,
        frames_max: int | None = None,
        command_bytes_max: int | None = None,
        command_items_max: int | None = None,
    ) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._command_limits = (command_bytes_max, command_items_max)
        self._size_min = buffer_bytes_min
        self._size_max = max(buffer_bytes_min, buffer_bytes_max)
        self._frames_max = buffer_bytes_max if frames_max is None else frames_max
        self._size = buffer_bytes_min  # The size of the buffer while frames are small.
        self._capacity = 0  # Its present size. Nothing is allocated before the first read.
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)
        self._start = 0  # First byte of the first incomplete frame.
        self._end = 0
        self._need = 8  # Bytes of that frame, as far as its header is known.
        self._quiet = 0

    def lift_command_limits(self) -> None:
        """Commands may be as large as frames: the peer is trusted."""
        self._command_limits = (None, None)

    @property
    def pending(self) -> int:
        """Bytes of a frame that has not arrived in full."""
        return self._end - self._start

    @property
    def buffer_bytes(self) -> int:
        """Memory held for receiving."""
        return self._capacity

    @property
    def was_filled(self) -> bool:
        """Whether the last read filled the buffer, so that more bytes are probably waiting."""
        return self._end == self._capacity

    def writable(self) -> memoryview:
        """Where to receive next; never empty. Payloads handed out before are invalid from here on."""
        start, end = self._start, self._end
        pending = end - start
        capacity = self._size
        if self._need > capacity:
            # Grow with the bytes that really came (a header alone must not make us allocate its claim),
            # and only when full, so that a large frame in small reads is copied a few times, not each time.
            full = pending >= self._capacity
            capacity = max(capacity, min(pending * 2, self._need) if full else self._capacity)
        if capacity > self._capacity or (capacity < self._capacity and pending < capacity >> 1):
            buffer = bytearray(capacity + _SLACK)
            buffer[:pending] = self._view[start:end]
            self._buffer, self._view, self._capacity = buffer, memoryview(buffer), capacity
        elif start and pending:
            # After this the frame starts at zero, so each frame is moved at most once.
            self._view[:pending] = self._view[start:end]
        self._start, self._end = 0, pending
        return self._view[pending : self._capacity]

    def received(self, count: int) -> list[Frame]:
        """The frames completed by `count` bytes put into the last `writable()`."""
        end = self._end = self._end + count
        frames = self._cut(end)
        if len(frames) > self._frames_max:
            self._size = max(self._size >> 1, self._size_min)
        elif end == self._capacity:
            self._quiet = 0
            # A buffer of twice the size may bring twice as many frames.
            if self._size < self._size_max and 2 * len(frames) <= self._frames_max:
                self._size = min(self._size * 2, self._size_max)
        elif end < self._size >> 3 and self._size > self._size_min:
            self._quiet += 1
            if self._quiet == 64:
                self._quiet = 0
                self._size = max(self._size >> 1, self._size_min)
        return frames

    def release(self) -> None:
        """Frees the memory of an idle connection. Legal whenever no `writable()` is being filled."""
        self._size = self._size_min
        if self._start == self._end:
            self._buffer = bytearray()
            self._view = memoryview(self._buffer)
            self._capacity = self._start = self._end = 0

    def feed(self, data: Buffer) -> list[Frame]:
        """The frames completed by `data`, with payloads of their own that stay valid."""
        frames: list[Frame] = []
        rest = memoryview(data)
        while len(rest):
            room = self.writable()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            rest = rest[count:]
            frames += map(_keep, self.received(count))
        return frames

    def _cut(self, end: int) -> list[Frame]:
        frames: list[Frame] = []
        buffer, view, at, limit = self._buffer, self._view, self._start, self.frame_bytes_max
        metadata_max, need = METADATA_BYTES_MAX, 8
        while end - at >= 8:
            size, command_size, word, tag, producer_id, tag_2 = _SEND_HEAD(buffer, at)
            if size > limit:
                raise OversizeFrame(f"frame of {size} bytes, the limit is {limit}")
            after = at + 4 + size
            if after > end:
                need = size + 4
                break
            entry_at = at + 8 + command_size
            if entry_at > after:
                raise MalformedFrame(f"command of {command_size} bytes in a frame of {size}")
            # Commands of up to 131 bytes: then the length is one byte and the word as expected.
            if word == _SEND_WORD + command_size and tag == 8:
                # Varints by hand: each byte adds its bits and takes off the marker of the one before.
                p = at + 15
                if producer_id > 127:
                    producer_id += (tag_2 - 1) << 7
                    tag_2 = buffer[p] if tag_2 < 128 else 0
                    p += 1
                sequence_id = buffer[p]
                p += 1
                if sequence_id > 127:
                    sequence_id += (buffer[p] - 1) << 7
                    p += 1
                    if sequence_id > 16383:
                        sequence_id += (buffer[p] - 1) << 14
                        p += 1
                        if sequence_id > 2097151:
                            sequence_id += (buffer[p] - 1) << 21
                            p += 1
                            if sequence_id > 268435455:
                                tag_2 = 0
                if p == entry_at:
                    num_messages, highest, flags = 1, sequence_id, 0
                else:
                    num_messages, highest, flags = _send_rest(buffer, p, entry_at, sequence_id)
                magic, crc, metadata_size = _ENTRY_HEAD(buffer, entry_at)
                metadata_at = entry_at + 10
                metadata_end = metadata_at + metadata_size
                if tag_2 == 16 and magic == 0x0E01 and metadata_end <= after and flags >= 0:
                    entry = view[entry_at:after]
                    if crc32c(entry[6:]) != crc:
                        flags |= BAD_CHECKSUM
                    elif (
                        num_messages != 1
                        or metadata_size > metadata_max
                        or _COUNT_TAG in buffer[metadata_at:metadata_end]
                    ):
                        num_messages, bad = _counted(buffer, metadata_at, metadata_end, after)
                        flags |= bad
                    frames.append((6, producer_id, sequence_id, num_messages, highest, flags, entry))
                    at = after
                    continue
            frames.append(_command(view, at + 8, entry_at, after, *self._command_limits))
            at = after
        self._start, self._need = at, need
        return frames


def _send_rest(buffer: bytearray, p: int, end: int, sequence_id: int) -> tuple[int, int, int]:
    """What follows the sequence id, up to `end`: messages, highest id, flags."""
    num_messages, highest, chunk, marker = 1, sequence_id, 0, 0
    while p < end:
        tag = buffer[p]
        value = buffer[p + 1]
        p += 2
        if value > 127:
            value += (buffer[p] - 1) << 7
            p += 1
            if value > 16383:
                value += (buffer[p] - 1) << 14
                p += 1
                if value > 2097151:
                    value += (buffer[p] - 1) << 21
                    p += 1
                    if value > 268435455:
                        return _UNEXPECTED
        if tag == 0x18:
            num_messages = value
        elif tag == 0x30:
            highest = max(value, sequence_id)
        elif tag == 0x38:
            chunk = IS_CHUNK if value else 0
        elif tag == 0x40:
            marker = IS_MARKER if value else 0
        else:
            return _UNEXPECTED
    return (num_messages, highest, chunk | marker) if p == end else _UNEXPECTED


def _command(
    view: memoryview, at: int, entry_at: int, after: int, bytes_max: int | None, items_max: int | None
) -> Frame:
    if bytes_max is not None and entry_at - at > bytes_max:
        raise OversizeFrame(f"command of {entry_at - at} bytes, the limit is {bytes_max}")
    try:
        command = _parse_command(bytes(view[at:entry_at]))
    except DecodeError as error:
        raise MalformedFrame(f"a command cannot be read: {error}") from error
    if not command.HasField("type"):
        raise MalformedFrame("a command of unknown type")
    kind = command.type
    name = _BODY.get(kind)
    # Parsing alone leaves absent fields at their defaults, and a request for topic "" is no request.
    if name is not None:
        if not command.HasField(name):
            raise MalformedFrame(f"command {kind} comes without its {name}")
        if kind not in _UNCHECKED and not (command.IsInitialized() and _is_text(command, items_max)):
            raise MalformedFrame(
                f"{name} lacks required fields, holds strings that are not UTF-8 or too many of them"
            )
    if kind == SEND:
        return _send(command, view[entry_at:after])
    return (kind, command, view[entry_at:after] if entry_at < after else None)


def _is_text(message: Message, items_max: int | None) -> bool:
    """Whether all strings are UTF-8. Protobuf would return the others as bytes, and each reader would fail on them."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            if any(type(item) is bytes for item in (value if field.is_repeated else (value,))):
                return False
        elif field.type == field.TYPE_MESSAGE and _may_hold_text(field.message_type):
            if field.is_repeated and items_max is not None and len(value) > items_max:
                return False
            if not all(_is_text(part, items_max) for part in (value if field.is_repeated else (value,))):
                return False
    return True


@cache
def _may_hold_text(kind: Any, seen: frozenset[str] = frozenset()) -> bool:
    """Whether messages of that descriptor can have strings. Lists of hundreds of thousands of ids are then skipped."""
    return any(
        field.type == field.TYPE_STRING
        or (
            field.type == field.TYPE_MESSAGE
            and field.message_type.full_name not in seen
            and _may_hold_text(field.message_type, seen | {kind.full_name})
        )
        for field in kind.fields
    )


def _send(command: pb.BaseCommand, payload: memoryview) -> Frame:
    """SEND parsed by protobuf: batches, chunks and everything else that the fast path does not expect."""
    send = command.send
    sequence_id = send.sequence_id
    entry = strip_broker_metadata(payload)
    num_messages, flags = _judge(entry)
    if send.is_chunk:
        flags |= IS_CHUNK
    if send.marker:
        flags |= IS_MARKER
    highest = max(sequence_id, send.highest_sequence_id)
    if highest > SEQUENCE_ID_MAX:
        flags |= BAD_IDS
    known = (SEND, send.producer_id, sequence_id, num_messages, highest)
    if send.HasField("message_id") or send.HasField("txnid_most_bits") or send.HasField("txnid_least_bits"):
        return (*known, flags | EXTENDED, entry, command)
    return (*known, flags, entry)


def _magic(view: memoryview) -> int:
    return view[0] << 8 | view[1] if len(view) > 1 else 0


def strip_broker_metadata(payload: memoryview) -> memoryview:
    """The entry as its producer made it: `payload` without the broker's metadata in front."""
    if _magic(payload) != MAGIC_BROKER_METADATA:
        return payload
    size = int.from_bytes(payload[2:6], "big")
    if len(payload) < 6 + size:
        raise MalformedFrame(f"broker metadata of {size} bytes in {len(payload)} bytes")
    return payload[6 + size :]


def _judge(entry: memoryview) -> tuple[int, int]:
    """How many messages an entry holds, and its flags. Raises if it is no entry at all, which no client sends."""
    size = len(entry)
    if _magic(entry) == MAGIC_CHECKSUM:
        if size < 10:
            raise MalformedFrame(f"entry of {size} bytes")
        _, crc, metadata_size = _ENTRY_HEAD(entry)
        if crc32c(entry[6:]) != crc:
            # Checked before the sizes: damage in transit must not cost the producer its connection.
            return 1, BAD_CHECKSUM
        start, flags = 10, 0
    else:
        metadata_size = int.from_bytes(entry[:4], "big")
        start, flags = 4, NO_CHECKSUM
    if metadata_size > size - start:
        raise MalformedFrame(f"metadata of {metadata_size} bytes in an entry of {size}")
    messages, bad = _counted(entry, start, start + metadata_size, size)
    return messages, flags | bad


def _counted(data: bytearray | memoryview, start: int, end: int, after: int) -> tuple[int, int]:
    """How many messages the metadata in [start, end) counts, the payload ending at `after`; and `BAD_METADATA` or 0."""
    if end - start > METADATA_BYTES_MAX:
        return 1, BAD_METADATA
    try:
        metadata = _parse_metadata(data[start:end])
    except DecodeError:
        return 1, BAD_METADATA
    # 1 where the field is missing. Each further check costs as much as a tenth of the whole frame.
    count = metadata.num_messages_in_batch
    if count == 1 or 1 < count <= (after - end) // _SINGLE_BYTES_MIN:
        return count, 0
    size = metadata.uncompressed_size if metadata.compression else 0
    if 1 < count <= min(size // _SINGLE_BYTES_MIN, BATCH_MESSAGES_MAX):
        return count, 0
    return 1, BAD_METADATA


def verify(entry: Buffer) -> bool:
    """Whether the entry's bytes match its checksum. One without a checksum has nothing to match."""
    view = strip_broker_metadata(memoryview(entry))
    if _magic(view) != MAGIC_CHECKSUM:
        return True
    return len(view) >= 6 and crc32c(view[6:]) == int.from_bytes(view[2:6], "big")


def _keep(frame: Frame) -> Frame:
    """The frame with its payload copied out of the receive buffer."""
    return tuple(memoryview(bytes(item)) if type(item) is memoryview else item for item in frame)
