"""Producers of hidden writes: what they tell the broker, and when they give up."""

from __future__ import annotations

from uuid import UUID

import pyarrow as pa
import pytest

from anabranch.client import Client
from anabranch.client.errors import AttemptDropped, AttemptInDoubt, BadArgument, WriteDecided
from anabranch.client.hidden_writes.write import Write
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.entry import parse_metadata
from anabranch.wire.extensions import ATTEMPT_DROPPED, WRITE_DECIDED
from unit.client.scripted import ScriptedBroker

TOPIC = "topic://public/default/t"
ATTEMPT = UUID("0123456789abcdeffedcba9876543210")
WRITE = Write("query-1", 7, ATTEMPT)


async def test_a_hidden_producer_names_its_write_and_every_entry_its_attempt(
    script: ScriptedBroker, client: Client
) -> None:
    large = b"x" * (6 << 20)
    async with client.producer(TOPIC, write=WRITE, chunking=True, properties={"app": "a"}) as producer:
        await producer.post(b"batched", key="k")
        await producer.post(b"alone", key="k", deliver_at=1)
        await producer.post(large, key="k")
        await producer.flush()
        await producer.send_batch(pa.table({"value": [b"row"] * 10}))
        written = producer.topics_written
    told = {item.key: item.value for item in script.asked[0].metadata}
    assert told == {
        "app": "a",
        "anabranch.write": "query-1",
        "anabranch.batch": "7",
        "anabranch.attempt": "0123456789abcdeffedcba9876543210",
    }
    found = [parse_metadata(entry) for entry in script.entries]
    assert len(found) >= 5
    assert {(one.txnid_most_bits, one.txnid_least_bits) for one in found} == {
        (0x0123456789ABCDEF, 0xFEDCBA9876543210)
    }
    assert written == {topic for topic, _ in script.sent}


async def test_an_ordinary_producer_says_nothing_of_writes(script: ScriptedBroker, client: Client) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send(b"1")
    assert not parse_metadata(script.entries[0]).HasField("txnid_most_bits")
    assert not script.asked[0].metadata


async def test_opening_a_producer_of_a_decided_write_says_so(script: ScriptedBroker, client: Client) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send(b"1")
    script.refusals[script.asked[0].topic] = [pb.UnknownError]
    script.refusal_text = f"{WRITE_DECIDED}: query-1/7"
    with pytest.raises(WriteDecided):
        await client.producer(TOPIC, write=WRITE)


async def test_opening_a_producer_of_a_dropped_attempt_says_so(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send(b"1")
    script.refusals[script.asked[0].topic] = [pb.UnknownError]
    script.refusal_text = f"{ATTEMPT_DROPPED}: query-1/7"
    with pytest.raises(AttemptDropped) as caught:
        await client.producer(TOPIC, write=WRITE)
    assert caught.value.retryable


async def test_a_write_that_is_decided_meanwhile_ends_the_producer(
    script: ScriptedBroker, client: Client
) -> None:
    producer = await client.producer(TOPIC, write=WRITE)
    script.receipts = False
    await producer.post(b"1")
    await script.until(lambda: script.sent)
    topic, sequence = script.sent[0]
    link, number = script.producers[topic]
    link.send(
        pb.BaseCommand.SEND_ERROR,
        "send_error",
        producer_id=number,
        sequence_id=sequence,
        error=pb.NotAllowedError,
        message=f"{WRITE_DECIDED}: query-1/7",
    )
    with pytest.raises(WriteDecided):
        await producer.flush()
    with pytest.raises(WriteDecided):
        await producer.post(b"2")


async def test_a_lost_connection_with_sends_unanswered_ends_the_attempt(
    script: ScriptedBroker, client: Client
) -> None:
    producer = await client.producer(TOPIC, write=WRITE)
    script.receipts = False
    await producer.post(b"1")
    await script.until(lambda: script.sent)
    script.links[-1].cut()
    with pytest.raises(AttemptInDoubt):
        await producer.flush()
    assert len(script.sent) == 1


async def test_a_lost_connection_with_all_answered_is_made_again(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.producer(TOPIC, write=WRITE) as producer:
        await producer.send(b"1")
        script.links[-1].cut()
        await script.until(lambda: len(script.links) == 2)  # The watch is back.
        await producer.send(b"2")
    assert len(script.sent) == 2


async def test_what_a_sealed_segment_refuses_goes_to_its_children_in_the_same_attempt(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.producer(TOPIC, write=WRITE) as producer:
        await producer.send(b"1", key="a")
        script.sealed.add(script.sent[0][0])
        for number in range(20):
            await producer.post(b"2", key=f"key-{number}")
        await script.until(lambda: script.refused)
        script.publish(script.layout.split(SegmentId(0), 0))
        await producer.flush()
        assert producer.topics_written == {topic for topic, _ in script.sent}
        assert len(producer.topics_written) == 3
    assert {parse_metadata(entry).txnid_least_bits for entry in script.entries} == {WRITE.halves[1]}


def test_writes_that_cannot_be_meant_are_refused() -> None:
    for name, batch in (("", 0), ("x" * 201, 0), ("a\nb", 0), ("a", -1)):
        with pytest.raises(BadArgument, match="give"):
            Write(name, batch, ATTEMPT)


async def test_a_hidden_producer_has_no_name(client: Client) -> None:
    with pytest.raises(BadArgument, match="has no name"):
        client.producer(TOPIC, name="me", write=WRITE)
