"""Checkpoints against a real broker process that keeps nothing which no subscription needs."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from anabranch.client import (
    BadCheckpoint,
    CheckpointConsumer,
    Client,
    DataLost,
    Message,
    Producer,
    QueueConsumer,
    TimedOut,
    TopicMadeAgain,
    merge_checkpoints,
)
from anabranch.client.consuming.core.checkpoint import Start
from anabranch.model.cut import Cut
from harness.broker_process import BrokerProcess

pytestmark = pytest.mark.interop

WITHIN_S = 20.0


@pytest.fixture(scope="module")
def keeping_nothing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        "defaultRetentionTimeInMinutes": 0,
        "logLingerSeconds": 0,
        "logLingerBytes": 0,
        "retentionCheckIntervalInSeconds": 1,
    }
    with BrokerProcess(tmp_path_factory.mktemp("keeping_nothing"), settings) as process:
        yield process


@pytest.fixture
async def client(keeping_nothing: BrokerProcess) -> AsyncIterator[Client]:
    async with Client(keeping_nothing.url) as client:
        yield client


class River:
    """A scalable topic with messages numbered from 0 on, in order by key, and a subscription that keeps them."""

    def __init__(self, broker: BrokerProcess, client: Client, name: str) -> None:
        self.url = f"topic://public/default/{name}"
        self._path = f"scalable/public/default/{name}"
        self._broker = broker
        self._client = client
        self._producer: Producer
        self._keeper: QueueConsumer
        self._kept: dict[int, Message] = {}
        self._given_up = 0
        self.published = 0

    async def open(self) -> None:
        self._broker.put(f"{self._path}?numInitialSegments=1")
        self._broker.post(f"{self._path}/autoScalePolicy", {"enabled": False})
        self._keeper = await self._client.queue_consumer(self.url, "keeper", start="earliest")
        self._producer = await self._client.producer(self.url)

    async def publish(self, count: int) -> None:
        for number in range(self.published, self.published + count):
            await self._producer.post(b"%d" % number, key=f"key-{number % 23}")
        await self._producer.flush()
        self.published += count

    async def split(self, number: int) -> None:
        await asyncio.to_thread(self._broker.post, f"{self._path}/split/{number}")

    async def merge(self, one: int, other: int) -> None:
        await asyncio.to_thread(self._broker.post, f"{self._path}/merge/{one}/{other}")

    async def delete(self) -> None:
        """`open` makes another one."""
        await self._keeper.close()
        await self._producer.close()
        await asyncio.to_thread(self._broker.rest, "DELETE", f"{self._path}?force=true")

    async def segments(self) -> set[int]:
        found = await asyncio.to_thread(self._broker.get, self._path)
        return {int(number) for number in found["segments"]}

    async def give_up(self, before: int) -> None:
        """Acknowledges, for the keeper, every message with a smaller number: nothing keeps them any more."""
        async with asyncio.timeout(WITHIN_S):
            while len(self._kept) < self.published:
                message = await self._keeper.receive()
                self._kept[int(message.payload)] = message
        for number in range(self._given_up, before):
            await self._keeper.ack(self._kept[number])
        self._given_up = before
        assert await self._keeper.flush()

    async def until_segments_are(self, *numbers: int) -> None:
        async with asyncio.timeout(WITHIN_S):
            while await self.segments() != set(numbers):  # noqa: ASYNC110  # Asked by REST.
                await asyncio.sleep(0.05)

    def reader(self, start: Start = "earliest", **options: Any) -> Any:
        return self._client.checkpoint_consumer(self.url, start=start, **options)


@pytest.fixture
async def river(keeping_nothing: BrokerProcess, client: Client, topic: str) -> River:
    river = River(keeping_nothing, client, topic)
    await river.open()
    return river


async def take(consumer: CheckpointConsumer, count: int) -> list[Message]:
    async with asyncio.timeout(WITHIN_S):
        return [await consumer.receive() for _ in range(count)]


async def assert_silent(consumer: CheckpointConsumer) -> None:
    with pytest.raises(TimedOut):
        await consumer.receive(timeout_s=0.2)


def numbers(messages: list[Message]) -> list[int]:
    return sorted(int(message.payload) for message in messages)


def assert_in_order(messages: list[Message]) -> None:
    last: dict[str | None, int] = defaultdict(lambda: -1)
    for message in messages:
        assert int(message.payload) > last[message.key], f"{message.key} is out of order"
        last[message.key] = int(message.payload)


async def eventually(look: Callable[[], Any], error: type[Exception]) -> Exception:
    """Until opening it fails so: the broker gives things up once a second."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                async with look():
                    await asyncio.sleep(0.1)
            except error as found:
                return found


async def test_a_checkpoint_that_was_not_through_with_deleted_segments_is_told_which(river: River) -> None:
    await river.publish(50)
    async with river.reader() as first:
        await take(first, 30)
        await river.split(0)
        await river.publish(50)
        await take(first, 60)
        kept = first.checkpoint()
        assert {place.segment for place in Cut.decode(kept).places} == {1, 2}
    await river.merge(1, 2)
    await river.publish(50)
    await river.split(3)
    await river.publish(50)
    await river.give_up(100)
    # 0 is gone, and 1 and 2 with all that was read and a little that was not, which is kept by nobody.
    await river.until_segments_are(3, 4, 5)
    with pytest.raises(DataLost, match=r"segment [12] \(range .*\) from ledger \d+, entry \d+") as lost:
        await river.reader(kept)
    assert {gap.segment for gap in lost.value.gaps} <= {1, 2}


async def test_segments_that_were_read_to_their_ends_may_go_before_anybody_knew_that_these_were_the_ends(
    river: River,
) -> None:
    await river.publish(20)
    await river.split(0)
    async with river.reader() as first:
        await take(first, 20)
        await river.publish(20)
        await take(first, 20)
        kept = first.checkpoint()
    # Of 1 something is read, of 3 nothing, because it never has anything.
    await river.split(1)
    await river.merge(3, 4)
    await river.publish(20)
    await river.merge(5, 2)
    await river.publish(20)
    await river.give_up(40)
    await river.until_segments_are(2, 5, 6)
    async with river.reader(kept) as second:
        after = await take(second, 40)
        await assert_silent(second)
    assert numbers(after) == list(range(40, 80))
    assert_in_order(after)
    await river.give_up(60)
    await river.until_segments_are(6)
    with pytest.raises(DataLost):
        await river.reader(kept)


async def test_a_checkpoint_outlives_splits_merges_and_the_deletion_of_what_was_read(river: River) -> None:
    await river.publish(50)
    async with river.reader() as first:
        await river.split(0)
        await river.publish(50)
        before = await take(first, 100)
        await river.merge(1, 2)
        await river.publish(50)
        before += await take(first, 20)
        kept = first.checkpoint()
    assert [place.segment for place in Cut.decode(kept).places] == [3]
    await river.split(3)
    await river.publish(50)
    await river.split(4)
    await river.publish(50)
    await river.give_up(100)
    await river.until_segments_are(3, 4, 5, 6, 7)
    async with river.reader(kept) as second:
        after = await take(second, 130)
        await assert_silent(second)
        kept = second.checkpoint()
    assert numbers(before + after) == list(range(250))
    assert_in_order(before + after)
    await river.give_up(250)
    await river.until_segments_are(5, 6, 7)
    async with river.reader(kept) as third:
        await river.publish(10)
        assert numbers(await take(third, 10)) == list(range(250, 260))


async def test_a_gap_in_a_living_segment_is_named(river: River) -> None:
    await river.publish(10)
    async with river.reader() as first:
        await take(first, 4)
        early = first.checkpoint()
        await take(first, 6)
        late = first.checkpoint()
    await river.publish(10)
    await river.give_up(10)
    (place,) = Cut.decode(early).places
    ledger, entry, index = place.at[0]
    error = await eventually(lambda: river.reader(early), DataLost)
    assert f"segment 0 (range 0000-ffff) from ledger {ledger}, entry {entry}" in str(error)
    assert isinstance(error, DataLost)
    assert [(gap.segment, gap.position) for gap in error.gaps] == [(0, (ledger, entry, index))]
    # What lies just before the next message to read may go.
    async with river.reader(late) as second:
        assert numbers(await take(second, 10)) == list(range(10, 20))
    # And the earliest is what there is.
    async with river.reader("earliest") as third:
        assert numbers(await take(third, 10)) == list(range(10, 20))


async def test_a_reader_that_is_too_slow_is_told(river: River) -> None:
    await river.publish(1)
    async with river.reader(receive_queue=1) as slow:
        assert len(await take(slow, 1)) == 1
        for _ in range(30):
            await river.publish(1)
        await river.give_up(31)
        # It got what was under way; the rest was deleted before it asked.
        await eventually(lambda: river.reader(Cut.decode(slow.checkpoint()).encode()), DataLost)
        with pytest.raises(DataLost, match="segment 0"):
            await take(slow, 30)


async def test_a_group_goes_on_from_a_lone_checkpoint_and_a_lone_reader_from_the_groups(river: River) -> None:
    await river.publish(50)
    async with river.reader() as alone:
        before = await take(alone, 20)
        await river.split(0)
        await river.publish(50)
        kept = alone.checkpoint()
    members = [await river.reader(kept, group="g", consumer_name=f"member-{n}") for n in range(2)]
    found: list[Message] = []

    async def read(member: CheckpointConsumer) -> None:
        async for message in member:
            found.append(message)  # noqa: PERF401  # Looked at while it grows.

    reading = [asyncio.create_task(read(member)) for member in members]
    async with asyncio.timeout(WITHIN_S):
        while len({message.payload for message in found}) < 80:  # noqa: ASYNC110  # Several tasks add to it.
            await asyncio.sleep(0.02)
    parts = [member.checkpoint() for member in members]
    for member in members:
        await member.close()
    await asyncio.gather(*reading)
    # A segment that changes hands is read again from where the group started.
    once = list({message.payload: message for message in reversed(before + found)}.values())[::-1]
    assert numbers(once) == list(range(100))
    assert_in_order(once)
    whole = merge_checkpoints([kept, *parts])
    assert [place.segment for place in Cut.decode(whole).places] == [1, 2]
    await river.merge(1, 2)
    await river.publish(50)
    async with river.reader(whole) as again:
        rest = await take(again, 50)
        await assert_silent(again)
    assert numbers(rest) == list(range(100, 150))
    async with river.reader(whole, group="h") as member:
        assert numbers(await take(member, 50)) == list(range(100, 150))


async def test_latest_is_where_the_topic_ended_when_the_reader_was_opened(river: River) -> None:
    await river.publish(10)
    await river.split(0)
    await river.publish(10)
    async with river.reader("latest") as first:
        kept = first.checkpoint()
        await river.split(1)
        await river.publish(20)
        assert numbers(await take(first, 20)) == list(range(20, 40))
    async with river.reader(kept) as second:
        assert numbers(await take(second, 20)) == list(range(20, 40))


async def test_a_time_is_where_the_messages_of_then_begin(river: River) -> None:
    await river.publish(10)
    async with river.reader() as first:
        times = [message.publish_time_ms for message in await take(first, 10)]
    await river.split(0)
    then = datetime.fromtimestamp(max(times) / 1000, UTC) + timedelta(milliseconds=1)
    async with asyncio.timeout(WITHIN_S):
        while datetime.now(UTC) <= then:  # noqa: ASYNC110  # For the clock.
            await asyncio.sleep(0.001)
    await river.publish(10)
    await river.merge(1, 2)
    await river.publish(10)
    async with river.reader(then) as second:
        kept = second.checkpoint()
        found = await take(second, 20)
        await assert_silent(second)
        assert numbers(found) == list(range(10, 30))
        assert_in_order(found)
    async with river.reader(kept, group="g") as third:
        assert numbers(await take(third, 20)) == list(range(10, 30))
    async with river.reader(datetime.now(UTC) + timedelta(hours=1)) as nothing:
        await assert_silent(nothing)
    async with river.reader(datetime(2000, 1, 1, tzinfo=UTC)) as everything:
        assert numbers(await take(everything, 30)) == list(range(30))


async def test_a_checkpoint_inside_a_batch_goes_on_with_the_next_message(river: River) -> None:
    await river.publish(100)
    found: list[Message] = []
    kept: Start = "earliest"
    for count in (1, 2, 30, 40, 27):
        async with river.reader(kept) as reader:
            found += await take(reader, count)
            kept = reader.checkpoint()
    assert numbers(found) == list(range(100))
    assert_in_order(found)
    assert max(message.size for message in found) > 1


async def test_a_checkpoint_of_another_classic_topic_is_refused(client: Client, topic: str) -> None:
    names = [f"persistent://public/default/{topic}-{n}" for n in range(2)]
    keepers = [await client.queue_consumer(name, "keeper", start="earliest") for name in names]
    for name in names:
        async with client.producer(name) as producer:
            await producer.send(b"x")
    async with client.checkpoint_consumer(names[1], start="earliest") as reader:
        await take(reader, 1)
        kept = reader.checkpoint()
    with pytest.raises(BadCheckpoint, match="another topic"):
        await client.checkpoint_consumer(names[0], start=kept)
    for keeper in keepers:
        await keeper.close()


async def test_a_checkpoint_of_a_classic_topic_is_good_once_it_was_migrated(
    keeping_nothing: BrokerProcess, client: Client, topic: str
) -> None:
    url = f"persistent://public/default/{topic}"
    keeping_nothing.put(f"persistent/public/default/{topic}/partitions", 3)
    # Keeps everything.
    keeper = await client.queue_consumer(url, "keeper", start="earliest")
    async with client.producer(url) as producer:
        for number in range(60):
            await producer.post(b"%d" % number, key=f"key-{number % 23}")
        await producer.flush()
    async with client.checkpoint_consumer(url, start="earliest") as first:
        found = await take(first, 25)
        kept = first.checkpoint()
    assert all(place.is_classic for place in Cut.decode(kept).places)
    async with client.checkpoint_consumer(url, start=kept) as second:
        found += await take(second, 15)
        kept = second.checkpoint()
    await keeper.close()
    await asyncio.to_thread(keeping_nothing.post, f"scalable/public/default/{topic}/migrate?force=true")
    url = f"topic://public/default/{topic}"
    async with client.producer(url) as producer:
        for number in range(60, 100):
            await producer.post(b"%d" % number, key=f"key-{number % 23}")
        await producer.flush()
    async with client.checkpoint_consumer(url, start=kept) as third:
        found += await take(third, 60)
        await assert_silent(third)
        assert not any(place.is_classic for place in Cut.decode(third.checkpoint()).places)
    assert numbers(found) == list(range(100))
    assert_in_order(found)


async def test_a_checkpoint_of_another_topic_is_refused(
    river: River, keeping_nothing: BrokerProcess, client: Client, topic: str
) -> None:
    await river.split(0)
    await river.publish(30)
    async with river.reader() as reader:
        await take(reader, 30)
        kept = reader.checkpoint()
    other = River(keeping_nothing, client, f"{topic}-other")
    await other.open()
    await other.split(0)
    await other.split(1)
    await other.merge(3, 4)
    await other.give_up(0)
    # Of segment 2, which stays: a pruned one could not be told from another topic's.
    # And without the topic's id, as earlier releases wrote it: that alone would tell.
    nameless = Cut(Cut.decode(kept).places).encode()
    wrong = nameless.replace(b"8000", b"c000")
    assert wrong != nameless
    with pytest.raises(BadCheckpoint, match="another"):
        await other.reader(wrong)


async def test_a_checkpoint_of_a_topic_that_was_deleted_and_made_again_is_refused(
    river: River, keeping_nothing: BrokerProcess, client: Client
) -> None:
    await river.publish(10)
    async with river.reader() as reader:
        await take(reader, 10)
        await river.split(0)
        # Nothing was written behind the split: no position tells the two topics apart.
        await assert_silent(reader)
        kept = reader.checkpoint()
    nameless = Cut(Cut.decode(kept).places).encode()
    assert kept != nameless
    async with river.reader(kept) as reader:
        await assert_silent(reader)
    await river.delete()
    await river.open()
    await river.publish(30)
    await river.split(0)
    await river.publish(10)
    for start in (kept, nameless):
        with pytest.raises(TopicMadeAgain, match="'earliest'"):
            await river.reader(start)
    async with river.reader() as reader:
        assert len(await take(reader, 40)) == 40
