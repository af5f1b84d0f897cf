"""Rewritten files move to an object store, and nothing is lost on the way, whatever fails at whichever step."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import pytest

from anabranch.model.position import LedgerId
from anabranch.storage.core.tiered import TierError
from anabranch.storage.object.medium import Created, MediumError
from anabranch.storage.on_disk.moving import TierPolicy, choose_moves
from anabranch.storage.on_disk.reclaim import FileFacts
from anabranch.storage.port import Buffer, LogDamagedError, LogMissingError
from unit.storage.tier.machine import FILE, HOUR, Bucket, TieredMachine, check, path_of, text

L1 = LedgerId(1)
MB = 1 << 20


# -- what is moved


def facts(id_: int, disk: int, live: int | None = None) -> FileFacts:
    return FileFacts(id_, disk, disk if live is None else live, 1, True, record_bytes=disk)


def test_the_oldest_files_are_moved_until_the_rest_fits() -> None:
    files = [facts(1, 10), facts(2, 10), facts(3, 10)]
    assert choose_moves(files, 0, 0, is_full=False) == ()
    assert choose_moves(files, 1, 0, is_full=False) == (1,)
    assert choose_moves(files, 11, 0, is_full=False) == (1, 2)
    assert choose_moves(files, 99, 0, is_full=False) == (1, 2, 3)


def test_small_mostly_dead_and_dead_files_are_not_worth_an_object_unless_the_disk_is_full() -> None:
    files = [facts(1, 3), facts(2, 10, live=4), facts(3, 10, live=0), facts(4, 10)]
    assert choose_moves(files, 99, 4, is_full=False) == (4,)
    assert choose_moves(files, 99, 4, is_full=True) == (1, 2, 4)


def test_a_job_is_bounded() -> None:
    assert choose_moves([facts(n, 1) for n in range(20)], 99, 0, is_full=False) == tuple(range(8))


def test_no_more_than_a_quarter_of_the_room_stays_and_nothing_on_a_full_disk() -> None:
    policy = TierPolicy(8 * MB, small_bytes=0)
    assert policy.local_bytes(capacity=None, is_full=False) == 8 * MB
    assert policy.local_bytes(capacity=100 * MB, is_full=False) == 8 * MB
    assert policy.local_bytes(capacity=16 * MB, is_full=False) == 4 * MB
    assert policy.local_bytes(capacity=100 * MB, is_full=True) == 0


# -- moving


@pytest.mark.parametrize("is_shared", [False, True])
async def test_files_move_and_are_read_where_they_are_also_after_a_restart(is_shared: bool) -> None:
    machine = TieredMachine()
    store = await machine.boot(is_shared=is_shared)
    own = store.incarnation
    await machine.write(store, [1, 2], 400)
    before = store.stats()["disk_bytes"]
    await store.reclaim()
    figures = store.stats()
    assert figures["tier_objects"] == len(machine.bucket.objects) > 3
    assert figures["tier_bytes"] == sum(map(len, machine.bucket.objects.values())) > 6 * FILE
    assert figures["tier_moved_bytes"] == figures["tier_bytes"]
    assert machine.names(".led") == []
    assert len(machine.names(".tier")) == figures["tier_objects"]
    if not is_shared:
        assert figures["disk_bytes"] < before / 2
        # What is in the store takes no room here.
        assert figures["live_bytes"] <= figures["disk_bytes"]
    for ledger in (1, 2):
        await check(store, ledger, own, 0, 400)
    await store.close()

    store = await machine.boot(is_shared=is_shared)
    for ledger in (1, 2):
        await check(store, ledger, own, 0, 400)
    await store.close()


async def test_what_is_recent_stays() -> None:
    machine = TieredMachine(local_bytes=4 * FILE)
    store = await machine.boot()
    await machine.write(store, [1], 600)
    await store.reclaim()
    figures = store.stats()
    assert 2 * FILE < figures["disk_bytes"] <= 5.5 * FILE
    gets = machine.bucket.gets
    await check(store, 1, store.incarnation, 500, 600)
    assert machine.bucket.gets == gets
    await check(store, 1, store.incarnation, 0, 600)
    await store.close()


async def test_a_reader_that_reads_on_asks_for_each_block_once_and_ahead() -> None:
    machine = TieredMachine()
    store = await machine.boot()
    await machine.write(store, [1], 300)
    await store.reclaim()
    machine.bucket.gets = 0
    first = 0
    while first < 250:
        first += len(await store.read(L1, store.incarnation, first, 300, 5, 1 << 20))
    blocks = sum(-(-len(data) // (16 << 10)) for data in machine.bucket.objects.values())
    assert machine.bucket.gets <= blocks + 1
    await store.close()


async def test_objects_are_deleted_once_retention_has_passed_and_no_plan_names_them() -> None:
    machine = TieredMachine()
    store = await machine.boot()
    own = store.incarnation
    await machine.write(store, [1], 400)
    await store.reclaim()
    count = len(machine.bucket.objects)
    plan = await store.plan(L1, own, 0, 200)
    store.trim(L1, own, 200)
    await store.reclaim()
    # Everything that the plan names.
    assert {run.key for run in plan.objects} <= set(machine.bucket.objects)
    machine.now += 501
    await store.reclaim()
    assert 0 < len(machine.bucket.objects) < count
    assert len(machine.names(".tier")) == len(machine.bucket.objects)
    await check(store, 1, own, 200, 400)
    with pytest.raises(LogMissingError, match="trimmed"):
        await check(store, 1, own, 0, 1)
    store.delete(L1, own)
    await store.reclaim()
    assert machine.bucket.objects == {}
    assert machine.names(".tier") == []
    await store.close()


async def test_plans_name_files_or_objects_and_end_where_these_change() -> None:
    machine = TieredMachine(local_bytes=4 * FILE)
    store = await machine.boot()
    await machine.write(store, [1], 600)
    await store.reclaim()
    first, kinds = 0, []
    while first < 600:
        plan = await store.plan(L1, store.incarnation, first, 600)
        assert plan.first == first < plan.end
        assert bool(plan.objects) != bool(plan.runs)
        kinds.append("objects" if plan.objects else "files")
        assert (plan.objects_url == "s3://river/old") == bool(plan.objects)
        at = first
        for run in plan.objects:
            assert run.first == at
            data = machine.bucket.objects[run.key][run.offset : run.offset + run.length]
            assert data.count(b":x") == run.end - run.first
            assert data[32:].startswith(text(1, run.first))
            at = run.end
        assert not plan.objects or at == plan.end
        first = plan.end
    assert kinds == ["objects", "files"]
    await store.close()


# -- a full disk


async def test_a_full_disk_is_freed_by_moving_files_that_are_all_alive() -> None:
    machine = TieredMachine(capacity=24 * FILE, local_bytes=1 << 40)
    store = await machine.boot()
    own = store.incarnation
    ledger = 1
    # A quarter of the room may stay; more is written than the disk has.
    for ledger in range(1, 9):
        await machine.write(store, [ledger], 400)
        for _ in range(3):
            await store.reclaim()
        assert store.is_accepting
    assert store.stats()["tier_bytes"] > 24 * FILE
    for one in range(1, ledger + 1):
        await check(store, one, own, 0, 400)
    await store.close()


async def test_a_disk_that_is_full_while_the_store_is_away_is_freed_once_it_is_back() -> None:
    machine = TieredMachine(capacity=26 * FILE, local_bytes=1 << 40)
    machine.bucket.is_away = True
    store = await machine.boot()
    await machine.write(store, [1], 1_300)
    await store.reclaim()
    assert not store.is_accepting
    await check(store, 1, store.incarnation, 0, 1_300)
    machine.bucket.is_away = False
    for _ in range(12):
        await store.reclaim()
        machine.now += 501
    assert store.is_accepting
    await check(store, 1, store.incarnation, 0, 1_300)
    await store.close()


# -- the store is away, wrong or has lost something


async def test_publishing_and_recent_reads_go_on_while_the_store_is_away() -> None:
    machine = TieredMachine(local_bytes=4 * FILE)
    store = await machine.boot()
    own = store.incarnation
    await machine.write(store, [1], 600)
    await store.reclaim()
    await store.close()
    store = await machine.boot()
    machine.bucket.is_away = True
    with pytest.raises(MediumError, match="away"):
        await store.read(L1, own, 0, 600, 10, MB)
    await machine.write(store, [2], 600)
    await store.reclaim()
    assert store.stats()["tier_failures"] > 0
    await check(store, 2, store.incarnation, 0, 600)
    await check(store, 1, own, 590, 600)
    machine.bucket.is_away = False
    await store.reclaim()
    assert store.stats()["tier_objects"] > 3
    for ledger, incarnation in ((1, own), (2, store.incarnation)):
        await check(store, ledger, incarnation, 0, 600)
    await store.close()


async def test_a_missing_object_is_told_by_its_name_and_stops_its_ledger_only() -> None:
    machine = TieredMachine()
    store = await machine.boot()
    own = store.incarnation
    await machine.write(store, [1], 200)
    await store.reclaim()
    gone = set(machine.bucket.objects)
    await machine.write(store, [2], 200)
    await store.reclaim()
    for key in gone:
        del machine.bucket.objects[key]
    with pytest.raises(LogMissingError) as error:
        await store.read(L1, own, 0, 200, 10, MB)
    assert any(key in str(error.value) for key in gone)
    await check(store, 2, own, 0, 200)
    await store.close()


async def test_damage_in_an_object_is_told_with_the_place_and_read_past() -> None:
    machine = TieredMachine()
    store = await machine.boot()
    await machine.write(store, [1], 200)
    await store.reclaim()
    key = next(key for key, data in machine.bucket.objects.items() if b"1:7:" in data)
    data = bytearray(machine.bucket.objects[key])
    at = data.index(b"1:7:")
    data[at + 100] ^= 1
    machine.bucket.objects[key] = bytes(data)
    await check(store, 1, store.incarnation, 0, 7)
    with pytest.raises(LogDamagedError) as error:
        await store.read(L1, store.incarnation, 7, 200, 10, MB)
    assert (error.value.first_bad, error.value.next_good) == (7, 8)
    assert error.value.where == f"memory:///{key}"
    assert error.value.offset == at - 32
    await check(store, 1, store.incarnation, 8, 200)
    await store.close()


async def test_a_damaged_file_is_not_moved() -> None:
    machine = TieredMachine(local_bytes=1 << 40)
    store = await machine.boot()
    await machine.write(store, [1, 2], 200)
    # Half of what is there dies, so that the rest is rewritten.
    store.delete(LedgerId(2), store.incarnation)
    await store.reclaim()
    files = machine.names(".led")
    machine.disk.names[files[0]].data[300] ^= 1
    await store.close()
    machine.local_bytes = 0
    del machine.records[path_of(2)]
    store = await machine.boot()
    await store.reclaim()
    await store.reclaim()
    assert files[0] in machine.names(".led")
    assert machine.names(".tier")
    await store.close()


class Liar(Bucket):
    """Stores other bytes than it is given, once."""

    lies = 1

    async def create(self, key: str, parts: Sequence[Buffer]) -> Created:
        if self.lies:
            self.lies -= 1
            parts = [bytes(len(parts[0]))]
        return await super().create(key, parts)


async def test_what_is_read_back_wrong_is_put_again_under_another_name() -> None:
    machine = TieredMachine(bucket=Liar())
    store = await machine.boot()
    await machine.write(store, [1], 200)
    await store.reclaim()
    assert machine.names(".led") == []
    assert len(machine.bucket.objects) == len(machine.names(".tier")) + 1
    await check(store, 1, store.incarnation, 0, 200)
    await store.close()


async def test_a_log_with_moved_files_says_what_is_missing_without_its_store_and_keeps_all() -> None:
    machine = TieredMachine()
    store = await machine.boot()
    own = store.incarnation
    await machine.write(store, [1], 200)
    await store.reclaim()
    await store.close()
    kept = machine.names(".tier")
    machine.records.clear()
    store = await machine.boot(has_tier=False)
    await store.reclaim()
    assert machine.names(".tier") == kept
    await store.close()
    machine.name(1, own, 0, 200)
    store = await machine.boot(has_tier=False)
    with pytest.raises(TierError, match="set logTierUrl"):
        await store.read(L1, own, 0, 200, 10, MB)
    await store.close()


# -- orphans


async def test_orphans_in_which_nothing_lives_are_deleted_and_others_are_kept() -> None:
    machine = TieredMachine()
    store = await machine.boot()
    own = store.incarnation
    await machine.write(store, [1], 200)
    await store.reclaim()
    ours = set(machine.bucket.objects)
    log_id = next(iter(ours)).partition("/")[0]
    some = next(iter(ours))
    # A copy that was made before its mover was killed, the same of another log, and what is no copy at all.
    orphan = f"{log_id}/public/default/000000000001-0000-ffffffff.led"
    machine.bucket.objects[orphan] = machine.bucket.objects[some]
    machine.bucket.objects["other/public/default/000000000001-0000-ffffffff.led"] = b"of another log"
    machine.bucket.objects[f"{log_id}/notes.txt"] = b"do not touch"
    machine.now += 7 * HOUR
    await store.reclaim()
    assert orphan in machine.bucket.objects
    assert store.stats()["tier_orphans"] == 2
    machine.now += 2 * HOUR
    await store.reclaim()
    assert set(machine.bucket.objects) == ours | {
        "other/public/default/000000000001-0000-ffffffff.led",
        f"{log_id}/notes.txt",
    }
    # An index file was lost with what it stood for: the object is all that is left.
    await store.close()
    lost = machine.names(".tier")[0]
    key = next(key for key in ours if key.endswith(f"/{lost.stem}.led"))
    del machine.disk.names[lost]
    store = await machine.boot()
    for _ in range(3):
        await store.reclaim()
        machine.now += 7 * HOUR
    assert key in machine.bucket.objects
    machine.now += 7 * HOUR
    store.delete(L1, own)
    await store.reclaim()
    await store.reclaim()
    assert key not in machine.bucket.objects
    await store.close()


# -- killed at any step


@pytest.mark.parametrize("is_shared", [False, True])
async def test_nothing_is_lost_whichever_change_to_the_disk_is_the_last(is_shared: bool) -> None:
    """The power goes at one change after the other, while files are rewritten and moved."""
    cut, is_done, cuts = 0, False, 0
    while not is_done:
        machine = TieredMachine(seed=cut)
        store = await machine.boot(is_shared=is_shared)
        own = store.incarnation
        await machine.write(store, [1], 130)
        machine.name(1, own, 0, 130)
        await store.close()
        files = machine.disk.boot()
        store = await machine.boot(files, is_shared=is_shared)
        await store.take(own, [L1])
        files.cut_after = cut
        with contextlib.suppress(OSError):
            await store.reclaim()
            await store.reclaim()
        is_done = not files.is_off
        cuts += files.is_off
        files.power_off()
        with contextlib.suppress(OSError):
            await store.close()
        machine.disk.cut()
        store = await machine.boot(is_shared=is_shared)
        await store.take(own, [L1])
        await check(store, 1, own, 0, 130)
        await store.reclaim()
        await store.reclaim()
        await check(store, 1, own, 0, 130)
        assert machine.names(".led") == []
        assert [one for one in machine.disk.names if one.match(".*.led") or one.match(".*.tier")] == []
        # Whatever was left of the first attempt is found, also in the store.
        for _ in range(3):
            machine.now += 7 * HOUR
            await store.reclaim()
        assert len(machine.bucket.objects) == len(machine.names(".tier"))
        await store.close()
        cut += 4
    assert cuts > 8


class Unreliable(Bucket):
    """Does what it is asked, and loses the answer, or does it not, one request after the other."""

    def __init__(self, fail_at: int, *, is_done: bool) -> None:
        super().__init__()
        self.fail_at = fail_at
        self.is_done = is_done

    def _fails(self) -> bool:
        self.fail_at -= 1
        return self.fail_at == -1

    async def create(self, key: str, parts: Sequence[Buffer]) -> Created:
        if self._fails():
            if self.is_done:
                await super().create(key, parts)
            return Created.UNKNOWN
        return await super().create(key, parts)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        if self._fails():
            raise MediumError("the answer was lost")
        return await super().get(key, start, length)


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("fail_at", range(6))
async def test_nothing_is_lost_whichever_answer_of_the_store_is_lost(fail_at: int, is_done: bool) -> None:
    machine = TieredMachine(bucket=Unreliable(fail_at, is_done=is_done))
    store = await machine.boot()
    await machine.write(store, [1], 150)
    await store.reclaim()
    await check(store, 1, store.incarnation, 0, 150)
    await store.reclaim()
    assert machine.names(".led") == []
    assert len(machine.bucket.objects) == len(machine.names(".tier"))
    await check(store, 1, store.incarnation, 0, 150)
    await store.close()


# -- several brokers


async def test_a_broker_finds_what_another_one_moved_and_only_one_moves_at_a_time() -> None:
    machine = TieredMachine()
    first = await machine.boot(is_shared=True)
    second = await machine.boot(is_shared=True)
    await machine.write(first, [1], 300)
    machine.name(1, first.incarnation, 0, 300)
    await first.release([L1])
    second.know(machine.records[path_of(1)])
    await check(second, 1, first.incarnation, 0, 300)
    await asyncio.gather(first.reclaim(), second.reclaim())
    await first.reclaim()
    assert machine.bucket.objects
    assert machine.bucket.puts == len(machine.bucket.objects)
    await check(second, 1, first.incarnation, 0, 300)
    await check(first, 1, first.incarnation, 0, 300)
    # The record forgets it: the broker that has the turn deletes.
    del machine.records[path_of(1)]
    for store in (first, second):
        store.delete(L1, first.incarnation)
    for _ in range(3):
        machine.now += 61_000
        await second.reclaim()
        await first.reclaim()
    assert machine.bucket.objects == {}
    for store in (first, second):
        await store.close()


async def test_another_brokers_plan_keeps_an_object() -> None:
    machine = TieredMachine()
    first = await machine.boot(is_shared=True)
    second = await machine.boot(is_shared=True)
    await machine.write(first, [1], 200)
    machine.name(1, first.incarnation, 0, 200)
    await first.release([L1])
    await first.reclaim()
    second.know(machine.records[path_of(1)])
    plan = await second.plan(L1, first.incarnation, 0, 200)
    del machine.records[path_of(1)]
    first.delete(L1, first.incarnation)
    await first.reclaim()
    assert {run.key for run in plan.objects} <= set(machine.bucket.objects)
    machine.now += 501
    await second.reclaim()
    await first.reclaim()
    await first.reclaim()
    assert machine.bucket.objects == {}
    for store in (first, second):
        await store.close()
