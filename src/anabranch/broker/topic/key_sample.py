"""Checks on samples whether producers publish keys to the segments that the keys belong to.

A key belongs to a segment by 16 bits of its hash: the high bits in Pulsar's master and here, the low bits in 5.0.0-M1.
A topic whose producers agree on either keeps its keys in order. A topic with both kinds of producers, or with keys that
neither rule explains, does not, and is reported with the name of a producer of each kind. A sample costs some
microseconds (more if a batch must be unpacked; large entries are skipped), and a few are taken each time the rates are
updated. Older samples count for less and less, so that the figures of a corrected topic are right again some minutes
later.
"""

from __future__ import annotations

from base64 import b64decode
from typing import Final

from anabranch.errors import AnabranchError
from anabranch.model.key_routing import KeysSeen
from anabranch.model.keyhash import bucket_hash, segment_hash
from anabranch.model.segments import HashRange
from anabranch.wire.batch import decompress, split_batch
from anabranch.wire.entry import metadata_size, parse_metadata, payload
from anabranch.wire.frames import Buffer

# The number of samples after which their counts are halved: a producer that sends one message of a hundred still shows.
LOOKS_MAX: Final = 512
# Samples are read on the event loop: metadata larger than the first limit is not parsed, and payloads that unpack to
# more than the second, which is twice a client's default batch size, are not unpacked.
METADATA_BYTES_MAX: Final = 16 * 1024
UNPACKED_BYTES_MAX: Final = 256 * 1024


class KeySample:
    """The keys sampled in one segment."""

    __slots__ = ("_range", "seen")

    def __init__(self, span: HashRange) -> None:
        self._range = span
        self.seen = KeysSeen()

    @property
    def outside(self) -> int:
        return self.seen.outside

    def look(self, entry: Buffer) -> None:
        key = first_key(entry)
        if key is None:
            return
        by_high, by_low = segment_hash(key) in self._range, bucket_hash(key) in self._range
        if by_high and by_low:
            return
        name: str | bytes = parse_metadata(entry).producer_name
        self._count(by_high, by_low, name if isinstance(name, str) else name.decode(errors="replace"))

    def _count(self, by_high: bool, by_low: bool, producer: str) -> None:
        seen = self.seen
        share = 2 if seen.by_high + seen.by_low + seen.by_neither >= LOOKS_MAX else 1
        high = seen.by_high // share + by_high
        low = seen.by_low // share + by_low
        neither = seen.by_neither // share + (not by_high and not by_low)
        self.seen = KeysSeen(
            high,
            low,
            neither,
            producer if by_high else seen.high_producer if high else "",
            producer if by_low else seen.low_producer if low else "",
            producer if not by_high and not by_low else seen.odd_producer if neither else "",
        )


def first_key(entry: Buffer) -> bytes | None:
    """The key of an entry's first message; None if the message has no key, or if the key cannot be read here."""
    try:
        if metadata_size(entry) > METADATA_BYTES_MAX:
            return None
        metadata = parse_metadata(entry)
        if metadata.HasField("partition_key"):
            return _decoded(metadata.partition_key, metadata.partition_key_b64_encoded)
        if metadata.encryption_keys or not metadata.HasField("num_messages_in_batch"):
            return None
        body: Buffer = payload(entry)
        if metadata.compression:
            body = decompress(
                metadata.compression, body, metadata.uncompressed_size, size_max=UNPACKED_BYTES_MAX
            )
        single = split_batch(body, 1)[0][0]
        if not single.HasField("partition_key"):
            return None
        return _decoded(single.partition_key, single.partition_key_b64_encoded)
    except (AnabranchError, ValueError, IndexError):
        return None


def _decoded(key: str | bytes, is_base64: bool) -> bytes:
    # Protobuf returns a string that is not UTF-8 as bytes.
    raw = key.encode() if isinstance(key, str) else key
    return b64decode(raw) if is_base64 else raw
