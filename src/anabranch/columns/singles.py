"""Data plane. Encoded messages of many rows in one buffer, and the cutting of it into batches.

`Singles` is what `encode` and `recut` give: each message as a batch holds it, `[size u32] [metadata] [payload]`, one
behind the other, so that any run of them is the payload of a standard batch.

    for i, j in cut(singles.offsets, start, end, bytes_max=128 * 1024, rows_max=1000):
        payload = singles.payload(i, j)              # a memoryview, nothing is copied
        first, last = singles.sequence_ids[i], singles.sequence_ids[j - 1]
        low, high = bucket_span(singles.hashes[i:j])   # for entry_hash_min and entry_hash_max
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from anabranch.columns.hashing import Hashes
from anabranch.columns.pool import Bytes
from anabranch.columns.routing import Bounds

Offsets = npt.NDArray[np.int64]


class Singles(NamedTuple):
    """Message i lies at `buffer[offsets[i]:offsets[i + 1]]`, those of group g at `bounds[g]:bounds[g + 1]`.

    The memory goes back to its pool when nothing refers to `buffer`, or to a view of it, any more.
    """

    buffer: Bytes
    offsets: Offsets
    sequence_ids: npt.NDArray[np.int64]
    hashes: Hashes  # In the order of the messages; empty if encoded without.
    bounds: Bounds

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def payload(self, i: int, j: int) -> memoryview:
        """The payload of a batch of the messages from `i` to before `j`."""
        return self.buffer.data[int(self.offsets[i]) : int(self.offsets[j])]

    def part(self, i: int, j: int) -> Singles:
        """The messages from `i` to before `j`, of one group, in the same memory."""
        return Singles(
            self.buffer,
            self.offsets[i : j + 1],
            self.sequence_ids[i:j],
            self.hashes[i:j],
            np.array([0, j - i], np.int64),
        )


def cut(offsets: Offsets, start: int, end: int, bytes_max: int, rows_max: int) -> list[tuple[int, int]]:
    """Batches (i, j) of the messages from `start` to before `end`, each as full as the limits allow.

    A message larger than `bytes_max` is a batch of its own: the caller sends it in chunks, or refuses it.
    """
    batches = []
    while start < end:
        limit = min(end, start + rows_max)
        # The last offset within the limit is the end of the last message that fits.
        stop = (
            start + int(np.searchsorted(offsets[start : limit + 1], offsets[start] + bytes_max, "right")) - 1
        )
        stop = max(stop, start + 1)
        batches.append((start, stop))
        start = stop
    return batches
