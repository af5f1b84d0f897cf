"""`python -m bench.columns`: what the column kernels do on one core, beside the scalar codec in the same run.

Each line is the best of several rounds, after warm-up, over a column larger than the caches; CPU time of this thread,
which a busy machine changes less. "Fresh" decodes without the pool: what first touches of new memory cost. The last
lines are new processes: the CPU time of the first calls with nothing compiled, and with compiled code on disk.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.columns import Entry, Pool, Router, cut, decode, encode, hash_keys, partition, recut, warm_up
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch, build_entry, messages

BATCH_BYTES, BATCH_ROWS = 128 * 1024, 1000
SEGMENTS = 16
# Million messages a second for 100 B, gigabytes of payload a second for 1 KB; keys a second for hashing.
AIMS = {"hash": 50.0, "encode 100": 8.0, "decode 100": 8.0, "encode 1024": 1.5, "decode 1024": 1.5}


def best_s(work: Callable[[], object], rounds: int) -> float:
    """CPU seconds of the fastest round."""
    best = float("inf")
    for _ in range(rounds):
        start = time.thread_time()
        work()
        best = min(best, time.thread_time() - start)
    return best


def line(name: str, rows: int, size: int, seconds: float, aim: str = "") -> None:
    rate, volume = rows / seconds / 1e6, rows * size / seconds / 1e9
    goal = ""
    if aim:
        reached = volume if aim.endswith("1024") else rate
        goal = f"   aim {AIMS[aim]:g}: {'reached' if reached >= AIMS[aim] else 'MISSED'}"
    print(f"{name:<44}{rate:9.2f} M/s {volume:8.2f} GB/s{goal}", flush=True)


def columns_of(rows: int, size: int) -> tuple[Any, Any]:
    """Short keys and values of one size, as Arrow arrays."""
    keys = pa.array([f"customer-{i * 7919 % 100_000}" for i in range(rows)])
    data = np.random.default_rng(1).integers(0, 256, rows * size, np.uint8)
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(size)
    return keys, pa.Array.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)], 0
    )


def entries_of(singles: Any) -> list[Entry]:
    batches = cut(singles.offsets, 0, len(singles), BATCH_BYTES, BATCH_ROWS)
    found = []
    for place, (i, j) in enumerate(batches):
        head = pb.MessageMetadata(
            producer_name="bench", sequence_id=i, publish_time=1, num_messages_in_batch=j - i
        )
        found.append(Entry(1, place, build_entry(head, singles.payload(i, j))))
    return found


def scalar(rows: int, size: int) -> None:
    values = [(f"customer-{i}", bytes(size)) for i in range(rows)]

    def build() -> bytes:
        head = pb.MessageMetadata(producer_name="bench", sequence_id=0, publish_time=1)
        singles = (
            (pb.SingleMessageMetadata(partition_key=key, sequence_id=i), value)
            for i, (key, value) in enumerate(values)
        )
        return build_batch(head, singles)

    line(f"scalar encode, {size} B", rows, size, best_s(build, 3))
    entry = build()
    line(f"scalar decode, {size} B", rows, size, best_s(lambda: messages(entry), 3))


def kernels(size: int, volume: int, rounds: int) -> None:
    rows = volume // size
    keys, values = columns_of(rows, size)
    pool, fresh = Pool(1 << 30), Pool(0)
    router = Router([i * (1 << 16) // SEGMENTS for i in range(SEGMENTS)])
    hashes = hash_keys(keys)
    groups = partition(router.route(hashes), SEGMENTS)

    def write(**more: Any) -> Any:
        return encode(pool, value=values, key=keys, first_sequence_id=1 << 20, **more)

    def send() -> None:
        found = hash_keys(keys)
        parts = partition(router.route(found), SEGMENTS)
        one = write(order=parts.order, bounds=parts.bounds, hashes=found)
        for i, j in zip(one.bounds[:-1].tolist(), one.bounds[1:].tolist(), strict=True):
            cut(one.offsets, i, j, BATCH_BYTES, BATCH_ROWS)

    line(f"encode, {size} B", rows, size, best_s(write, rounds), f"encode {size}")
    ordered = best_s(lambda: write(order=groups.order, bounds=groups.bounds, hashes=hashes), rounds)
    line(f"encode in the order of {SEGMENTS} segments, {size} B", rows, size, ordered)
    line(f"hash, route, encode and cut, {size} B", rows, size, best_s(send, rounds))
    singles = write(order=groups.order, bounds=groups.bounds, hashes=hashes)
    line(f"recut, {size} B", rows, size, best_s(lambda: recut(pool, [singles], router), rounds))
    entries = entries_of(singles)
    unchecked = best_s(lambda: decode(pool, entries, verify=False), rounds)
    line(f"decode, checksums left out, {size} B", rows, size, unchecked)
    line(f"decode, {size} B", rows, size, best_s(lambda: decode(pool, entries), rounds), f"decode {size}")
    line(f"decode into fresh memory, {size} B", rows, size, best_s(lambda: decode(fresh, entries), rounds))


def hashing(rows: int, rounds: int) -> None:
    keys, _ = columns_of(rows, 1)
    hashes = hash_keys(keys)
    line("hash short keys", rows, 15, best_s(lambda: hash_keys(keys), rounds), "hash")
    router = Router([i * (1 << 16) // SEGMENTS for i in range(SEGMENTS)])
    line("route", rows, 4, best_s(lambda: router.route(hashes), rounds))
    index = router.route(hashes)
    line("partition", rows, 4, best_s(lambda: partition(index, SEGMENTS), rounds))
    single = [
        Entry(
            1,
            i,
            build_entry(pb.MessageMetadata(producer_name="b", sequence_id=i, publish_time=1), bytes(100)),
        )
        for i in range(20_000)
    ]
    pool = Pool()
    line(
        "decode, an entry for each message, 100 B", 20_000, 100, best_s(lambda: decode(pool, single), rounds)
    )


FIRST_CALL = """
import time
start = time.process_time()
from anabranch.columns import warm_up
loaded = time.process_time()
warm_up(encoding={encoding}, decoding={decoding})
print(f"{{loaded - start:.2f}} s to import, {{time.process_time() - loaded:.2f}} s for the first calls")
"""


def first_calls() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("nothing compiled", "compiled code on disk"):
            code = FIRST_CALL.format(encoding=True, decoding=True)
            ran = subprocess.run(
                [sys.executable, "-c", code],
                env={**os.environ, "NUMBA_CACHE_DIR": folder},
                capture_output=True,
                text=True,
                check=True,
            )
            print(f"{name:<44}{ran.stdout.strip()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=64, help="payload of each column")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    warm_up()
    hashing(2_000_000, args.rounds)
    for size in (100, 1024):
        kernels(size, args.megabytes << 20, args.rounds)
        scalar(2000, size)
    first_calls()


if __name__ == "__main__":
    main()
