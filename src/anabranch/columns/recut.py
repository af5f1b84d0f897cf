"""Data plane. Regroups messages that a sealed segment refused, for the segments that follow it.

Nothing is encoded again: a message's bytes do not depend on the batch or the segment it goes to.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from anabranch.columns.arrow import address_of
from anabranch.columns.jit import kernel
from anabranch.columns.memory import copy
from anabranch.columns.pool import Pool
from anabranch.columns.routing import Router, partition
from anabranch.columns.singles import Singles


def recut(pool: Pool, pending: Sequence[Singles], router: Router) -> Singles:
    """All messages of `pending`, by their new segments, in rising sequence ids within each.

    Each part must have its hashes; parts may come from different buffers and overlap in their ids. The result lies in
    memory of its own, with `bounds` by place in `router`.
    """
    if any(len(part.hashes) != len(part) for part in pending):
        raise ValueError("messages without their hashes cannot be routed again: encode them with `hashes`")
    sequence_ids = (
        np.concatenate([part.sequence_ids for part in pending]) if pending else np.empty(0, np.int64)
    )
    hashes = np.concatenate([part.hashes for part in pending]) if pending else np.empty(0, np.uint32)
    groups = partition(router.route(hashes), len(router))
    order = groups.order
    if np.any(sequence_ids[1:] < sequence_ids[:-1]):
        # Sorted by id first, then grouped: grouping keeps the order it finds.
        rising = np.argsort(sequence_ids, kind="stable").astype(np.int32)
        order = rising[partition(router.route(hashes[rising]), len(router)).order]
    spans = np.empty((len(sequence_ids), 2), np.int64)
    ends = np.empty(len(sequence_ids), np.int64)
    at = 0
    for part in pending:
        base, until = address_of(part.buffer), at + len(part)
        spans[at:until, 0] = part.offsets[:-1] + base
        spans[at:until, 1] = np.diff(part.offsets)
        ends[at:until] = base + len(part.buffer)
        at = until
    lease = pool.lease(int(spans[:, 1].sum()))
    offsets = np.empty(len(order) + 1, np.int64)
    size = _gather(lease.address, offsets, order, spans, ends)
    return Singles(lease.array(size), offsets, sequence_ids[order], hashes[order], groups.bounds)


@kernel
def _gather(
    out: int,
    offsets: npt.NDArray[np.int64],
    order: npt.NDArray[np.int32],
    spans: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
) -> int:
    at = out
    for place in range(len(order)):
        offsets[place] = at - out
        row = order[place]
        at = copy(at, spans[row, 0], spans[row, 1], ends[row])
    offsets[len(order)] = at - out
    return at - out
