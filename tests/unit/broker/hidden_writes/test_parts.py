"""Records of more attempts than one value of the metadata store holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.hidden_writes.parts import PARTS
from anabranch.broker.hidden_writes.records import LONG_KEPT, WriteRecords
from anabranch.metadata.memory import MemoryMetadata
from anabranch.metadata.port import MetadataStore, Versioned
from anabranch.model.hidden_writes import Claim, Fate, WriteBatch
from harness.simple_client import Hidden
from unit.broker.admin.conftest import NOW_MS, Rest, serving

BATCH = WriteBatch("job", 7)
TOPIC = "persistent://public/default/t"


@dataclass
class Clock:
    ms: int = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


def attempts(count: int, first: int = 0) -> tuple[str, ...]:
    return tuple(f"{number:032x}" for number in range(first, first + count))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def metadata(clock: Clock) -> AsyncIterator[MetadataStore]:
    handle = await MemoryMetadata(clock).connect()
    yield handle
    await handle.close()


async def test_a_batch_of_very_many_attempts_is_decided_claimed_and_forgotten(
    metadata: MetadataStore, clock: Clock
) -> None:
    records, winners, lost = WriteRecords(metadata), attempts(60_000), attempts(45_000, 10**6)
    # In steps, as owners drop what each of them knows of.
    for at in range(0, len(lost), 9000):
        await records.drop(BATCH, lost[at : at + 9000])
    record = await records.decide(BATCH, winners, [TOPIC])
    assert (record.winners, record.dropped) == (winners, lost)
    assert await WriteRecords(metadata).get(BATCH) == record
    parts = await metadata.children(PARTS)
    claimed = await records.claim(BATCH, Claim("run", "x"))
    assert claimed is not None
    assert claimed.winners == winners
    assert await metadata.children(PARTS) == parts, "they are not written again"
    clock.ms += 1
    await records.sweep_parts(clock.ms)
    assert await metadata.children(PARTS) == parts, "they are old, and in use"
    expired = await records.expired(BATCH, clock.ms)
    assert expired is not None
    await records.strike_off(expired, [TOPIC])
    assert await records.get(BATCH) is None
    assert await metadata.children(PARTS) == []


async def test_whoever_decides_second_leaves_no_parts(metadata: MetadataStore) -> None:
    records, sides = WriteRecords(metadata), (attempts(25_000), attempts(25_000, 10**6))
    found = await asyncio.gather(*(records.decide(BATCH, side, [TOPIC]) for side in sides))
    assert found[0].winners == found[1].winners
    assert found[0].winners in sides
    assert len(await metadata.children(PARTS)) == 2


async def test_parts_that_no_record_names_are_removed_when_they_are_old(
    metadata: MetadataStore, clock: Clock
) -> None:
    records = WriteRecords(metadata)
    await records.decide(BATCH, attempts(25_000), [TOPIC])
    # A broker that died before it stored the record: here the record goes without its parts.
    await metadata.delete(records.path(BATCH))
    await records.sweep_parts(clock.ms)
    assert len(await metadata.children(PARTS)) == 2
    clock.ms += 1
    await records.sweep_parts(clock.ms)
    assert await metadata.children(PARTS) == []


async def test_a_job_of_more_tasks_than_a_value_holds_is_decided_over_rest() -> None:
    config = BrokerConfig(hidden_writes_check_interval_seconds=1e6)
    async with serving(MemoryMetadata(lambda: NOW_MS), config) as rest:
        winners = attempts(40_000)
        producer = await rest.client.producer(TOPIC, hidden=Hidden(BATCH.write, BATCH.batch, winners[-1]))
        await (await producer.send(b"won"))
        consumer = await rest.client.consumer(TOPIC, "s", earliest=True)
        body = {"winners": winners, "topics": [TOPIC]}
        path = f"/admin/v2/anabranch/writes/{BATCH.write}/{BATCH.batch}"
        answer = (await rest.call("PUT", path, json=body)).json()
        assert answer["winners"] == list(winners)
        await _reveal(rest)
        async with asyncio.timeout(20):
            assert (await consumer.receive()).payload == b"won"


async def _reveal(rest: Rest) -> None:
    path = "/admin/v2/anabranch/reveal/persistent/public/default/t"
    await rest.call("POST", path, 204, params={"write": BATCH.write, "batch": str(BATCH.batch)})


async def test_a_long_record_is_read_once_until_somebody_changes_it(
    metadata: MetadataStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of a batch's topics asks for it."""
    records, others = WriteRecords(metadata), WriteRecords(metadata)
    await others.drop(BATCH, attempts(30_000))
    asked: list[str] = []
    get = metadata.get

    async def counted(path: str, *, fresh: bool = False) -> Versioned | None:
        asked.append(path)
        return await get(path, fresh=fresh)

    monkeypatch.setattr(metadata, "get", counted)
    first = await records.get(BATCH)
    assert first is not None
    assert len([path for path in asked if path.startswith(PARTS)]) == 2
    asked.clear()
    assert await records.get(BATCH) is first
    assert asked == [records.path(BATCH)]
    clock.ms += 1
    decided = await others.decide(BATCH, attempts(30_000, 10**6), [TOPIC])
    assert await records.get(BATCH) == decided
    assert decided.fate(attempts(1)[0]) is Fate.DROPPED
    assert decided.fate(attempts(1, 10**6)[0]) is Fate.VISIBLE
    assert first.fate(attempts(1)[0]) is Fate.DROPPED
    assert first.fate(attempts(1, 10**6)[0]) is Fate.OPEN


async def test_no_more_long_records_are_kept_than_are_asked_for_at_once(metadata: MetadataStore) -> None:
    records = WriteRecords(metadata)
    batches = [WriteBatch("job", number) for number in range(2 * LONG_KEPT)]
    for batch in batches:
        await records.drop(batch, attempts(500, batch.batch))
    found = [await records.get(batch) for batch in batches]
    again = [await records.get(batch) for batch in reversed(batches)]
    assert again[::-1] == found
    assert sum(one is other for one, other in zip(found, again[::-1], strict=True)) == LONG_KEPT
