"""Checkpoint groups whose members share the segments of a real broker process by entry buckets, and their cuts."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from anabranch.client import CheckpointConsumer, Client, Closed, Producer, merge_checkpoints
from anabranch.client.consuming.core.checkpoint import Start
from anabranch.model.cut import Cut, is_at_end
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch, open_entry
from harness.broker_process import BrokerProcess
from harness.peer import Peer

pytestmark = pytest.mark.interop

WITHIN_S = 60.0
KEYS = 40
SETTINGS = {
    "scalableTopicEntryBucketBudget": 4,
    "scalableTopicConsumerSessionGracePeriodSeconds": 1,
    "defaultRetentionTimeInMinutes": -1,
    "defaultRetentionSizeInMB": -1,
}


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("sharing"), SETTINGS) as process:
        yield process


class River:
    """A scalable topic that begins as one segment of four entry buckets; messages are numbered from 0 on."""

    def __init__(self, broker: BrokerProcess, client: Client, name: str) -> None:
        self.broker = broker
        self.client = client
        self.url = f"topic://public/default/{name}"
        self.path = f"scalable/public/default/{name}"
        self.segment = f"segment://public/default/{name}/0000-ffff-0"
        self._producer: Producer
        self.published = 0

    async def open(self) -> None:
        self.broker.put(f"{self.path}?numInitialSegments=1")
        self.broker.post(f"{self.path}/autoScalePolicy", {"enabled": False})
        self._producer = await self.client.producer(self.url)

    async def publish(self, count: int) -> None:
        for number in range(self.published, self.published + count):
            key = None if number % 11 == 5 else f"key-{number % KEYS}"
            await self._producer.post(b"%d" % number, key=key)
        await self._producer.flush()
        self.published += count

    async def publish_one_key(self, count: int) -> None:
        for number in range(count):
            await self._producer.send(b"%d" % number, key="key")

    async def change(self, chance: random.Random) -> None:
        """Splits a segment, merges two, or gives one another number of buckets."""
        found = (await asyncio.to_thread(self.broker.get, self.path))["segments"].items()
        active = sorted(
            (one["hashRange"]["start"], int(number)) for number, one in found if one["state"] == "ACTIVE"
        )
        at = chance.randrange(len(active))
        kind = chance.choice(("split", "merge", "rebucket"))
        if kind == "merge" and at + 1 < len(active):
            path = f"merge/{active[at][1]}/{active[at + 1][1]}"
        elif kind == "split" and len(active) < 3:
            path = f"split/{active[at][1]}"
        else:
            count = next(n for n in (3, 2, 5) if n != self._buckets(found, active[at][1]))
            path = f"rebucket/{active[at][1]}?buckets={count}"
        await asyncio.to_thread(self.broker.post, f"{self.path}/{path}")

    def _buckets(self, found: Any, number: int) -> int:
        (one,) = [one for known, one in found if int(known) == number]
        return len(one.get("entryBucketSplits", ())) + 1


@pytest.fixture
async def client(sharing: BrokerProcess) -> AsyncIterator[Client]:
    async with Client(sharing.url) as client:
        yield client


@pytest.fixture
async def river(sharing: BrokerProcess, client: Client, topic: str) -> River:
    river = River(sharing, client, topic)
    await river.open()
    return river


class Member:
    """A consumer whose application keeps what it receives, in rows or in columns."""

    def __init__(self, consumer: CheckpointConsumer, *, in_columns: bool = False) -> None:
        self.consumer = consumer
        self.received: list[tuple[str | None, int]] = []
        self._in_columns = in_columns
        self._reading = asyncio.create_task(self._read())  # Ended by `leave`.

    async def _read(self) -> None:
        with contextlib.suppress(Closed):
            while True:
                if self._in_columns:
                    batch = (await self.consumer.receive_arrow()).to_pydict()
                    keys = [None if key is None else key.decode() for key in batch["key"]]
                    self.received += zip(keys, map(int, batch["value"]), strict=True)
                else:
                    message = await self.consumer.receive()
                    self.received.append((message.key, int(message.payload)))

    async def leave(self) -> bytes:
        """Its checkpoint, once it reads no more."""
        self._reading.cancel()
        await asyncio.wait([self._reading])
        kept = self.consumer.checkpoint()
        await self.consumer.close()
        return kept

    @property
    def keys(self) -> set[str]:
        return {key for key, _ in self.received if key is not None}

    def assert_in_order(self) -> None:
        last: dict[str, int] = defaultdict(lambda: -1)
        for key, number in self.received:
            if key is not None:
                assert number > last[key], f"{key}: {number} after {last[key]}"
                last[key] = number


async def join(river: River, start: Start, group: str, count: int, **options: Any) -> list[Member]:
    return [
        Member(await river.client.checkpoint_consumer(river.url, start=start, group=group), **options)
        for _ in range(count)
    ]


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not met():  # noqa: ASYNC110 - what clients show has no event.
            await asyncio.sleep(0.01)


def numbers(members: list[Member]) -> set[int]:
    return {number for member in members for _, number in member.received}


async def checkpoint_of(members: list[Member]) -> bytes:
    return merge_checkpoints([await member.leave() for member in members])


@pytest.mark.parametrize("in_columns", [False, True])
async def test_members_share_a_segment_and_each_key_is_one_members(river: River, in_columns: bool) -> None:
    members = await join(river, "earliest", "g", 4, in_columns=in_columns)
    await river.publish(400)
    await until(lambda: len(numbers(members)) == 400)
    assert all(member.received for member in members)
    assert sum(len(member.received) for member in members) == 400
    assert sum(len(member.keys) for member in members) == len(set().union(*(m.keys for m in members))) == KEYS
    for member in members:
        member.assert_in_order()
    whole = await checkpoint_of(members)
    (place,) = Cut.decode(whole).places
    assert place.first > (0, 0, 0)
    await river.publish(100)
    (lone,) = await join(river, whole, "h", 1, in_columns=in_columns)
    await until(lambda: len(numbers([lone])) == 100)
    assert numbers([lone]) == set(range(400, 500))
    await lone.leave()


async def test_messages_behind_a_groups_cut_come_once_to_another_group_or_a_lone_reader(river: River) -> None:
    """Cut anywhere, so that each bucket has another position; the two halves of the group go on differently."""
    members = await join(river, "earliest", "g", 2)
    await river.publish(200)
    await until(lambda: len(numbers(members)) > 20)
    one, two = members
    whole = merge_checkpoints([await one.leave()])
    await until(lambda: len(two.received) > len(one.received))
    done = numbers(members)
    whole = merge_checkpoints([whole, await two.leave()])
    done = numbers(members)
    group, lone = (
        await join(river, whole, "h", 3),
        await river.client.checkpoint_consumer(river.url, start=whole),
    )
    alone = Member(lone)
    await river.publish(100)
    rest = set(range(300)) - done
    await until(lambda: numbers(group) >= rest and numbers([alone]) >= rest)
    assert numbers(group) == numbers([alone]) == rest
    assert len(alone.received) == len(rest)
    alone.assert_in_order()
    for member in [*group, alone]:
        await member.leave()


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_skipped_or_repeated_through_splits_merges_and_rollovers(
    river: River, seed: int
) -> None:
    """Generations of members of different numbers, each of which starts at the cut of the one before."""
    chance = random.Random(seed)
    whole: bytes = Cut().encode()
    done: set[int] = set()
    were_shared = 0
    for generation in range(5):
        members = await join(river, whole, f"g{generation}", chance.choice((1, 2, 4, 6)))
        for _ in range(chance.choice((1, 2))):
            await river.publish(chance.randrange(40, 120))
            if generation:
                await river.change(chance)
        await river.publish(chance.randrange(40))
        left = river.published - len(done)
        wanted = chance.randrange(left)
        await until(lambda members=members, wanted=wanted: len(numbers(members)) >= wanted)  # type: ignore[misc]
        for member in members:
            member.assert_in_order()
        kept = [await member.leave() for member in members]
        assert numbers(members).isdisjoint(done)
        done |= numbers(members)
        were_shared += any(len(place.at) > 1 for one in kept for place in Cut.decode(one).places)
        whole = merge_checkpoints([whole, *kept])
        assert Cut.decode(whole).encode() == whole
    members = await join(river, whole, "last", 2)
    await until(lambda: numbers(members) | done == set(range(river.published)))
    assert numbers(members).isdisjoint(done)
    await checkpoint_of(members)
    assert were_shared


async def test_who_gives_buckets_away_and_gets_them_back_is_given_no_message_twice(river: River) -> None:
    """Who comes reads its buckets from where the group began; who was there goes on."""
    (one,) = await join(river, "earliest", "g", 1)
    await river.publish(100)
    await until(lambda: len(one.received) == 100)
    (two,) = await join(river, "earliest", "g", 1)
    await river.publish(100)
    await until(lambda: len(numbers([one, two])) == 200)
    mine = {number for key, number in two.received if key in two.keys}
    assert min(mine) < 100 <= max(mine), "it began where the group did"
    await two.leave()
    await river.publish(100)
    await until(lambda: len(numbers([one])) == 300)
    assert len(one.received) == 300
    whole = await checkpoint_of([one])
    assert len(Cut.decode(whole).places) == 1
    await river.publish(10)
    (lone,) = await join(river, whole, "h", 1)
    await until(lambda: len(lone.received) >= 10)
    assert numbers([lone]) == set(range(300, 310))
    await lone.leave()


async def test_a_member_whose_buckets_are_quiet_comes_forward_too(river: River) -> None:
    """Its broker tells it what it has passed over: its checkpoint needs no message of its own."""
    one, two = await join(river, "earliest", "g", 2)
    await river.publish_one_key(30)
    await until(lambda: len(numbers([one, two])) == 30)
    quiet = two if one.received else one
    assert not quiet.received

    def reached() -> bool:
        (place,) = Cut.decode(quiet.consumer.checkpoint()).places or [None]
        return place is not None and max(place.at)[1] >= 1

    await until(reached)
    for member in (one, two):
        await member.leave()


async def test_children_come_when_all_sharers_of_their_parent_are_through(river: River) -> None:
    members = await join(river, "earliest", "g", 2)
    await river.publish(200)
    await until(lambda: len(numbers(members)) == 200)
    assert all(member.received for member in members)
    await asyncio.to_thread(river.broker.post, f"{river.path}/split/0")
    await river.publish(200)
    await until(lambda: len(numbers(members)) == 400)
    for member in members:
        member.assert_in_order()
    kept = [await member.leave() for member in members]
    parents = [place for one in kept if (place := Cut.decode(one).get(0)) is not None]
    assert any(any(map(is_at_end, place.at)) for place in parents)
    whole = Cut.decode(merge_checkpoints(kept))
    # Both together were through with it, though neither was alone.
    assert all(place.segment != 0 or place.is_over for place in whole.places)
    await river.publish(50)
    (lone,) = await join(river, whole.encode(), "h", 1)
    await until(lambda: len(lone.received) == 50)
    assert numbers([lone]) == set(range(400, 450))
    await lone.leave()


@pytest.mark.parametrize("in_columns", [False, True])
async def test_entries_without_stamps_are_divided_by_their_keys(river: River, in_columns: bool) -> None:
    """As older clients write them: batches with keys of every bucket."""
    members = await join(river, "earliest", "g", 3, in_columns=in_columns)
    await asyncio.to_thread(send_unstamped, river, 5, 60)
    await until(lambda: len(numbers(members)) == 300)
    assert sum(len(member.received) for member in members) == 300
    assert all(member.received for member in members)
    assert sum(len(member.keys) for member in members) == len(set().union(*(m.keys for m in members)))
    whole = await checkpoint_of(members)
    river.published = 300
    await river.publish(40)
    (lone,) = await join(river, whole, "h", 1, in_columns=in_columns)
    await until(lambda: len(lone.received) >= 40)
    assert numbers([lone]) == set(range(300, 340))
    await lone.leave()


def send_unstamped(river: River, entries: int, each: int) -> None:
    peer = Peer(river.broker.port_for(river.segment))
    peer.connect()
    peer.produce_to(river.segment)
    for entry in range(entries):
        numbers = range(entry * each, entry * each + each)
        singles = [
            (pb.SingleMessageMetadata(partition_key=f"key-{number % KEYS}"), b"%d" % number)
            for number in numbers
        ]
        head = pb.MessageMetadata(producer_name="p", sequence_id=entry, publish_time=1)
        _, payload = open_entry(build_batch(head, singles))
        peer.send_message(bytes(payload), sequence_id=entry, num_messages_in_batch=each)
        peer.receive_kind(pb.BaseCommand.SEND_RECEIPT)
    peer.socket.close()
