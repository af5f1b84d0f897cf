"""Compiles or loads every kernel ahead of its first use, by sending one small column through all of them."""

from __future__ import annotations

import pyarrow as pa

from anabranch.columns.decode import Entry, decode
from anabranch.columns.encode import encode
from anabranch.columns.hashing import hash_keys
from anabranch.columns.pool import Pool
from anabranch.columns.records import Walk, run_of
from anabranch.columns.recut import recut
from anabranch.columns.routing import Router, bucket_span, partition
from anabranch.model.segments import HashRange
from anabranch.model.wanted import Wanted
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_entry


def warm_up(*, encoding: bool = True, decoding: bool = True) -> None:
    """Takes about ten seconds once per machine, and a fraction of a second after that."""
    pool = Pool(0)
    keys = pa.array(["a", None, "b"])
    properties = pa.array([[("a", "b")], [], []], pa.map_(pa.string(), pa.string()))
    router = Router([0, 0x8000])
    singles = encode(pool, value=keys, key=keys, properties=properties, first_sequence_id=0)
    if encoding:
        hashes = hash_keys(keys)
        router.fill_keyless(hashes, keys, 0)
        Router.classic(2).route(hashes)
        Router([0, 0x8000], splits=[(5,), ()]).route(hashes)
        bucket_span(hashes)
        groups = partition(router.route(hashes), len(router))
        encoded = encode(
            pool,
            value=keys,
            key=keys,
            first_sequence_id=0,
            order=groups.order,
            bounds=groups.bounds,
            hashes=hashes,
        )
        recut(pool, [encoded], router)
    if decoding:
        metadata = pb.MessageMetadata(
            producer_name="", sequence_id=0, publish_time=0, num_messages_in_batch=3
        )
        entry = build_entry(metadata, singles.payload(0, 3))
        decode(pool, [Entry(0, 0, entry)], wanted=Wanted.all_of(HashRange(0, 1)))
        walk = Walk(run_of(0, 0, 0, 1, 0, len(entry)))
        walk.segments(len(entry), 0)
        walk.records(memoryview(entry))
