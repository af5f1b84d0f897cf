"""Keys in the wrong segment are noticed, whichever half of the hash producers go by."""

from __future__ import annotations

from base64 import b64encode

import pytest

from anabranch.broker.topic.key_sample import (
    METADATA_BYTES_MAX,
    UNPACKED_BYTES_MAX,
    KeySample,
    first_key,
)
from anabranch.model.key_routing import together
from anabranch.model.keyhash import bucket_hash, segment_hash
from anabranch.model.segments import HashRange
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch, build_message

LOWER = HashRange(0, 0x7FFF)


def entry(
    key: str | None,
    *,
    batched: bool = False,
    compression: int = pb.NONE,
    base64: bool = False,
    producer: str = "p",
) -> bytes:
    metadata = pb.MessageMetadata(producer_name=producer, sequence_id=1, publish_time=1)
    metadata.compression = compression  # type: ignore[assignment]  # An int of CompressionType.
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


def test_a_producer_of_each_kind_is_named_with_advice() -> None:
    sample = KeySample(LOWER)
    for key in keys(True, False, 5):
        sample.look(entry(key, producer="ours"))
    assert (sample.seen.routing, sample.seen.advice) == ("high", None)
    for key in keys(False, True, 2):
        sample.look(entry(key, producer="theirs"))
    assert sample.seen.routing == "mixed"
    assert "'theirs' routes keys by the low half" in (sample.seen.advice or "")
    assert "'ours' by the high half" in (sample.seen.advice or "")


def test_a_producer_that_neither_half_explains_is_named_with_advice() -> None:
    sample = KeySample(LOWER)
    sample.look(entry(keys(False, False, 1)[0], producer="odd"))
    assert sample.seen.routing == "mixed"
    assert "producer 'odd' sends keys to segments that neither half" in (sample.seen.advice or "")


def test_a_topic_put_right_is_right_again_after_a_while() -> None:
    sample = KeySample(LOWER)
    good, bad = keys(True, False, 1)[0], keys(False, True, 1)[0]
    for _ in range(20):
        sample.look(entry(bad))
    looks = 0
    while sample.seen.routing != "high":
        sample.look(entry(good))
        looks += 1
    # At eight looks every ten seconds.
    assert 200 < looks < 3_000
    assert sample.seen.low_producer == ""


def test_one_message_of_a_hundred_still_shows() -> None:
    sample = KeySample(LOWER)
    good, bad = keys(True, False, 1)[0], keys(False, True, 1)[0]
    missed = 0
    for number in range(3_000):
        sample.look(entry(bad if number % 100 == 0 else good))
        missed += number > 0 and sample.seen.routing != "mixed"
    assert missed == 0


def test_producers_that_agree_within_each_segment_may_differ_between_segments() -> None:
    samples = [KeySample(LOWER), KeySample(LOWER)]
    samples[0].look(entry(keys(True, False, 1)[0], producer="ours"))
    samples[1].look(entry(keys(False, True, 1)[0], producer="theirs"))
    assert [sample.seen.routing for sample in samples] == ["high", "low"]
    whole = together(sample.seen for sample in samples)
    assert (whole.routing, whole.high_producer, whole.low_producer) == ("mixed", "ours", "theirs")


def entry_of(raw_metadata: bytes, body: bytes = b"x") -> bytes:
    return len(raw_metadata).to_bytes(4, "big") + raw_metadata + body


def test_a_key_or_name_that_is_not_utf_8_is_a_key_like_any_other() -> None:
    metadata = pb.MessageMetadata(producer_name="name", sequence_id=1, publish_time=1, partition_key="key")
    raw = metadata.SerializeToString().replace(b"key", b"k\xa4y").replace(b"name", b"n\xa4me")
    assert first_key(entry_of(raw)) == b"k\xa4y"
    sample = KeySample(HashRange(0, 0))
    sample.look(entry_of(raw))
    assert sample.seen.odd_producer == "n\ufffdme"
    single = pb.SingleMessageMetadata(partition_key="key", payload_size=1).SerializeToString()
    single = single.replace(b"key", b"k\xa4y")
    batched = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=1)
    body = len(single).to_bytes(4, "big") + single + b"x"
    assert first_key(entry_of(batched.SerializeToString(), body)) == b"k\xa4y"


def test_a_look_unpacks_only_what_is_small() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, compression=pb.ZLIB)
    single = pb.SingleMessageMetadata(partition_key="k")
    small, large = bytes(UNPACKED_BYTES_MAX // 2), bytes(UNPACKED_BYTES_MAX)
    assert first_key(build_batch(metadata, [(single, small)])) == b"k"
    assert first_key(build_batch(metadata, [(single, large)])) is None


def test_a_look_parses_only_what_is_small() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, partition_key="k")
    assert first_key(build_message(metadata, b"x")) == b"k"
    metadata.properties.add(key="p", value="x" * METADATA_BYTES_MAX)
    assert first_key(build_message(metadata, b"x")) is None
