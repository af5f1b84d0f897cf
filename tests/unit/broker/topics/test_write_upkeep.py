"""What a broker does about hidden writes by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.hidden_writes.records import HIDDEN_WRITES, WriteRecords
from anabranch.broker.hidden_writes.topic import stale
from anabranch.broker.topic.topic import Topic
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.hidden_writes import WriteBatch, WriteRecord
from anabranch.model.names import TopicName
from harness.simple_client import Hidden
from unit.broker.admin.across.several import several
from unit.broker.admin.conftest import Rest, serving

TOPIC = "persistent://public/default/t"
NAME = TopicName.parse(TOPIC)
A, B = "a" * 32, "b" * 32
DAY_MS = 86_400_000


@dataclass
class Clock:
    ms: int = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def rest(clock: Clock) -> AsyncIterator[Rest]:
    # Nothing is looked at by itself but what the test asks for, and what a watch brings.
    config = BrokerConfig(hidden_writes_check_interval_seconds=1e6, hidden_writes_retention_seconds=86_400)
    async with serving(MemoryMetadata(clock), config, now_ms=clock) as made:
        yield made


async def write(rest: Rest, attempt: str, payload: bytes, batch: int = 0) -> Topic:
    producer = await rest.client.producer(TOPIC, hidden=Hidden("job", batch, attempt))
    await (await producer.send(payload))
    await producer.close()
    return await rest.broker.topic(NAME)


async def known(rest: Rest) -> list[WriteBatch]:
    records = rest.broker.write_records
    return [batch for write in await records.writes() async for batch in records.batches(write)]


async def test_decisions_are_carried_out_as_they_are_stored(rest: Rest) -> None:
    consumer = await rest.client.consumer(TOPIC, "s", earliest=True)
    await write(rest, A, b"won")
    await write(rest, B, b"lost", batch=1)
    await rest.publish(TOPIC, b"after")
    await rest.broker.write_records.decide(WriteBatch("job", 0), [A], [])
    async with asyncio.timeout(5):
        assert (await consumer.receive()).payload == b"won"
        await rest.broker.write_records.drop(WriteBatch("job", 1), [B])
        assert (await consumer.receive()).payload == b"after"


async def test_records_are_forgotten_when_they_are_old_and_carried_out(rest: Rest, clock: Clock) -> None:
    records, upkeep = rest.broker.write_records, rest.broker.write_upkeep
    await records.decide(WriteBatch("job", 0), [A], [TOPIC])
    await records.decide(WriteBatch("a/b c", 1234), [A], ["persistent://public/default/gone"])
    await records.drop(WriteBatch("other", 0), [A])
    await upkeep.sweep()
    assert len(await known(rest)) == 3
    clock.ms += DAY_MS // 2
    await records.decide(WriteBatch("job", 1), [A], [TOPIC])
    clock.ms += DAY_MS // 2 + 1
    await upkeep.sweep()
    assert await known(rest) == [WriteBatch("a/b c", 1234), WriteBatch("job", 1)], "the last of their streams"
    clock.ms += 52 * DAY_MS
    await upkeep.sweep()
    await upkeep.sweep()
    assert await rest.broker.metadata.children(HIDDEN_WRITES) == []


async def test_the_last_batch_of_a_stream_is_known_for_a_year_and_the_ones_before_for_a_week(
    rest: Rest, clock: Clock
) -> None:
    records, upkeep = rest.broker.write_records, rest.broker.write_upkeep
    for number in (4, 5, 6):
        await records.decide(WriteBatch("stream", number), [A], [TOPIC])
    await records.decide(WriteBatch("nightly", 0), [A], [TOPIC])
    clock.ms += 51 * DAY_MS
    await upkeep.sweep()
    assert await known(rest) == [WriteBatch("stream", 6)]
    # The stream is back: it finds its batch written, and goes on.
    decided = await records.decide(WriteBatch("stream", 6), [B], [TOPIC])
    assert decided.winners == (A,)
    await records.decide(WriteBatch("stream", 7), [B], [TOPIC])
    clock.ms += DAY_MS + 1
    await upkeep.sweep()
    assert await known(rest) == [WriteBatch("stream", 7)]


async def test_a_record_is_carried_out_before_it_is_forgotten(rest: Rest, clock: Clock) -> None:
    await write(rest, A, b"won")
    await rest.broker.unload_topic(NAME)
    await rest.broker.write_records.decide(WriteBatch("job", 0), [A], [TOPIC])
    clock.ms += DAY_MS + 1
    await rest.broker.write_upkeep.sweep()
    assert await known(rest) == []
    topic = await rest.broker.topic(NAME)
    assert (topic.log.entries, topic.hidden.has_open) == (1, False)


async def test_a_record_that_was_changed_while_it_was_looked_at_stays(rest: Rest, clock: Clock) -> None:
    records, batch = rest.broker.write_records, WriteBatch("job", 0)
    await records.drop(batch, [B])
    clock.ms += DAY_MS + 1
    expired = await records.expired(batch, clock.ms - DAY_MS)
    assert expired is not None
    decided = await records.decide(batch, [A], [TOPIC])
    await records.strike_off(expired, [])
    assert await records.get(batch) == decided
    assert await records.expired(batch, clock.ms - DAY_MS) is None


async def test_a_record_stays_until_every_owner_has_struck_off_its_topics(rest: Rest, clock: Clock) -> None:
    records, batch = rest.broker.write_records, WriteBatch("job", 0)
    await records.decide(batch, [A], [TOPIC, "persistent://public/default/u"])
    clock.ms += DAY_MS + 1
    first = await records.expired(batch, clock.ms - DAY_MS)
    assert first is not None
    await records.strike_off(first, [TOPIC])
    second = await records.expired(batch, clock.ms - DAY_MS)
    assert second is not None, "although it was changed just now"
    assert second.topics == ("persistent://public/default/u",)
    await records.strike_off(second, second.topics)
    assert await records.get(batch) is None


async def test_each_of_several_brokers_strikes_off_its_own_topics_and_the_last_one_forgets_the_record(
    clock: Clock,
) -> None:
    config = BrokerConfig(hidden_writes_retention_seconds=86_400)
    async with several(2, config, now_ms=clock) as (one, other):
        one.owners.places.moved[NAME.namespace.topic("u")] = 1
        records, batch = one.broker.write_records, WriteBatch("job", 0)
        await records.decide(batch, [A], [TOPIC, "persistent://public/default/u"])
        clock.ms += DAY_MS + 1
        for _ in range(2):
            await one.broker.write_upkeep.sweep()
            left = await records.expired(batch, clock.ms - DAY_MS)
            assert left is not None
            assert left.topics == ("persistent://public/default/u",)
        await other.broker.write_upkeep.sweep()
        assert await records.get(batch) is None


async def test_an_attempt_is_given_up_once_its_producer_is_gone_for_long(rest: Rest, clock: Clock) -> None:
    topic = await write(rest, A, b"lost")
    open_still = await rest.client.producer(TOPIC, hidden=Hidden("job", 0, B))
    clock.ms += 3_600_000
    await topic.hidden.look()
    assert set(topic.hidden.entries.attempts) == {B}
    record = await rest.broker.write_records.get(WriteBatch("job", 0))
    assert record is not None
    assert record.dropped == (A,)
    await open_still.close()
    clock.ms += 3_600_000
    await topic.hidden.look()
    assert not topic.hidden.has_attempts
    last = await rest.broker.write_records.get(WriteBatch("job", 0))
    assert last is not None
    assert last.dropped == record.dropped, "it had written nothing"


async def test_an_attempt_that_keeps_readers_waiting_for_a_day_is_dropped_though_its_producer_stays(
    rest: Rest, clock: Clock
) -> None:
    consumer = await rest.client.consumer(TOPIC, "s", earliest=True)
    staying = await rest.client.producer(TOPIC, hidden=Hidden("job", 0, A))
    idle = await rest.client.producer(TOPIC, hidden=Hidden("job", 0, B))
    topic = await rest.broker.topic(NAME)
    clock.ms += 2 * DAY_MS
    await topic.hidden.look()
    await (await staying.send(b"held"))
    await rest.publish(TOPIC, b"after")
    await topic.hidden.look()
    clock.ms += DAY_MS - 1
    await topic.hidden.look()
    assert set(topic.hidden.entries.attempts) == {A, B}, "it holds readers for less than a day"
    clock.ms += 1
    await topic.hidden.look()
    assert set(topic.hidden.entries.attempts) == {B}, "one without entries holds nobody"
    async with asyncio.timeout(5):
        assert (await consumer.receive()).payload == b"after"
    await idle.close()


def test_stale_is_who_was_last_seen_so_long_ago() -> None:
    seen = {"a": 100, "b": 101}
    assert stale(["a", "b", "c"], seen, 200, 100) == ["a"]
    assert seen["c"] == 200


LEASE_MS = 120_000


@pytest.fixture
async def leased(clock: Clock) -> AsyncIterator[Rest]:
    config = BrokerConfig(hidden_writes_check_interval_seconds=5, hidden_writes_timeout_seconds=3600)
    async with serving(MemoryMetadata(clock), config, now_ms=clock) as made:
        yield made


async def record_of(rest: Rest, batch: int = 0) -> WriteRecord:
    found = await rest.broker.write_records.get(WriteBatch("job", batch))
    assert found is not None
    return found


async def test_a_batch_without_any_producer_is_given_up_after_its_lease_and_readers_go_on(
    leased: Rest, clock: Clock
) -> None:
    consumer = await leased.client.consumer(TOPIC, "s", earliest=True)
    topic = await write(leased, A, b"lost")
    await write(leased, B, b"lost too")
    await leased.publish(TOPIC, b"after")
    clock.ms += LEASE_MS - 1
    await topic.hidden.look()
    assert set(topic.hidden.entries.attempts) == {A, B}
    assert topic.hidden.held_ms == LEASE_MS - 1
    clock.ms += 1
    await topic.hidden.look()
    assert (await record_of(leased)).dropped == (A, B)
    async with asyncio.timeout(5):
        assert (await consumer.receive()).payload == b"after"
    assert topic.hidden.held_ms == 0


async def test_an_attempt_that_is_done_stays_while_another_task_of_its_batch_is_connected_elsewhere(
    leased: Rest, clock: Clock
) -> None:
    other = "persistent://public/default/u"
    topic = await write(leased, A, b"done")
    running = await leased.client.producer(other, hidden=Hidden("job", 0, B))
    for _ in range(10):
        clock.ms += LEASE_MS // 2
        await leased.broker.write_upkeep.look()
    assert set(topic.hidden.entries.attempts) == {A}
    await running.close()
    clock.ms += LEASE_MS
    await leased.broker.write_upkeep.look()
    assert not topic.hidden.has_attempts
    assert (await record_of(leased)).dropped == (A,), "the one that ran had written nothing"


async def test_a_lease_goes_on_with_another_owner_which_gives_clients_time_to_come_back(
    leased: Rest, clock: Clock
) -> None:
    await write(leased, A, b"lost")
    clock.ms += LEASE_MS
    await leased.broker.unload_topic(NAME)
    topic = await leased.broker.topic(NAME)
    await topic.hidden.look()
    assert topic.hidden.has_open, (
        "whoever was connected to the owner before has not had the time to come back"
    )
    clock.ms += LEASE_MS // 4
    await topic.hidden.look()
    assert not topic.hidden.has_open, "the lease has not begun anew"


async def test_a_producer_that_comes_back_in_time_keeps_its_batch(leased: Rest, clock: Clock) -> None:
    topic = await write(leased, A, b"1")
    clock.ms += LEASE_MS - 1
    await write(leased, A, b"2")
    clock.ms += LEASE_MS - 1
    await topic.hidden.look()
    assert topic.hidden.entries.attempts[A].entries == 2
    record = await leased.broker.write_records.decide(WriteBatch("job", 0), [A], [TOPIC])
    assert record.winners == (A,)


async def test_a_batch_that_somebody_has_come_back_to_is_not_lapsed_by_whoever_looked_before(
    leased: Rest, clock: Clock
) -> None:
    records, batch = leased.broker.write_records, WriteBatch("job", 0)
    await write(leased, A, b"1")
    clock.ms += LEASE_MS
    await records.renew(batch)
    assert (await records.lapse(batch, [A])).dropped == ()
    clock.ms += LEASE_MS
    assert (await records.lapse(batch, [A])).dropped == (A,)


async def test_dropping_some_attempts_of_a_batch_does_not_renew_its_lease(leased: Rest, clock: Clock) -> None:
    """Each owner gives up what it knows of; the second must not wait for as long as the first."""
    topic = await write(leased, A, b"1")
    clock.ms += LEASE_MS
    await leased.broker.write_records.drop(WriteBatch("job", 0), [B])
    await topic.hidden.look()
    assert set((await record_of(leased)).dropped) == {A, B}


@pytest.mark.parametrize(
    ("lease_s", "interval_s", "effective_ms"), [(120, 5, 120_000), (1, 5, 15_000), (0, 5, 0)]
)
def test_a_lease_is_no_shorter_than_owners_need_to_renew_it(
    lease_s: int, interval_s: float, effective_ms: int
) -> None:
    config = BrokerConfig(
        hidden_writes_lease_seconds=lease_s, hidden_writes_check_interval_seconds=interval_s
    )
    assert config.hidden_writes_lease_ms == effective_ms


async def test_records_of_releases_without_leases_are_as_old_as_their_last_change(clock: Clock) -> None:
    metadata, batch = await MemoryMetadata(clock).connect(), WriteBatch("job", 0)
    records = WriteRecords(metadata, LEASE_MS)
    await metadata.put(records.path(batch), b'{"about":["persistent://public/default/t"]}')
    clock.ms += LEASE_MS - 1
    assert (await records.lapse(batch, [A])).dropped == ()
    clock.ms += 1
    assert (await records.lapse(batch, [A])).dropped == (A,)
