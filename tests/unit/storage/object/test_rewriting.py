"""What lives in objects that are mostly dead moves into new ones, and the old ones go."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.object.core.choice import RewritePolicy
from anabranch.storage.object.core.maps import decode_map
from anabranch.storage.object.core.objects import LogKeys, number_of
from anabranch.storage.object.medium import Created
from anabranch.storage.object.memory_bucket import MemoryBucket
from anabranch.storage.object.object_store import ObjectLogStore
from anabranch.storage.port import Buffer, LiveLedger, LogDamagedError, LogError
from unit.storage.object.test_ended_logs import POLICY, Cluster, Stopping
from unit.storage.owners import Owner

KEPT, DEAD, OTHER = LedgerId(1), LedgerId(2), LedgerId(3)
REWRITES = replace(
    POLICY,
    rewrite=RewritePolicy(object_waste_min=1, waste_bytes=1),
    rewrite_bytes_per_second=1e12,
    map_states=2,
)
COMMITS = 6


async def mixed(cluster: Cluster, store: ObjectLogStore) -> None:
    """Commits with a little of two ledgers of different namespaces that are kept, and much of one that is not."""
    owners = {one: Owner() for one in (KEPT, DEAD, OTHER)}
    spaces = {KEPT: "a/x", DEAD: "a/x", OTHER: "b/y"}
    writers = {one: store.open_ledger(one, owner, spaces[one], f"/t/{one}") for one, owner in owners.items()}
    for n in range(COMMITS):
        writers[KEPT].append(b"kept %d" % n, 1)
        writers[DEAD].append(b"dead" * 1000, 1)
        writers[OTHER].append(b"other %d" % n, 1)
        await owners[OTHER].until(n + 1)
    for one in (KEPT, OTHER):
        path = f"/t/{one}"
        cluster.records[path] = [LiveLedger(one, store.incarnation, 0, None, spaces[one], path)]
    writers[DEAD].close()


async def texts(store: ObjectLogStore, of: Incarnation, ledger: LedgerId, first: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while first + len(found) < COMMITS:
        some = await store.read(ledger, of, first + len(found), COMMITS, 4, 1 << 20)
        found += [bytes(data) for _, _, data in some]
    return found


ALL_KEPT = [b"kept %d" % n for n in range(COMMITS)]
ALL_OTHER = [b"other %d" % n for n in range(COMMITS)]


async def test_what_lives_is_copied_by_namespace_and_the_rest_goes() -> None:
    cluster = Cluster()
    store = await cluster.broker(REWRITES)
    reader = await cluster.broker(REWRITES)
    await mixed(cluster, store)
    reader.know([one for found in cluster.records.values() for one in found])
    # It knows where things were before.
    assert await texts(reader, store.incarnation, KEPT, 3) == ALL_KEPT[3:]
    before = sum(map(len, cluster.bucket.objects.values()))
    await store.reclaim()
    objects = cluster.objects(store.incarnation)
    assert not [one for one in objects if one.startswith("/log")]
    assert len([one for one in objects if one.startswith("/rewritten")]) == 2, "one for each namespace"
    assert sum(map(len, cluster.bucket.objects.values())) < before / 5
    assert store.stats()["rewritten_bytes"] > 0
    for one in (store, reader, await cluster.broker()):
        assert await texts(one, store.incarnation, KEPT) == ALL_KEPT
        assert await texts(one, store.incarnation, OTHER, 2) == ALL_OTHER[2:]
    # It goes on: nothing is copied twice, and what is written later is found.
    writer = store.open_ledger(LedgerId(9), owner := Owner(), "a/x", "/t/9")
    writer.append(b"later", 1)
    await owner.until(1)
    rewritten = store.stats()["rewritten_bytes"]
    await store.reclaim()
    assert store.stats()["rewritten_bytes"] == rewritten
    cluster.records["/t/9"] = [LiveLedger(LedgerId(9), store.incarnation, 0, None, "a/x", "/t/9")]
    late = await cluster.broker()
    assert len(await late.read(LedgerId(9), store.incarnation, 0, 1, 9, 1 << 20)) == 1
    assert (await late.take(store.incarnation, None))[KEPT].entries_end == COMMITS
    assert await texts(late, store.incarnation, KEPT) == ALL_KEPT


async def test_old_objects_stay_for_the_delay_and_objects_that_waste_little_for_ever() -> None:
    cluster = Cluster()
    store = await cluster.broker(replace(REWRITES, delete_delay_seconds=3600))
    await mixed(cluster, store)
    await store.reclaim()
    objects = cluster.objects(store.incarnation)
    assert len([one for one in objects if one.startswith("/log")]) == COMMITS
    assert len([one for one in objects if one.startswith("/rewritten")]) == 2
    frugal = await cluster.broker(replace(REWRITES, rewrite=RewritePolicy(object_waste_min=5000)))
    await mixed(cluster, frugal)
    await frugal.reclaim()
    assert not [one for one in cluster.objects(frugal.incarnation) if one.startswith("/rewritten")]


async def test_an_object_with_a_damaged_record_is_left_as_it_is() -> None:
    cluster = Cluster()
    store = await cluster.broker(REWRITES)
    await mixed(cluster, store)
    key = LogKeys(store.incarnation).number(3)
    cluster.bucket.objects[key] = cluster.bucket.objects[key].replace(b"kept 2", b"KEPT 2")
    await store.reclaim()
    await store.reclaim()
    assert [one for one in cluster.objects(store.incarnation) if one.startswith("/log")] == [
        "/log/000000000003"
    ]
    assert await texts(store, store.incarnation, OTHER) == ALL_OTHER
    assert [
        bytes(one) for _, _, one in await store.read(KEPT, store.incarnation, 0, 6, 9, 1 << 20)
    ] == ALL_KEPT[:2]
    with pytest.raises(LogDamagedError):
        await store.read(KEPT, store.incarnation, 2, 6, 9, 1 << 20)
    assert await texts(store, store.incarnation, KEPT, 3) == ALL_KEPT[3:]


async def test_a_job_is_as_large_as_it_may_be_and_its_objects_too() -> None:
    cluster = Cluster()
    small = RewritePolicy(
        object_waste_min=1, waste_bytes=1, live_bytes_max=200, sources_max=4, object_bytes=100
    )
    store = await cluster.broker(replace(REWRITES, rewrite=small))
    await mixed(cluster, store)
    await store.reclaim()
    folder = LogKeys(store.incarnation).rewritten
    sizes = [len(data) for key, data in cluster.bucket.objects.items() if key.startswith(folder)]
    assert len(sizes) > 2
    assert max(sizes) < 300
    assert await texts(store, store.incarnation, KEPT) == ALL_KEPT
    assert await texts(await cluster.broker(), store.incarnation, OTHER) == ALL_OTHER


async def test_small_rewritten_objects_of_a_namespace_become_one_in_time() -> None:
    cluster = Cluster()
    policy = replace(REWRITES, rewrite=RewritePolicy(object_waste_min=1, waste_bytes=1, sources_max=8))
    store = await cluster.broker(policy)
    for n in range(20):
        kept, dead = LedgerId(100 + n), LedgerId(200 + n)
        owners = [Owner(), Owner()]
        writers = [
            store.open_ledger(one, owner, "a/x", f"/t/{one}")
            for one, owner in zip((kept, dead), owners, strict=True)
        ]
        writers[0].append(b"kept", 1)
        writers[1].append(b"dead" * 1000, 1)
        await owners[0].until(1)
        writers[1].close()
        await store.reclaim()
    rewritten = [one for one in cluster.objects(store.incarnation) if one.startswith("/rewritten")]
    assert len(rewritten) <= 8
    for n in range(20):
        assert len(await store.read(LedgerId(100 + n), store.incarnation, 0, 1, 9, 1 << 20)) == 1


async def test_checkpoints_and_maps_that_a_newer_map_makes_superfluous_go() -> None:
    cluster = Cluster()
    store = await cluster.broker(REWRITES)
    reader = await cluster.broker()
    writer = store.open_ledger(KEPT, owner := Owner(), "a/x", "/t/1")
    cluster.records["/t/1"] = [LiveLedger(KEPT, store.incarnation, 0, None, "a/x", "/t/1")]
    reader.know(cluster.records["/t/1"])
    for n in range(60):
        writer.append(b"%d" % n, 1)
        await owner.until(n + 1)
        await store.reclaim()
        if n % 10 == 0:
            assert len(await reader.read(KEPT, store.incarnation, n, n + 1, 9, 1 << 20)) == 1
    objects = cluster.objects(store.incarnation)
    assert len([one for one in objects if one.startswith("/state")]) < 20
    assert len([one for one in objects if one.startswith("/map")]) <= 2
    heir = await cluster.broker()
    assert (await heir.take(store.incarnation, None))[KEPT].entries_end == 60
    for first in range(60):
        assert len(await heir.read(KEPT, store.incarnation, first, 60, 1, 1 << 20)) == 1


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("requests", range(1, 30))
async def test_a_crash_at_any_step_loses_nothing_and_leaves_nothing(requests: int, is_own: bool) -> None:
    bucket = Stopping()
    cluster = Cluster(bucket)
    old, second = await cluster.broker(REWRITES), await cluster.broker(REWRITES)
    await mixed(cluster, old)
    await old._log.checkpoint()
    rewriter = old if is_own else second
    if not is_own:
        cluster.killed(old)
    bucket.left = requests
    with contextlib.suppress(LogError):
        await rewriter.reclaim()
    bucket.left = 1 << 30
    for one in (old, second):
        cluster.killed(one)
    third = await cluster.broker(REWRITES)
    for _ in range(3):
        await third.reclaim()
    for ledger, wanted in ((KEPT, ALL_KEPT), (OTHER, ALL_OTHER)):
        assert await texts(third, old.incarnation, ledger) == wanted
    objects = cluster.objects(old.incarnation)
    assert len([one for one in objects if one.startswith("/rewritten")]) == 2, objects
    assert not [one for one in objects if one.startswith(("/log", "/state"))]
    assert len([one for one in objects if one.startswith("/map")]) == 1
    cluster.records = {}
    for _ in range(2):
        await third.reclaim()
    assert cluster.objects(old.incarnation) == ["/gone"]


class Sleeping(MemoryBucket):
    """Lets something happen before an object whose key begins so is created, once."""

    def __init__(self) -> None:
        super().__init__()
        self.before: tuple[str, Callable[[], Awaitable[None]]] | None = None

    async def create(self, key: str, parts: Sequence[Buffer]) -> Created:
        if self.before is not None and key.startswith(self.before[0]):
            _, meanwhile = self.before
            self.before = None
            await meanwhile()
        return await super().create(key, parts)


@pytest.mark.parametrize("step", ["map", "rewritten"])
@pytest.mark.parametrize("rounds", [1, 4])
async def test_a_rewriter_that_sleeps_for_a_week_changes_nothing_when_it_wakes(
    step: str, rounds: int
) -> None:
    """It has copied what lived then. Meanwhile others have rewritten the log, deleted its objects as garbage, and
    deleted the maps that it would come after."""
    bucket = Sleeping()
    cluster = Cluster(bucket)
    old, sleeper = await cluster.broker(REWRITES), await cluster.broker(REWRITES)
    await mixed(cluster, old)
    await old._log.checkpoint()
    cluster.killed(old)
    keys = LogKeys(old.incarnation)

    async def meanwhile() -> None:
        cluster.killed(sleeper)
        for n in range(rounds):
            path = f"/t/{KEPT}"
            cluster.records[path] = [LiveLedger(KEPT, old.incarnation, n, None, "a/x", path)]
            other = await cluster.broker(REWRITES)
            for _ in range(3):
                await other.reclaim()
            cluster.killed(other)

    bucket.before = (getattr(keys, f"{step}s" if step == "map" else step), meanwhile)
    await sleeper.reclaim()
    assert bucket.before is None, "nobody slept"
    # It goes on with what it believes.
    await sleeper.reclaim()
    last = await cluster.broker(REWRITES)
    for _ in range(4):
        await last.reclaim()
    assert await texts(last, old.incarnation, OTHER) == ALL_OTHER
    assert await texts(last, old.incarnation, KEPT, rounds - 1) == ALL_KEPT[rounds - 1 :]
    objects = cluster.objects(old.incarnation)
    assert not [one for one in objects if one.startswith("/log")]
    assert len([one for one in objects if one.startswith("/rewritten")]) == 2, "no garbage"


async def test_a_map_names_the_records_of_ledgers_and_the_namespaces_of_objects() -> None:
    cluster = Cluster()
    store = await cluster.broker(REWRITES)
    await mixed(cluster, store)
    await store.reclaim()
    keys = LogKeys(store.incarnation)
    newest = max((key for key in cluster.bucket.objects if key.startswith(keys.maps)), key=number_of)
    note = decode_map(cluster.bucket.objects[newest], newest)
    assert {one.ledger: (one.namespace, one.record) for one in note.ledgers} == {
        KEPT: ("a/x", "/t/1"),
        OTHER: ("b/y", "/t/3"),
    }
    assert sorted(note.namespaces.values()) == ["a/x", "b/y"]
    with pytest.raises(LogError, match="damaged"):
        decode_map(cluster.bucket.objects[newest][:-1] + b"x", newest)
