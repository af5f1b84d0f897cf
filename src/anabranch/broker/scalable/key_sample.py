"""Whether producers put keys where they belong: a look at one message of a segment now and then.

A key belongs to a segment by 16 bits of its hash: the high ones in Pulsar's master and here, the low ones in 5.0.0-M1.
A topic whose producers agree on either keeps its keys in order. One with both kinds, or with keys that neither
explains, does not, and that is worth telling. A look costs some microseconds (more if a batch
must be unpacked), and there is one for each turn of the rates.
"""

from __future__ import annotations

from base64 import b64decode

from anabranch.errors import AnabranchError
from anabranch.model.keyhash import bucket_hash, segment_hash
from anabranch.model.segments import HashRange
from anabranch.wire.batch import decompress, split_batch
from anabranch.wire.entry import parse_metadata, payload
from anabranch.wire.frames import Buffer


class KeySample:
    """The keys seen in one segment, by which half of their hash explains that they are there."""

    __slots__ = ("_by_high", "_by_low", "_by_neither", "_range")

    def __init__(self, span: HashRange) -> None:
        self._range = span
        self._by_high = 0
        self._by_low = 0
        self._by_neither = 0

    @property
    def outside(self) -> int:
        """Keys that do not belong here, whichever half is the right one."""
        return self._by_neither + min(self._by_high, self._by_low)

    def look(self, entry: Buffer) -> None:
        key = first_key(entry)
        if key is None:
            return
        by_high, by_low = segment_hash(key) in self._range, bucket_hash(key) in self._range
        if by_high != by_low:
            self._by_high += by_high
            self._by_low += by_low
        elif not by_high:
            self._by_neither += 1


def first_key(entry: Buffer) -> bytes | None:
    """The key of an entry's first message; None if it has none, or if it cannot be read here."""
    try:
        metadata = parse_metadata(entry)
        if metadata.HasField("partition_key"):
            return _decoded(metadata.partition_key, metadata.partition_key_b64_encoded)
        if metadata.encryption_keys or not metadata.HasField("num_messages_in_batch"):
            return None
        body: Buffer = payload(entry)
        if metadata.compression:
            body = decompress(metadata.compression, body, metadata.uncompressed_size)
        single = split_batch(body, 1)[0][0]
        if not single.HasField("partition_key"):
            return None
        return _decoded(single.partition_key, single.partition_key_b64_encoded)
    except (AnabranchError, ValueError, IndexError):
        return None


def _decoded(key: str, is_base64: bool) -> bytes:
    return b64decode(key) if is_base64 else key.encode()
