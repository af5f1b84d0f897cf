"""A segment with several entry buckets whose broker is killed: each bucket's entries are stored once, in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from anabranch.model.buckets import even, ranges
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.entry import payload
from anabranch.wire.extensions import ASK_SEQUENCE_ID
from harness.broker_process import BrokerProcess
from harness.peer import C, Peer

TOPIC = "scalable/public/default/orders"
SEGMENT = "segment://public/default/orders/0000-ffff-0"
CHILD = "segment://public/default/orders/0000-7fff-1"
BUCKETS = ranges(even(4))
# Bucket and sequence id.
Sent = tuple[int, int]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {"brokerDeduplicationEnabled": True, "scalableTopicEntryBucketBudget": 4}
    with BrokerProcess(tmp_path, settings) as process:
        process.put(f"{TOPIC}?numInitialSegments=1")
        process.put(f"{TOPIC}/subscriptions/s")
        yield process


def cut(random: Random, first: int, count: int) -> list[Sent]:
    """Batches as a producer with one builder per bucket cuts them: each bucket's ids rise, and they interleave."""
    made: list[Sent] = []
    while len(made) < count:
        ids: dict[int, int] = {}
        for _ in range(random.randint(1, 12)):
            ids[random.randrange(4)] = first
            first += 1
        batches = list(ids.items())
        random.shuffle(batches)
        made += batches
    return made


def send(peer: Peer, batches: list[Sent]) -> None:
    for bucket, last in batches:
        span = BUCKETS[bucket]
        peer.send_message(
            b"%d:%d" % (bucket, last),
            sequence_id=last,
            entry_hash_min=span.start + 1,
            entry_hash_max=span.end,
        )


def attached(broker: BrokerProcess) -> tuple[Peer, pb.CommandProducerSuccess]:
    peer = Peer(broker.port)
    peer.connect()
    made = peer.produce_to(SEGMENT, producer_name="peer", user_provided_producer_name=True)
    assert made.type == C.PRODUCER_SUCCESS, made
    return peer, made.producer_success


def asked(broker: BrokerProcess) -> pb.CommandProducerSuccess:
    with Peer(broker.port) as peer:
        peer.connect()
        made = peer.produce_to(
            SEGMENT, producer_name="peer", metadata=[pb.KeyValue(key=ASK_SEQUENCE_ID, value="true")]
        )
        assert made.type == C.PRODUCER_SUCCESS, made
        return made.producer_success


def told(success: pb.CommandProducerSuccess) -> dict[int, int]:
    assert success.HasField("anabranch_whole_sequence_id")
    assert success.anabranch_whole_sequence_id == -1
    found = {one.bucket: one.last_sequence_id for one in success.anabranch_buckets}
    assert success.last_sequence_id == max(found.values(), default=-1)
    return found


def stored(broker: BrokerProcess) -> list[Sent]:
    """Everything in the segment, in its order."""
    entries = broker.get(f"{TOPIC}/stats")["segments"]["0"]["subscriptions"]["s"]["msgBacklog"]
    with Peer(broker.port) as peer:
        peer.connect()
        assert peer.subscribe_to(SEGMENT, "s").type == C.SUCCESS
        peer.flow(entries)
        found = []
        for _ in range(entries):
            bucket, last = bytes(payload(peer.receive_kind(C.MESSAGE)[1])).split(b":")
            found.append((int(bucket), int(last)))
        return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2])
def test_kill_9_leaves_each_buckets_entries_once_and_in_order(broker: BrokerProcess, seed: int) -> None:
    random = Random(seed)
    sent: list[Sent] = []
    receipted = 0
    for kills in range(4):
        peer, answer = attached(broker)
        before, highest = stored(broker), told(answer)
        assert before == sent[: len(before)]
        assert len(before) >= receipted, "receipted and not stored"
        for bucket, last in sent:
            assert (last <= highest.get(bucket, -1)) == ((bucket, last) in set(before))
        assert told(asked(broker)) == highest
        again = sent[random.randint(0, receipted) :]
        new = cut(random, 1 + max((last for _, last in sent), default=-1), 300)
        sent += new
        with peer:
            send(peer, again + new)
            # Those sent again are answered too, in order: the last answers are the new ones'.
            answers = random.randint(0, len(again + new))
            for _ in range(answers):
                peer.receive_kind(C.SEND_RECEIPT)
            receipted = max(receipted, len(sent) - len(again + new) + answers)
            broker.kill()
        if kills == 2:
            broker.start()
            broker.stop()
        broker.start()
    peer, answer = attached(broker)
    with peer:
        send(peer, sent)
        for _ in sent:
            peer.receive_kind(C.SEND_RECEIPT)
    assert stored(broker) == sent
    lasts = {bucket: last for bucket, last in sent}
    broker.post(f"{TOPIC}/split/0")
    broker.restart()
    assert told(asked(broker)) == lasts, "sealed"
