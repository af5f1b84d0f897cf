"""Logs whose brokers have ended are looked after by the others, until nothing but their fences is left."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count

import pytest

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.object.core.objects import LogKeys, is_fence
from anabranch.storage.object.medium import Created, MediumRefusedError, ObjectMedium
from anabranch.storage.object.memory_bucket import MemoryBucket
from anabranch.storage.object.object_store import ObjectLogStore
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.port import Buffer, FencedError, LiveLedger, LogError
from unit.storage.owners import Owner

L1, L2, L3 = LedgerId(1), LedgerId(2), LedgerId(3)
POLICY = ObjectLogPolicy(
    puts_per_second=0,
    retry_seconds=0.001,
    retry_seconds_max=0.01,
    checkpoint_seconds=3600,
    delete_delay_seconds=0,
    dead_seconds=0,
    ask_seconds=0,
    grace_seconds=0,
)
names = count(1)


class Cluster:
    """A bucket, the records of all topics, and which brokers are registered."""

    def __init__(self, bucket: MemoryBucket | None = None) -> None:
        self.bucket = bucket if bucket is not None else MemoryBucket()
        self.records: dict[str, list[LiveLedger]] = {}
        # None: that cannot be found out at present.
        self.registered: set[Incarnation] | None = set()

    async def broker(
        self, policy: ObjectLogPolicy = POLICY, medium: ObjectMedium | None = None
    ) -> ObjectLogStore:
        name = Incarnation(f"{next(names):013d}-x")
        store = ObjectLogStore(medium or self.bucket, clock_ms=lambda: 1, incarnation=name, policy=policy)
        await store.start()
        store.ask(self.living, self.writers)
        store.retain([one for found in self.records.values() for one in found])
        if self.registered is not None:
            self.registered.add(name)
        return store

    async def living(self, paths: Sequence[str]) -> Mapping[str, Sequence[LiveLedger]]:
        return {path: self.records.get(path, []) for path in paths}

    async def writers(self) -> Collection[Incarnation] | None:
        return self.registered

    def killed(self, store: ObjectLogStore) -> None:
        assert self.registered is not None
        self.registered.discard(store.incarnation)

    async def filled(
        self, store: ObjectLogStore, ledger: LedgerId, texts: Sequence[bytes], *, is_named: bool = True
    ) -> None:
        """Each text in a commit of its own, in a ledger that a record names."""
        path = f"/t/{ledger}"
        self.records[path] = [LiveLedger(ledger, store.incarnation, 0, None, "ns", path)]
        owner = Owner()
        writer = store.open_ledger(ledger, owner, "ns", path if is_named else "")
        for text in texts:
            writer.append(text, 1)
            await owner.until(writer.next_entry)

    def objects(self, incarnation: Incarnation) -> list[str]:
        """What there is of a log, its fences apart."""
        folder = LogKeys(incarnation).folder
        found = self.bucket.objects.items()
        return [
            key.removeprefix(folder) for key, data in found if key.startswith(folder) and not is_fence(data)
        ]

    def fences(self) -> set[str]:
        return {key for key, data in self.bucket.objects.items() if is_fence(data)}


async def test_the_log_of_a_broker_that_was_killed_is_given_back_by_another_one() -> None:
    cluster = Cluster()
    old, heir = await cluster.broker(), await cluster.broker()
    await cluster.filled(old, L1, [b"%d" % n for n in range(4)])
    await cluster.filled(old, L2, [b"x"] * 3)
    await old._log.checkpoint()
    cluster.killed(old)
    # One topic was opened elsewhere and trimmed, the other one was deleted.
    cluster.records = {"/t/1": [LiveLedger(L1, old.incarnation, 3, 4, "ns", "/t/1")]}
    await heir.reclaim()
    assert len([one for one in cluster.objects(old.incarnation) if one.startswith("/log")]) == 1
    heir.know(cluster.records["/t/1"])
    read = await heir.read(L1, old.incarnation, 3, 4, 9, 1 << 20)
    assert [bytes(data) for _, _, data in read] == [b"3"]
    fences = cluster.fences()
    assert len(fences) >= 8
    # It slept for long, and is no writer any more.
    with pytest.raises(FencedError):
        await cluster.filled(old, L3, [b"late"])
    cluster.records = {}
    await heir.reclaim()
    assert cluster.objects(old.incarnation) == ["/gone"]
    assert cluster.fences() >= fences
    assert not {key for key in cluster.bucket.objects if key.startswith(("logs/", "ended/"))} - {
        f"logs/{heir.incarnation}"
    }
    late = await cluster.broker()
    assert await late.take(old.incarnation, [L1]) == {}
    assert await late.take(old.incarnation, None) == {}


async def test_a_ledger_without_entries_keeps_its_state_as_long_as_a_record_names_it() -> None:
    cluster = Cluster()
    old, heir = await cluster.broker(), await cluster.broker()
    await cluster.filled(old, L1, [])
    owner = Owner()
    old.open_ledger(L2, owner, "ns", "/t/2").append_snapshot(b"cursors")
    cluster.records["/t/2"] = [LiveLedger(L2, old.incarnation, 0, None, "ns", "/t/2")]
    await owner.until(states=1)
    await old._log.checkpoint()
    cluster.killed(old)
    await heir.reclaim()
    await heir.reclaim()
    late = await cluster.broker()
    assert (await late.take(old.incarnation, [L2]))[L2].snapshot == b"cursors"
    cluster.records = {}
    await heir.reclaim()
    await late.reclaim()
    assert cluster.objects(old.incarnation) == ["/gone"]


async def test_a_log_is_left_alone_unless_its_broker_is_known_to_have_ended() -> None:
    cluster = Cluster()
    old, heir = await cluster.broker(), await cluster.broker()
    patient = await cluster.broker(replace(POLICY, dead_seconds=3600))
    await cluster.filled(old, L1, [b"x"])
    cluster.records = {}
    before = cluster.objects(old.incarnation)
    await heir.reclaim()
    assert cluster.objects(old.incarnation) == before, "it is registered"
    assert cluster.registered is not None
    cluster.registered = None
    await heir.reclaim()
    assert cluster.objects(old.incarnation) == before, "nobody knows"
    cluster.registered = {patient.incarnation}
    await heir.reclaim()
    assert cluster.objects(old.incarnation) == before, "a broker that is not registered judges no other"
    await patient.reclaim()
    assert cluster.objects(old.incarnation) == before, "it may come back"
    owner = Owner()
    old.open_ledger(L2, owner, "ns", "/t/2").append(b"goes on", 1)
    await owner.until(1)


async def test_a_broker_whose_log_was_taken_deletes_nothing_more() -> None:
    cluster = Cluster()
    old, heir = await cluster.broker(), await cluster.broker()
    await cluster.filled(old, L1, [b"x"] * 3)
    await old._log.checkpoint()
    await heir.take(old.incarnation, None)
    with pytest.raises(FencedError):
        await cluster.filled(old, L2, [b"late"])
    before = dict(cluster.bucket.objects)
    old.trim(L1, old.incarnation, 3)
    await old.reclaim()
    assert cluster.bucket.objects == before


async def test_of_several_brokers_one_looks_after_a_log() -> None:
    cluster = Cluster()
    old = [await cluster.broker() for _ in range(12)]
    heirs = [await cluster.broker() for _ in range(3)]
    for one in old:
        cluster.killed(one)
    mine = [await heir._ended_logs.mine() for heir in heirs]
    assert sorted(name for one in mine for name in one) == sorted(one.incarnation for one in old)
    assert all(mine)


async def test_a_record_that_cannot_be_read_keeps_what_it_may_name() -> None:
    cluster = Cluster()
    old, heir = await cluster.broker(), await cluster.broker()
    await cluster.filled(old, L1, [b"kept"])
    await old._log.checkpoint()
    cluster.killed(old)

    async def living(paths: Sequence[str]) -> Mapping[str, Sequence[LiveLedger]]:
        return {}

    heir.ask(living, cluster.writers)
    await heir.reclaim()
    await heir.reclaim()
    assert len([one for one in cluster.objects(old.incarnation) if one.startswith("/log")]) == 1


async def test_what_a_log_does_not_say_whose_it_is_is_kept_until_a_broker_has_read_all_records_since() -> (
    None
):
    """A ledger that was opened after the last checkpoint, whose topic no broker here has opened."""
    cluster = Cluster()
    old, heir = await cluster.broker(), await cluster.broker()
    await cluster.filled(old, L1, [b"new"])
    cluster.killed(old)
    await heir.reclaim()
    await heir.reclaim()
    assert len([one for one in cluster.objects(old.incarnation) if one.startswith("/log")]) == 1
    # The topic is deleted while its owner does not live.
    cluster.records = {}
    await heir.reclaim()
    assert "/gone" not in cluster.objects(old.incarnation)
    cluster.killed(heir)
    later = await cluster.broker()
    await later.reclaim()
    assert cluster.objects(old.incarnation) == ["/gone"]


async def test_a_cluster_that_restarts_its_brokers_for_a_year_does_not_grow() -> None:
    cluster = Cluster()
    sizes = []
    store = await cluster.broker()
    for day in range(40):
        ledger = LedgerId(100 + day)
        await cluster.filled(store, ledger, [b"day %d" % day] * 5)
        # What is older than three days is deleted.
        cluster.records.pop(f"/t/{100 + day - 3}", None)
        if day % 2:
            await store.close()
        cluster.killed(store)
        store = await cluster.broker()
        await store.reclaim()
        await store.reclaim()
        kept = [
            key
            for key, data in cluster.bucket.objects.items()
            if not is_fence(data) and not key.endswith("/gone")
        ]
        sizes.append(len(kept))
        assert len([key for key in kept if key.startswith(("logs/", "ended/"))]) < 12
    assert max(sizes[20:]) <= max(sizes[:10])
    for day in range(37, 40):
        ledger = LedgerId(100 + day)
        (named,) = cluster.records[f"/t/{ledger}"]
        assert len(await store.read(ledger, named.incarnation, 0, 5, 9, 1 << 20)) == 5


class Stopping(MemoryBucket):
    """Stops answering a broker after so many of its requests that change something."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 1 << 30

    async def create(self, key: str, parts: Sequence[Buffer]) -> Created:
        self._count()
        return await super().create(key, parts)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._count()
            await super().delete([key])

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise MediumRefusedError("the broker was killed here")


@pytest.mark.parametrize("requests", range(1, 30, 2))
async def test_a_broker_killed_while_it_gives_a_log_back_leaves_nothing_behind(requests: int) -> None:
    bucket = Stopping()
    cluster = Cluster(bucket)
    old, second = await cluster.broker(), await cluster.broker()
    for n, ledger in enumerate((L1, L2, L3)):
        await cluster.filled(old, ledger, [b"x"] * (n + 1))
        await old._log.checkpoint()
    cluster.killed(old)
    await second.take(old.incarnation, [L1])
    await second.take(old.incarnation, [L2, L3])
    cluster.records = {}
    bucket.left = requests
    with contextlib.suppress(LogError):
        await second.reclaim()
    bucket.left = 1 << 30
    cluster.killed(second)
    third = await cluster.broker()
    await third.reclaim()
    await third.reclaim()
    assert cluster.objects(old.incarnation) == ["/gone"]
    assert cluster.objects(second.incarnation) in (["/gone"], [])
    assert not [key for key in bucket.objects if key.startswith("ended/")]


async def test_logs_without_marks_are_found_by_a_sole_broker() -> None:
    """A release before the marks has written them."""
    cluster = Cluster()
    old = await cluster.broker()
    await cluster.filled(old, L1, [b"x"])
    for key in [key for key in cluster.bucket.objects if key.startswith(("logs/", "ended/"))]:
        del cluster.bucket.objects[key]
    sole = ObjectLogStore(cluster.bucket, clock_ms=lambda: 1, policy=POLICY, is_sole=True)
    await sole.start()
    sole.retain([])
    await sole.reclaim()
    assert cluster.objects(old.incarnation) == ["/gone"]
