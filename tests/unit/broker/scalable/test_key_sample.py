"""Keys in the wrong segment are noticed, whichever half of the hash producers go by."""

from __future__ import annotations

from base64 import b64encode

import pytest

from anabranch.broker.scalable.key_sample import KeySample, first_key
from anabranch.model.keyhash import bucket_hash, segment_hash
from anabranch.model.segments import HashRange
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch, build_message

LOWER = HashRange(0, 0x7FFF)


def entry(
    key: str | None, *, batched: bool = False, compression: int = pb.NONE, base64: bool = False
) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, compression=compression)  # type: ignore[arg-type]
    text = b64encode(key.encode()).decode() if base64 and key is not None else key
    if not batched:
        if text is not None:
            metadata.partition_key, metadata.partition_key_b64_encoded = text, base64
        return build_message(metadata, b"x")
    single = pb.SingleMessageMetadata()
    if text is not None:
        single.partition_key, single.partition_key_b64_encoded = text, base64
    return build_batch(metadata, [(single, b"x"), (pb.SingleMessageMetadata(partition_key="other"), b"y")])


def keys(by_high: bool, by_low: bool, count: int) -> list[str]:
    """Keys that belong to the lower half by those halves of their hash, and only those."""
    found = (f"k{n}" for n in range(10_000))
    return [
        key
        for key in found
        if (segment_hash(key.encode()) in LOWER) is by_high and (bucket_hash(key.encode()) in LOWER) is by_low
    ][:count]


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("base64", [False, True])
@pytest.mark.parametrize("compression", [pb.NONE, pb.ZLIB])
def test_the_key_of_the_first_message_is_found(batched: bool, base64: bool, compression: int) -> None:
    assert first_key(entry("a key", batched=batched, base64=base64, compression=compression)) == b"a key"


@pytest.mark.parametrize("odd", [entry(None), entry(None, batched=True), b"", b"nonsense", entry("k")[:20]])
def test_what_has_no_readable_key_is_passed_over(odd: bytes) -> None:
    assert first_key(odd) is None
    sample = KeySample(LOWER)
    sample.look(odd)
    assert sample.outside == 0


@pytest.mark.parametrize(("by_high", "by_low"), [(True, False), (False, True), (True, True)])
def test_producers_that_agree_on_either_half_are_right(by_high: bool, by_low: bool) -> None:
    sample = KeySample(LOWER)
    for key in keys(by_high, by_low, 20):
        sample.look(entry(key))
    assert sample.outside == 0


def test_keys_that_neither_half_explains_are_outside() -> None:
    sample = KeySample(LOWER)
    for key in keys(False, False, 3):
        sample.look(entry(key))
    assert sample.outside == 3


def test_producers_of_both_kinds_on_one_topic_are_noticed() -> None:
    sample = KeySample(LOWER)
    for key in [*keys(True, False, 5), *keys(False, True, 2)]:
        sample.look(entry(key))
    assert sample.outside == 2
