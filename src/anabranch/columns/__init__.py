"""Arrow columns to standard Pulsar batches and back, by compiled kernels. Needs `numba` and `pyarrow`.

Nothing else of ours imports this package when it is loaded: `send_batch` and `receive_arrow` import it at their first
call. The signatures below are stable. A producer:

    pool = Pool()                                              # one per client, shared by all
    router = Router([span.start for span in active_ranges])    # one per layout; Router.classic(n) for partitions
    hashes = hash_keys(batch["key"])                           # uint32 by row
    turn += router.fill_keyless(hashes, batch["key"], turn)    # null keys take turns (no key column: router.keyless)
    groups = partition(router.route(hashes), len(router))
    singles = encode(pool, value=batch["value"], key=batch["key"], first_sequence_id=n,
                     order=groups.order, bounds=groups.bounds, hashes=hashes)
    for segment in range(len(router)):
        for i, j in cut(singles.offsets, singles.bounds[segment], singles.bounds[segment + 1], bytes_max, rows_max):
            singles.payload(i, j)        # memoryview: the payload of one batch, to compress, checksum and send
            singles.part(i, j)           # to keep until its receipt, for `recut`
    again = recut(pool, refused_parts, new_router)             # another Singles, grouped for the new segments

A consumer:

    decoded = decode(pool, [Entry(ledger_id, entry_id, data, ack_set), …], strict=False)
    decoded.batch, decoded.counts, decoded.bad

Each module's docstring has the details. The first call of a kernel compiles it, later processes load it from disk;
`warm_up()` does that at a moment that the caller chooses, in any thread. Kernels let other threads run.
"""

from anabranch.columns.decode import SCHEMA, SCHEMA_VERSION, Decoded, Entry, decode
from anabranch.columns.encode import encode
from anabranch.columns.hashing import hash_keys
from anabranch.columns.pool import Pool
from anabranch.columns.recut import recut
from anabranch.columns.routing import Groups, Router, bucket_span, partition
from anabranch.columns.singles import Singles, cut
from anabranch.columns.warmup import warm_up

__all__ = [
    "SCHEMA",
    "SCHEMA_VERSION",
    "Decoded",
    "Entry",
    "Groups",
    "Pool",
    "Router",
    "Singles",
    "bucket_span",
    "cut",
    "decode",
    "encode",
    "hash_keys",
    "partition",
    "recut",
    "warm_up",
]
