"""What a log in an object store holds, and whether all of it can be read, as somebody finds who only looks."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.object.checking import Fault, LogChecker, LogSurvey, Verified
from anabranch.storage.object.core.objects import REWRITTEN, LogKeys, encode_fence
from anabranch.storage.port import LiveLedger
from unit.storage.object.test_ended_logs import Cluster
from unit.storage.object.test_rewriting import COMMITS, DEAD, KEPT, OTHER, REWRITES, mixed


async def surveyed(cluster: Cluster) -> dict[Incarnation, LogSurvey]:
    checker = LogChecker(cluster.bucket)
    records = [one for found in cluster.records.values() for one in found]
    found = {one.incarnation: one async for one in checker.survey(records)}
    await checker.close()
    return found


async def verified(cluster: Cluster, records: Sequence[LiveLedger] | None = None) -> Verified:
    checker = LogChecker(cluster.bucket)
    if records is None:
        records = [one for found in cluster.records.values() for one in found]
    (found,) = [one async for _, one in checker.verify(records)]
    await checker.close()
    return found


async def test_a_survey_tells_what_would_go_and_what_is_garbage_and_changes_nothing() -> None:
    cluster = Cluster()
    store = await cluster.broker()
    await mixed(cluster, store)
    await store._log.checkpoint()
    keys = LogKeys(store.incarnation)
    cluster.bucket.create_now(keys.number(REWRITTEN + 77), b"left by a rewriter that was killed")
    before = dict(cluster.bucket.objects)
    found = (await surveyed(cluster))[store.incarnation]
    assert (found.state, found.errors, found.fences) == ("open", [], 0)
    assert found.garbage == [(keys.number(REWRITTEN + 77), 34)]
    assert found.dead == []
    # Little of each is wanted, and less than what is worth a request is wasted.
    assert found.mostly_dead == []
    assert 0 < found.wanted < found.size / 10
    cluster.records = {}
    found = (await surveyed(cluster))[store.incarnation]
    assert [key for key, _ in found.dead] == [keys.number(n) for n in range(1, COMMITS + 1)]
    assert cluster.bucket.objects == before


async def test_what_brokers_delete_is_what_a_survey_said_and_nothing_is_left_of_it() -> None:
    cluster = Cluster()
    old, heir = await cluster.broker(REWRITES), await cluster.broker(REWRITES)
    await mixed(cluster, old)
    await old._log.checkpoint()
    cluster.killed(old)
    for _ in range(3):
        await heir.reclaim()
    found = (await surveyed(cluster))[old.incarnation]
    assert (found.state, found.dead, found.mostly_dead, found.garbage) == ("ended", [], [], [])
    assert found.fences >= 8
    cluster.records = {}
    said = {key for key, _ in (await surveyed(cluster))[old.incarnation].dead}
    assert said
    for _ in range(2):
        await heir.reclaim()
    assert not said & cluster.bucket.objects.keys()
    found = (await surveyed(cluster))[old.incarnation]
    assert (found.state, found.dead, found.garbage) == ("gone", [], [])
    # A commit of a writer that slept, where one was deleted.
    cluster.bucket.create_now(LogKeys(old.incarnation).number(2), b"late")
    assert len((await surveyed(cluster))[old.incarnation].garbage) == 1


async def test_all_that_records_want_is_read_back_before_and_after_rewriting() -> None:
    cluster = Cluster()
    store = await cluster.broker(REWRITES)
    await mixed(cluster, store)
    found = await verified(cluster)
    assert (found.entries, found.objects, found.faults) == (2 * COMMITS, COMMITS, [])
    await store.reclaim()
    found = await verified(cluster)
    assert (found.entries, found.objects, found.faults) == (2 * COMMITS, 2, [])


async def test_each_damaged_and_each_missing_entry_is_told_with_its_object_and_offset() -> None:
    cluster = Cluster()
    store = await cluster.broker()
    await mixed(cluster, store)
    await store._log.checkpoint()
    keys = LogKeys(store.incarnation)
    whole = cluster.bucket.objects[keys.number(2)]
    at = whole.index(b"kept 1")
    cluster.bucket.objects[keys.number(2)] = whole.replace(b"kept 1", b"KEPT 1")
    del cluster.bucket.objects[keys.number(5)]
    found = await verified(cluster)
    assert found.entries == 2 * COMMITS - 3
    assert sorted((one.ledger, one.entry, one.key, one.record) for one in found.faults) == [
        (KEPT, 1, keys.number(2), "/t/1"),
        (KEPT, 4, keys.number(5), "/t/1"),
        (OTHER, 4, keys.number(5), "/t/3"),
    ]
    damaged = next(one for one in found.faults if one.entry == 1)
    assert damaged.offset == at - 32
    assert keys.number(2) in str(damaged)


async def test_an_object_of_another_name_and_a_log_without_its_end_are_told() -> None:
    cluster = Cluster()
    store = await cluster.broker()
    await mixed(cluster, store)
    keys = LogKeys(store.incarnation)
    objects = cluster.bucket.objects
    # More entries than there are, as if the last objects had been deleted.
    ends = [LiveLedger(KEPT, store.incarnation, 0, COMMITS + 3, "a/x", "/t/1")]
    (fault,) = (await verified(cluster, ends)).faults
    assert (fault.ledger, fault.entry, fault.reason) == (KEPT, COMMITS, "is missing, from here on")
    await store._log.checkpoint()
    objects[keys.number(3)] = objects[keys.number(4)]
    faults = (await verified(cluster)).faults
    assert Fault(keys.number(3), 0, 0, 0, "", "the object is damaged, or not the one of that name") in faults
    # Nobody wants the third ledger, whatever became of it.
    assert not [one for one in faults if one.ledger == DEAD]


async def test_a_fence_that_cannot_be_told_from_a_commit_is_no_garbage() -> None:
    cluster = Cluster()
    store = await cluster.broker()
    await cluster.filled(store, LedgerId(9), [b"x"])
    await store.close()
    cluster.bucket.create_now(LogKeys(store.incarnation).number(40), encode_fence("late", [9]))
    found = (await surveyed(cluster))[store.incarnation]
    assert (found.state, found.fences, found.garbage) == ("ended", 1, [])
