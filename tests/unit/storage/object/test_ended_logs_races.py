"""Giving back the logs of others while brokers sleep, come late, or know only a part."""

from __future__ import annotations

import asyncio
import contextlib
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import pytest
from crc32c import crc32c

from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.core.topic_record import CompactedLedger, TopicRecord
from anabranch.storage.object.core.objects import LogKeys
from anabranch.storage.object.medium import Created, MediumRefusedError
from anabranch.storage.object.memory_bucket import MemoryBucket
from anabranch.storage.object.object_store import ObjectLogStore
from anabranch.storage.port import Buffer, LiveLedger, LogError
from anabranch.storage.topic.ledger_ids import LedgerIds
from anabranch.storage.topic.topic_log import TopicLog
from unit.storage.object.test_ended_logs import POLICY, Cluster, Stopping
from unit.storage.owners import Owner
from unit.storage.topic.test_topic_log import Owner as TopicOwner

L1, L2, L3 = LedgerId(1), LedgerId(2), LedgerId(3)
PATH = "/managed-ledgers/public/default/persistent/t"


@pytest.mark.parametrize("is_in_checkpoint", [True, False])
async def test_what_a_sleeping_broker_names_when_it_wakes_is_there(is_in_checkpoint: bool) -> None:
    """Compaction has written its ledger, and the broker sleeps before the record names it. It is taken for dead; it
    wakes and names the ledger: no other broker has changed the record meanwhile."""
    cluster = Cluster()
    metadata = MemoryMetadata(lambda: 1000)
    first, second = await metadata.connect(), await metadata.connect()
    old, heir = await cluster.broker(), await cluster.broker()
    await TopicLog.create(PATH, first, 1000)
    log = await TopicLog.open(PATH, "public/default", old, first, LedgerIds(first), 1000)
    cluster.records[PATH] = log.topic_record.live(PATH, "public/default")
    owner = TopicOwner()
    log.start(owner)
    log.append(b"one", 1)
    await owner.until(lambda: owner.end == 1)
    writer = log.compacted_writer(await LedgerIds(first).next(0))
    await writer.write([b"what is left"], [1])
    writer.close()
    if is_in_checkpoint:
        await old._log.checkpoint()
    # It sleeps here.
    cluster.killed(old)
    await heir.reclaim()
    # This one begins after the log has ended, and has read all records since.
    cluster.killed(heir)
    later = await cluster.broker()
    for _ in range(3):
        await later.reclaim()
    # It wakes.
    left = CompactedLedger(
        id=writer.ledger, incarnation=old.incarnation, entries=1, end=1, upto=log.end, created_ms=1000
    )
    await log.use_compacted(left, lambda: None)
    found = await second.get(PATH, fresh=True)
    assert found is not None
    record = TopicRecord.decode(found.value)
    assert record.compacted == left
    later.know(record.live(PATH, "public/default"))
    read = await later.read(writer.ledger, old.incarnation, 0, 1, 9, 1 << 20)
    assert [bytes(data) for _, _, data in read] == [b"what is left"]


class Counting(MemoryBucket):
    def __init__(self) -> None:
        super().__init__()
        self.creates = 0

    async def create(self, key: str, parts: Sequence[Buffer]) -> Created:
        self.creates += 1
        return await super().create(key, parts)


async def test_a_broker_that_knows_early_answers_of_a_log_finds_that_it_is_gone() -> None:
    """A topic whose ledger was named, and never written before the kill, is opened after the log was given back."""
    bucket = Counting()
    cluster = Cluster(bucket)
    old, mover, heir = await cluster.broker(), await cluster.broker(), await cluster.broker()
    await cluster.filled(old, L1, [b"%d" % n for n in range(300)])
    await old._log.checkpoint()
    await mover.take(old.incarnation, [L1])
    cluster.killed(old)
    cluster.killed(mover)  # Or: it is simply not the one that looks after this log.
    cluster.records = {}
    await heir.reclaim()
    await heir.reclaim()
    assert cluster.objects(old.incarnation) == ["/gone"]
    bucket.creates = 0
    assert await mover.take(old.incarnation, [L2]) == {}
    assert bucket.creates <= 1, f"{bucket.creates} objects were created for a log that is gone"
    assert cluster.objects(old.incarnation) == ["/gone"]


async def test_a_broker_that_knows_early_answers_finishes_what_another_one_began_to_give_back() -> None:
    bucket = Stopping()
    cluster = Cluster(bucket)
    old, mover, heir = await cluster.broker(), await cluster.broker(), await cluster.broker()
    await cluster.filled(old, L1, [b"x"])
    await old._log.checkpoint()
    await mover.take(old.incarnation, [L1])
    for n in range(3):
        await cluster.filled(old, LedgerId(10 + n), [b"x"])
        await old._log.checkpoint()
    cluster.killed(old)
    cluster.killed(mover)
    cluster.records = {}
    # Killed after it has deleted all answers and the first checkpoint.
    states = LogKeys(old.incarnation).state(1)

    class Killed(MediumRefusedError): ...

    delete = bucket.delete

    async def until_states(keys: Sequence[str]) -> None:
        for key in keys:
            await delete([key])
            if key == states:
                raise Killed("killed here")

    bucket.delete = until_states  # type: ignore[method-assign]
    with contextlib.suppress(LogError):
        await heir.reclaim()
    bucket.delete = delete  # type: ignore[method-assign]
    assert states not in bucket.objects
    assert LogKeys(old.incarnation).state(2) in bucket.objects
    cluster.killed(heir)
    assert cluster.registered is not None
    cluster.registered.add(mover.incarnation)
    for _ in range(3):
        await mover.reclaim()
    assert [one for one in cluster.objects(old.incarnation) if "state" in one] == []
    assert cluster.objects(old.incarnation) == ["/gone"]


async def test_a_log_that_cannot_be_recovered_gets_no_new_fences_at_each_pass() -> None:
    cluster = Cluster()
    old, heir = await cluster.broker(), await cluster.broker()
    await cluster.filled(old, L1, [b"%d" % n for n in range(6)])
    cluster.killed(old)
    # A lifecycle rule, or a person.
    del cluster.bucket.objects[LogKeys(old.incarnation).number(2)]
    counts = []
    for _ in range(8):
        await heir.reclaim()
        counts.append(len(cluster.fences()))
    assert counts[-1] == counts[0], counts


async def test_a_log_that_cannot_be_read_does_not_stop_those_after_it() -> None:
    cluster = Cluster()
    strange, old, heir = [await cluster.broker() for _ in range(3)]
    await cluster.filled(old, L1, [b"x"])
    await cluster.filled(strange, L2, [b"x"])
    await old._log.checkpoint()
    for one in (strange, old):
        cluster.killed(one)
    # As a later release may write it.
    body = b"anbrsta1" + msgspec.msgpack.encode({"version": 2})
    cluster.bucket.objects[LogKeys(strange.incarnation).state(1)] = body + crc32c(body).to_bytes(4, "little")
    cluster.records = {}
    for _ in range(3):
        with contextlib.suppress(Exception):
            await heir.reclaim()
    assert cluster.objects(old.incarnation) == ["/gone"]


async def test_a_broker_remembers_nothing_of_logs_that_it_has_given_back() -> None:
    cluster = Cluster()
    heir = await cluster.broker()
    for n in range(10):
        old = await cluster.broker()
        await cluster.filled(old, LedgerId(100 + n), [b"x"])
        await old._log.checkpoint()
        cluster.killed(old)
        cluster.records = {}
        await heir.reclaim()
        await heir.reclaim()
        assert cluster.objects(old.incarnation) == ["/gone"]
    assert len(heir._others) < 3


async def test_one_look_at_a_log_with_many_checkpoints_takes_bounded_memory() -> None:
    peaks = []
    for checkpoints in (40, 400):
        cluster = Cluster()
        old = await cluster.broker()
        for n in range(200):
            old.open_ledger(LedgerId(1000 + n), Owner(), "ns", f"/a/path/that/is/long/{n}" * 4).append(
                b"x", 1
            )
        for n in range(checkpoints):
            await cluster.filled(old, LedgerId(5000 + n), [b"x"])
            await old._log.checkpoint()
        reader = await cluster.broker()
        tracemalloc.start()
        await reader._other(old.incarnation).index.look()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 3 * peaks[0], peaks


async def test_a_broker_seen_missing_twice_with_nothing_known_between_is_not_dead() -> None:
    """It registers anew each time the metadata comes back, a moment later than the broker that looks."""
    cluster = Cluster()
    policy = replace(POLICY, dead_seconds=1e-9)
    old, heir = await cluster.broker(), await cluster.broker(policy)
    cluster.registered = {heir.incarnation}
    assert await heir._ended_logs.mine() == []
    cluster.registered = None
    assert await heir._ended_logs.mine() == []
    cluster.registered = {heir.incarnation}
    assert await heir._ended_logs.mine() == [], "nobody knows that it was silent all the time"
    assert old.ended is None


async def test_two_brokers_with_one_name_are_refused() -> None:
    bucket = MemoryBucket()
    name = Incarnation("0000000000001-same")
    first = ObjectLogStore(bucket, clock_ms=lambda: 1, incarnation=name, policy=POLICY)
    await first.start()
    second = ObjectLogStore(bucket, clock_ms=lambda: 1, incarnation=name, policy=POLICY)
    with pytest.raises(LogError):
        await second.start()


async def test_a_reader_does_not_wait_for_the_metadata() -> None:
    """The records of a log cannot be read for long: its entries can."""
    cluster = Cluster()
    old, heir = await cluster.broker(), await cluster.broker()
    await cluster.filled(old, L1, [b"x"])
    await old._log.checkpoint()
    cluster.killed(old)
    heir.know(cluster.records["/t/1"])
    asking, never = asyncio.Event(), asyncio.Event()

    async def living(paths: Sequence[str]) -> Mapping[str, Sequence[LiveLedger]]:
        asking.set()
        await never.wait()
        return {}

    heir.ask(living, cluster.writers)
    pass_ = asyncio.create_task(heir.reclaim())
    await asyncio.wait_for(asking.wait(), 5)
    try:
        # An entry that is not there yet, or whose place was dropped: the index is asked again.
        with pytest.raises(LogError):
            await asyncio.wait_for(heir.read(L1, old.incarnation, 5, 6, 9, 1 << 20), 2)
    finally:
        pass_.cancel()
        await asyncio.gather(pass_, return_exceptions=True)


async def test_two_that_give_back_one_log_leave_no_mark() -> None:
    cluster = Cluster()
    old, one, two = [await cluster.broker() for _ in range(3)]
    await cluster.filled(old, L1, [b"x"])
    await old._log.checkpoint()
    cluster.killed(old)
    cluster.records = {}
    # Both were told that the log is theirs, at different moments, and one is slower.
    await two._other(old.incarnation).take(None)
    mine = two._ended_logs.mine

    async def slowly() -> list[Incarnation]:
        found = [old.incarnation]
        for _ in range(3):
            await one.reclaim()
        return found

    if old.incarnation not in await one._ended_logs.mine():
        one, two = two, one
    two._ended_logs.mine = slowly  # type: ignore[method-assign]
    await two.reclaim()
    two._ended_logs.mine = mine  # type: ignore[method-assign]
    await two.reclaim()
    # The next broker that starts.
    await cluster.broker()
    assert [key for key in cluster.bucket.objects if key.startswith("ended/")] == []


class Parking(MemoryBucket):
    """Lets a broker wait before it reads an object."""

    def __init__(self, inner: MemoryBucket, key: str) -> None:
        super().__init__()
        self.objects = inner.objects
        self.key = key
        self.parked, self.go = asyncio.Event(), asyncio.Event()

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        if key == self.key:
            self.parked.set()
            await self.go.wait()
        return await super().get(key, start, length)


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("key", ["number3", "state1"])
async def test_a_recovery_that_sleeps_while_another_broker_deletes_has_the_others_answer(
    key: str, is_gone: bool
) -> None:
    cluster = Cluster()
    old, heir = await cluster.broker(), await cluster.broker()
    await cluster.filled(old, L2, [b"kept"])
    await old._log.checkpoint()
    await cluster.filled(old, L1, [b"%d" % n for n in range(5)])
    keys = LogKeys(old.incarnation)
    medium = Parking(cluster.bucket, keys.number(3) if key == "number3" else keys.state(1))
    sleeper = await cluster.broker(medium=medium)
    cluster.killed(old)
    cluster.killed(sleeper)
    taking = asyncio.create_task(sleeper.take(old.incarnation, [L1, L2]))
    await asyncio.wait_for(medium.parked.wait(), 5)
    if is_gone:
        cluster.records = {}
    else:
        cluster.records.pop("/t/1")
        heir.know([LiveLedger(L1, old.incarnation, 0, 5, "ns", "/t/1")])
    for _ in range(3):
        await heir.reclaim()
    medium.go.set()
    states = await taking
    if not is_gone:
        assert states[L1].entries_end == 5
        assert states[L2].entries_end == 1
