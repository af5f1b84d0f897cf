"""Data plane. Readers that want the entries of some entry buckets only (PIP-486). Pure."""

from __future__ import annotations

from bisect import bisect_right

from anabranch.broker.dispatch.selector import RANGES_MAX
from anabranch.broker.errors import ConsumerAssignError
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.extensions import WANTED_HASHES, read_hashes
from anabranch.wire.stamps import stamp_of


class WantedHashes:
    """The ranges of bucket hashes that a reader names: it is sent whole each entry that may have keys of them."""

    def __init__(self, text: str) -> None:
        """Raises ConsumerAssignError for a text that names no ranges."""
        ranges = read_hashes(text)
        if ranges is None or len(ranges) > RANGES_MAX:
            raise ConsumerAssignError(
                f"{WANTED_HASHES}={text[:100]!r}: give up to {RANGES_MAX} rising ranges such as 0000-3fff,8000-bfff"
            )
        self._starts = [one.start for one in ranges]
        self._ends = [one.end for one in ranges]

    def touch(self, metadata: pb.MessageMetadata) -> bool:
        stamp = stamp_of(metadata)
        if stamp is None:
            return True
        # The last range that begins within the stamp or before it.
        at = bisect_right(self._starts, stamp[1]) - 1
        return at >= 0 and self._ends[at] >= stamp[0]
