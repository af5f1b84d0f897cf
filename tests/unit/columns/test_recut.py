"""Messages that one segment refused are grouped for the next ones, whole and in order."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.columns import Pool, Router, Singles, encode, hash_keys, partition, recut
from anabranch.wire.batch import split_batch

POOL = Pool()


def encoded(keys: list[str], first: int, router: Router) -> Singles:
    column = pa.array(keys, pa.string())
    hashes = hash_keys(column)
    groups = partition(router.route(hashes), len(router))
    return encode(
        POOL,
        value=column,
        key=column,
        order=groups.order,
        bounds=groups.bounds,
        hashes=hashes,
        first_sequence_id=first,
    )


@given(
    st.lists(st.lists(st.text(max_size=40), max_size=20), max_size=4),
    st.integers(1, 4),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_every_message_goes_once_to_its_new_segment_in_rising_order(
    tables: list[list[str]], before: int, after: int, chance: object
) -> None:
    old = Router([i * 0x10000 // before for i in range(before)])
    new = Router([i * 0x10000 // after for i in range(after)])
    parts, sent, first = [], {}, 100
    for keys in tables:
        singles = encoded(keys, first, old)
        sent.update({first + row: key for row, key in enumerate(keys)})
        bounds = singles.bounds.tolist()
        parts += [singles.part(i, j) for i, j in pairwise(bounds)]
        first += len(keys)
    chance.shuffle(parts)  # type: ignore[attr-defined]
    result = recut(POOL, parts, new)
    assert len(result.bounds) == after + 1
    found = {}
    for group in range(after):
        i, j = result.bounds[group : group + 2].tolist()
        ids = result.sequence_ids[i:j].tolist()
        assert ids == sorted(ids)
        assert set(new.route(result.hashes[i:j]).tolist()) <= {group}
        for sequence_id, (single, payload) in zip(ids, split_batch(result.payload(i, j), j - i), strict=True):
            assert single.sequence_id == sequence_id
            assert single.partition_key.encode() == bytes(payload)
            found[sequence_id] = single.partition_key
    assert found == sent


def test_messages_without_hashes_cannot_be_routed_again() -> None:
    singles = encode(POOL, value=pa.array([b"a"]), first_sequence_id=0)
    with pytest.raises(ValueError, match="encode them with `hashes`"):
        recut(POOL, [singles], Router([0]))
