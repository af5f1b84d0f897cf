"""Plans for readers of objects lead to every entry, whoever wrote it, and to nothing that is not there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random

import pytest

from anabranch.client.reading.object_windows import entries_of
from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.core.read_plan import PlannedRun
from anabranch.storage.object import planning
from anabranch.storage.object.hostile import HostileMedium, Hostility
from anabranch.storage.object.medium import ObjectMedium
from anabranch.storage.object.memory_bucket import MemoryBucket
from anabranch.storage.object.object_store import ObjectLogStore
from anabranch.storage.object.obstore_medium import open_medium
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.port import Buffer, LiveLedger, LogMissingError, ObjectRun, ReadPlan
from unit.storage.object.test_object_store import EAGER, filled
from unit.storage.owners import Owner

L1, L2 = LedgerId(1), LedgerId(2)
URL = "s3://river/east"
NOW_MS = 1_000
POLICY = replace(EAGER, delete_delay_seconds=1800, commit_bytes_max=64 << 10, checkpoint_bytes=256 << 10)
names = count(1)


@pytest.fixture(params=["memory", "folder", "hostile"])
def open_bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], ObjectMedium]:
    bucket = MemoryBucket()
    match request.param:
        case "memory":
            return lambda: bucket
        case "folder":
            return lambda: open_medium(f"objects://{tmp_path}/objects")
        case _:
            # Its answers are late, and reads fail.
            hostility = Hostility(lost_answer=0, late=0, never=0, conflict=0)
            return lambda: HostileMedium(bucket, Random(7), hostility)


Opener = Callable[..., ObjectLogStore]


@pytest.fixture
async def open_store(open_bucket: Callable[[], ObjectMedium]) -> AsyncIterator[Opener]:
    opened: list[ObjectLogStore] = []

    def made(policy: ObjectLogPolicy = POLICY, **settings: object) -> ObjectLogStore:
        name = Incarnation(f"{next(names):013d}-p")
        store = ObjectLogStore(
            open_bucket(),
            clock_ms=lambda: NOW_MS,
            incarnation=name,
            policy=policy,
            url=URL,
            **settings,  # type: ignore[arg-type]
        )
        opened.append(store)
        return store

    yield made
    for store in opened:
        await store.close()


async def found_by(medium: ObjectMedium, plan: ReadPlan) -> list[tuple[int, bytes]]:
    """What a reader finds that has only the plan."""
    found: list[tuple[int, bytes]] = []
    for run in plan.objects:
        view = memoryview(await patient(medium, run))
        planned = PlannedRun(plan.ledger, run.first, run.end - 1, 0, run.offset, run.length)
        entries, _, following, is_bad = entries_of(view, planned, -1)
        assert (following, is_bad) == (run.end, False)
        found += [(number, bytes(data)) for number, _, data in entries]
    return found


async def patient(medium: ObjectMedium, run: ObjectRun) -> Buffer:
    from anabranch.storage.object.requests import asked

    return await asked(lambda: medium.get(run.key, run.offset, run.length), POLICY)


async def read_by_plans(
    medium: ObjectMedium, store: ObjectLogStore, ledger: LedgerId, of: Incarnation, first: int, end: int
) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    while first < end:
        plan = await store.plan(ledger, of, first, end)
        assert first < plan.end <= end
        found += await found_by(medium, plan)
        first = plan.end
    return found


async def mixed(store: ObjectLogStore, texts: Sequence[bytes]) -> None:
    """Two ledgers whose entries and states share commits."""
    owners = Owner(), Owner()
    one = store.open_ledger(L1, owners[0], "public/default")
    two = store.open_ledger(L2, owners[1], "public/default")
    states = 0
    for number, text in enumerate(texts):
        one.append(text, 1)
        two.append(text[::-1], 1)
        if number % 3 == 0:
            one.append_state(b"read up to %d" % number)
            states += 1
        if number % 7 == 6:
            await owners[0].until(number + 1)
    await owners[0].until(len(texts), states)
    await owners[1].until(len(texts))


TEXTS = [b"%d " % n * (n % 50 + 1) for n in range(300)]


async def test_a_plan_leads_to_every_entry_and_to_no_other_ledgers(
    open_store: Opener, open_bucket: Callable[[], ObjectMedium]
) -> None:
    store = open_store()
    await store.start()
    await mixed(store, TEXTS)
    medium = open_bucket()
    own = store.incarnation
    assert await read_by_plans(medium, store, L1, own, 0, 300) == list(enumerate(TEXTS))
    assert await read_by_plans(medium, store, L2, own, 0, 300) == [
        (n, text[::-1]) for n, text in enumerate(TEXTS)
    ]
    assert await read_by_plans(medium, store, L1, own, 17, 18) == [(17, TEXTS[17])]
    plan = await store.plan(L1, own, 250, 260)
    assert (plan.first, plan.end, plan.objects_url) == (250, 260, URL)
    assert len(plan.objects) <= 3, "no object is named that has none of the entries"
    assert plan.expires_at_ms == NOW_MS + 1_800_000


async def test_the_log_of_a_broker_that_is_gone_is_planned_by_another(
    open_store: Opener, open_bucket: Callable[[], ObjectMedium]
) -> None:
    first = open_store()
    await first.start()
    await mixed(first, TEXTS)
    other = open_store()
    await other.start()
    states = await other.take(first.incarnation, None)
    end = states[L1].entries_end
    assert end == 300
    assert await read_by_plans(open_bucket(), other, L1, first.incarnation, 0, end) == list(enumerate(TEXTS))


async def test_what_another_broker_writes_meanwhile_is_found(open_store: Opener) -> None:
    """The end of a ledger is told by its owner; the objects behind the last checkpoint are listed again."""
    writer, other = open_store(), open_store()
    await writer.start()
    await other.start()
    await filled(writer, L1, TEXTS[:10])
    assert (await other.plan(L1, writer.incarnation, 0, 10)).end == 10
    await filled(writer, L2, TEXTS[:50])
    assert (await other.plan(L2, writer.incarnation, 45, 50)).end == 50


async def test_a_plan_of_many_objects_ends_before_it_takes_long(
    open_store: Opener, open_bucket: Callable[[], ObjectMedium], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "OBJECTS_MAX", 20)
    store = open_store()
    await store.start()
    await filled(store, L1, TEXTS[:50])
    plan = await store.plan(L1, store.incarnation, 0, 50)
    assert plan.end < 50
    found = await read_by_plans(open_bucket(), store, L1, store.incarnation, 0, 50)
    assert found == list(enumerate(TEXTS[:50]))


async def test_an_object_that_another_broker_deleted_is_in_no_plan(
    open_store: Opener, open_bucket: Callable[[], ObjectMedium]
) -> None:
    writer, other = open_store(replace(POLICY, delete_delay_seconds=0)), open_store()
    await writer.start()
    await other.start()
    writer.retain([])
    await filled(writer, L1, TEXTS[:20])
    assert (await other.plan(L1, writer.incarnation, 0, 20)).end == 20
    writer.trim(L1, writer.incarnation, 12)
    await writer.reclaim()
    assert (
        await read_by_plans(open_bucket(), other, L1, writer.incarnation, 12, 20)
        == list(enumerate(TEXTS[:20]))[12:]
    )
    with pytest.raises(LogMissingError):
        await other.plan(L1, writer.incarnation, 0, 20)


async def test_trimmed_entries_and_those_that_never_were_are_not_planned(open_store: Opener) -> None:
    store = open_store()
    await store.start()
    store.retain([LiveLedger(L1, store.incarnation, 0, None, "public/default")])
    await filled(store, L1, TEXTS[:10])
    store.trim(L1, store.incarnation, 4)
    with pytest.raises(LogMissingError, match="trimmed"):
        await store.plan(L1, store.incarnation, 3, 10)
    with pytest.raises(LogMissingError):
        await store.plan(L1, store.incarnation, 10, 12)
    assert (await store.plan(L1, store.incarnation, 4, 12)).end == 10


async def test_objects_that_nobody_else_can_reach_are_not_planned() -> None:
    store = ObjectLogStore(MemoryBucket(), clock_ms=lambda: 1, policy=POLICY)
    await store.start()
    await filled(store, L1, TEXTS[:3])
    with pytest.raises(LogMissingError, match="nobody but brokers"):
        await store.plan(L1, store.incarnation, 0, 3)
    assert await store.signed(["wal/1"], 10) == []
    await store.close()


async def test_a_plan_goes_up_to_an_object_that_is_damaged_and_behind_it(tmp_path: Path) -> None:
    """As for files: entries before damage can be read, and those behind it once it is skipped."""
    medium = open_medium(f"objects://{tmp_path}/objects")
    store = ObjectLogStore(medium, clock_ms=lambda: NOW_MS, policy=POLICY, url=URL)
    await store.start()
    await filled(store, L1, TEXTS[:20])
    runs = (await store.plan(L1, store.incarnation, 0, 20)).objects
    await store.close()
    bad = runs[len(runs) // 2]
    with (tmp_path / "objects" / bad.key).open("r+b") as opened:
        opened.write(b"damage")
    other = ObjectLogStore(medium, clock_ms=lambda: NOW_MS, policy=POLICY, url=URL)
    await other.start()
    await other.take(store.incarnation, None)
    own = store.incarnation
    assert await read_by_plans(medium, other, L1, own, 0, bad.first) == list(enumerate(TEXTS[: bad.first]))
    assert (await other.plan(L1, own, 0, 20)).end == bad.first
    with pytest.raises(LogMissingError):
        await other.plan(L1, own, bad.first, 20)
    behind = list(enumerate(TEXTS[:20]))[bad.end :]
    assert await read_by_plans(medium, other, L1, own, bad.end, 20) == behind
    await other.close()
