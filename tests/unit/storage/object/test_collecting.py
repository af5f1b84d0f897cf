"""What is collected by hand of the logs in an object store: what is proved to be garbage, and never a fence."""

from __future__ import annotations

from anabranch.storage.object.checking import LogSurvey
from anabranch.storage.object.collecting import Collected, LogCollector
from anabranch.storage.object.core.maps import is_proved_garbage, rewritten_number
from anabranch.storage.object.core.objects import REWRITTEN, LogKeys
from unit.storage.object.test_checking import surveyed
from unit.storage.object.test_ended_logs import Cluster
from unit.storage.object.test_rewriting import COMMITS, KEPT, REWRITES, mixed, texts


async def survey(cluster: Cluster) -> list[LogSurvey]:
    return list((await surveyed(cluster)).values())


async def collect(cluster: Cluster) -> Collected:
    before = await survey(cluster)
    return await LogCollector(cluster.bucket).collect(before, await survey(cluster))


def test_an_object_is_proved_garbage_once_the_map_that_it_was_made_for_cannot_name_it() -> None:
    for number in (rewritten_number(REWRITTEN, 7, 0, 1), rewritten_number(REWRITTEN, 7, 511, 0xFFFFFFFF)):
        assert [is_proved_garbage(number, newest) for newest in (0, 6, 7, 8)] == [False, False, True, True]
    assert not is_proved_garbage(REWRITTEN + 77, 7)


async def test_of_a_log_that_is_gone_all_goes_but_its_mark_and_its_fences() -> None:
    cluster = Cluster()
    old, heir = await cluster.broker(), await cluster.broker()
    await mixed(cluster, old)
    await old._log.checkpoint()
    commit = cluster.bucket.objects[LogKeys(old.incarnation).number(2)]
    cluster.killed(old)
    cluster.records = {}
    for _ in range(2):
        await heir.reclaim()
    keys = LogKeys(old.incarnation)
    assert cluster.objects(old.incarnation) == ["/gone"]
    fences = cluster.fences()
    # A writer and a rewriter that slept, a broker that was killed while it gave the log back, and a fence that nobody
    # can recognise.
    late = {
        keys.number(2): commit,
        keys.number(REWRITTEN + 5): b"x",
        keys.state(3): b"y",
        keys.answer(1): b"z",
    }
    damaged = sorted(fences)[0]
    for key, data in late.items():
        cluster.bucket.objects[key] = data
    cluster.bucket.objects[damaged] = b"?" + cluster.bucket.objects[damaged][1:]
    found = await collect(cluster)
    assert {key for key, _ in found.deleted} == set(late)
    assert [key for key, _ in found.kept] == [damaged]
    assert cluster.fences() | {damaged} == fences
    assert keys.gone in cluster.bucket.objects
    assert (await collect(cluster)).deleted == []


async def test_of_a_log_that_lives_only_objects_for_maps_that_have_passed_go() -> None:
    cluster = Cluster()
    store = await cluster.broker(REWRITES)
    await mixed(cluster, store)
    await store.reclaim()
    (now,) = await survey(cluster)
    assert now.map_number > 0
    keys = LogKeys(store.incarnation)
    too_late = keys.number(rewritten_number(REWRITTEN, now.map_number, 9, 1))
    under_way = keys.number(rewritten_number(REWRITTEN, now.map_number + 1, 0, 1))
    for key in (too_late, under_way):
        cluster.bucket.objects[key] = b"copied"
    before = set(cluster.bucket.objects)
    found = await collect(cluster)
    assert [key for key, _ in found.deleted] == [too_late]
    assert [key for key, _ in found.kept] == [under_way]
    assert set(cluster.bucket.objects) == before - {too_late}
    assert len(await texts(store, store.incarnation, KEPT)) == COMMITS


async def test_what_only_one_look_calls_garbage_stays() -> None:
    cluster = Cluster()
    store = await cluster.broker(REWRITES)
    await mixed(cluster, store)
    await store.reclaim()
    before = await survey(cluster)
    key = LogKeys(store.incarnation).number(rewritten_number(REWRITTEN, before[0].map_number, 9, 1))
    cluster.bucket.objects[key] = b"copied"
    after = await survey(cluster)
    collector = LogCollector(cluster.bucket)
    for looks in ((before, after), ([], after)):
        found = await collector.collect(*looks)
        assert (found.deleted, [one for one, _ in found.kept]) == ([], [key])
    assert key in cluster.bucket.objects
