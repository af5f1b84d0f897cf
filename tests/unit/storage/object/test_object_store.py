"""The log in an object store where it is more than any log: outages, costs, recovery behind checkpoints, fences for
all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from random import Random

import pytest

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.object.core.objects import LogKeys, encode_commit, encode_fence, is_fence
from anabranch.storage.object.hostile import HostileMedium
from anabranch.storage.object.medium import Created, MediumError, MediumRefusedError, ObjectMedium
from anabranch.storage.object.memory_bucket import MemoryBucket
from anabranch.storage.object.object_store import ObjectLogStore
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.port import (
    Buffer,
    FencedError,
    LedgerState,
    LedgerWriter,
    LogDamagedError,
    LogError,
    LogFailedError,
    LogStore,
)
from unit.storage.owners import Owner

L1, L2, L3 = LedgerId(1), LedgerId(2), LedgerId(3)
MANY = 1 << 30
EAGER = ObjectLogPolicy(
    puts_per_second=0, look_seconds=0, retry_seconds=0.001, retry_seconds_max=0.01, checkpoint_seconds=3600
)
names = count(1)


def store_on(
    medium: ObjectMedium,
    policy: ObjectLogPolicy = EAGER,
    *,
    has_ended: Callable[[Incarnation], bool] = lambda _: False,
) -> ObjectLogStore:
    name = Incarnation(f"{next(names):013d}-x")
    return ObjectLogStore(medium, clock_ms=lambda: 1, incarnation=name, policy=policy, has_ended=has_ended)


async def started(medium: ObjectMedium, policy: ObjectLogPolicy = EAGER) -> ObjectLogStore:
    store = store_on(medium, policy)
    await store.start()
    return store


async def contents(store: LogStore, ledger: LedgerId, incarnation: Incarnation, end: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < end:
        for number, _, data in await store.read(ledger, incarnation, len(found), end, MANY, 1 << 20):
            assert number == len(found)
            found.append(bytes(data))
    return found


async def filled(store: ObjectLogStore, ledger: LedgerId, texts: Sequence[bytes]) -> Owner:
    """Each text in a commit of its own."""
    owner = Owner()
    writer = store.open_ledger(ledger, owner, "public/default")
    for text in texts:
        writer.append(text, 1)
        await owner.until(writer.next_entry)
    return owner


class Outage(MemoryBucket):
    """A store that takes and tells nothing while it is out."""

    is_out = False

    async def create(self, key: str, parts: Sequence[Buffer]) -> Created:
        return Created.UNKNOWN if self.is_out else await super().create(key, parts)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        if self.is_out:
            raise MediumError("out")
        return await super().get(key, start, length)


async def test_an_outage_is_back_pressure_and_nothing_else() -> None:
    medium = Outage()
    store = await started(medium)
    owner = await filled(store, L1, [b"before"])
    writer = store.open_ledger(L2, owner2 := Owner(), "ns")
    medium.is_out = True
    for n in range(50):
        writer.append(b"%d" % n, 1)
        await asyncio.sleep(0)
    waited = asyncio.Event()
    while "does not take" not in store.told_space():
        asyncio.get_running_loop().call_later(0.005, waited.set)
        await waited.wait()
        waited.clear()
    assert (owner2.calls, owner2.error, owner.error, store.ended) == ([], None, None, None)
    assert store.unconfirmed_bytes > 50
    assert store.read_cached(L2, 0, MANY, MANY) == []
    medium.is_out = False
    await owner2.until(50)
    assert store.unconfirmed_bytes == 0
    assert "does not take" not in store.told_space()
    assert await contents(store, L2, store.incarnation, 50) == [b"%d" % n for n in range(50)]
    await store.close()


async def test_a_log_that_closes_during_an_outage_gives_up_after_a_while_and_loses_nothing_confirmed() -> (
    None
):
    medium = Outage()
    store = await started(medium, ObjectLogPolicy(retry_seconds=0.001, close_seconds=0.05))
    await filled(store, L1, [b"confirmed"])
    writer = store.open_ledger(L2, owner := Owner(), "ns")
    medium.is_out = True
    writer.append(b"never", 1)
    await store.close()
    assert isinstance(owner.error, LogFailedError)
    medium.is_out = False
    heir = await started(medium)
    assert (await heir.take(store.incarnation, None))[L1].entries_end == 1
    await heir.close()


async def play(seed: int) -> None:
    """Two writers of three ledgers on a hostile medium; another store takes a ledger, then all. Whatever was
    confirmed is in the answers, and what is in the answers is what was appended."""
    random = Random(seed)
    bucket = MemoryBucket()
    policy = ObjectLogPolicy(
        **{name: getattr(EAGER, name) for name in ("puts_per_second", "retry_seconds", "retry_seconds_max")},
        look_seconds=0,
        window=random.choice((2, 3, 8)),
        commit_bytes_max=random.choice((200, 4000)),
        checkpoint_bytes=random.choice((300, 2000, 1 << 20)),
        full_checkpoint_every=random.choice((1, 3)),
        hedge_seconds=0.0,
    )
    old, taker, third = [
        await started(HostileMedium(bucket, Random(seed * 10 + n)), policy) for n in range(3)
    ]
    owners = {ledger: Owner() for ledger in (L1, L2, L3)}
    writers = {ledger: old.open_ledger(ledger, owner, "ns") for ledger, owner in owners.items()}
    appended: dict[LedgerId, list[bytes]] = {ledger: [] for ledger in writers}
    answers: dict[LedgerId, LedgerState] = {}
    takes: list[asyncio.Task[None]] = []

    async def take(store: ObjectLogStore, ledgers: list[LedgerId] | None) -> None:
        for ledger, state in (await store.take(old.incarnation, ledgers)).items():
            assert answers.setdefault(ledger, state) == state
            assert owners[ledger].entries_end <= state.entries_end

    steps = random.randrange(40, 120)
    for step in range(steps):
        ledger = random.choice((L1, L2, L3))
        try:
            if random.random() < 0.2:
                writers[ledger].append_state(b"s%d" % step)
            else:
                writers[ledger].append(text := b"%d-%d " % (ledger, step) * random.randrange(1, 30), 1)
                appended[ledger].append(text)
        except FencedError:
            pass
        if step == steps // 3:
            takes.append(asyncio.create_task(take(taker, [L1])))
            if random.random() < 0.5:
                takes.append(asyncio.create_task(take(third, [L1])))
        if step == steps * 2 // 3:
            takes.append(asyncio.create_task(take(taker, None)))
        for _ in range(random.randrange(30)):
            await asyncio.sleep(0)
    await asyncio.gather(*takes)
    for ledger, owner in owners.items():
        state = answers.get(ledger, LedgerState(0, None, (), 0))
        assert owner.entries_end <= state.entries_end <= len(appended[ledger])
        found = await contents(third, ledger, old.incarnation, state.entries_end)
        assert found == appended[ledger][: state.entries_end]
        assert state.bytes == sum(map(len, found))
    for store in (old, taker, third):
        await store.close()
    for ledger, owner in owners.items():
        assert owner.entries_end <= answers.get(ledger, LedgerState(0, None, (), 0)).entries_end


@pytest.mark.parametrize("seed", range(25))
async def test_what_was_confirmed_is_in_the_answers_whatever_the_store_does(seed: int) -> None:
    await play(seed)


async def test_a_log_whose_writer_has_ended_is_taken_whole_for_all_topics_at_once() -> None:
    bucket = MemoryBucket()
    old = await started(bucket)
    for ledger in range(1, 41):
        await filled(old, LedgerId(ledger), [b"x"])
    heir = store_on(bucket, has_ended=lambda one: one == old.incarnation)
    await heir.start()
    assert list(await heir.take(old.incarnation, [L1])) == [L1]
    requests = heir.stats()["object_puts"] + heir.stats()["object_gets"]
    for ledger in range(2, 41):
        assert list(await heir.take(old.incarnation, [LedgerId(ledger)])) == [ledger]
    assert heir.stats()["object_puts"] + heir.stats()["object_gets"] == requests
    with pytest.raises(FencedError):
        await filled(old, LedgerId(50), [b"late"])


class Refusing(MemoryBucket):
    """A store that never says whether it has taken the first checkpoint, and has not."""

    async def create(self, key: str, parts: Sequence[Buffer]) -> Created:
        return Created.UNKNOWN if key.endswith("state/00000001") else await super().create(key, parts)


async def test_the_last_checkpoint_waits_for_the_one_that_it_builds_on() -> None:
    """What lies where is told by all checkpoints together: without one of them its entries could not be found."""
    bucket = Refusing()
    old = await started(bucket, replace(EAGER, checkpoint_bytes=1, close_seconds=0.1))
    await filled(old, L1, [b"%d" % n for n in range(5)])
    await old.close()
    new = await started(bucket)
    assert (await new.take(old.incarnation, None))[L1].entries_end == 5
    assert await contents(new, L1, old.incarnation, 5) == [b"%d" % n for n in range(5)]


async def test_takes_at_the_same_time_share_a_fence() -> None:
    bucket = MemoryBucket()
    old, taker = await started(bucket), await started(bucket)
    ledgers = [LedgerId(one) for one in range(1, 31)]
    for ledger in ledgers:
        await filled(old, ledger, [b"x"])
    await asyncio.gather(*(taker.take(old.incarnation, [ledger]) for ledger in ledgers))
    fences = {bytes(data) for key, data in bucket.objects.items() if "/log/" in key and is_fence(data)}
    assert len(fences) <= 2


async def test_recovery_reads_what_lies_behind_the_checkpoint_and_no_more() -> None:
    bucket = MemoryBucket()
    policy = ObjectLogPolicy(puts_per_second=0, checkpoint_bytes=2_000, checkpoint_seconds=3600)
    old = await started(bucket, policy)
    texts = [b"%04d" % n * 10 for n in range(400)]
    await filled(old, L1, texts)
    heir = await started(bucket)
    before = heir.stats()["object_gets"]
    state = (await heir.take(old.incarnation, None))[L1]
    assert (state.entries_end, state.bytes) == (400, 400 * 40)
    # Some thirty commits between two checkpoints, at most eight checkpoints, ten fences, and answers.
    assert heir.stats()["object_gets"] - before < 150
    assert await contents(heir, L1, old.incarnation, 400) == texts


async def test_commits_that_were_deleted_are_an_error_and_never_a_shorter_ledger() -> None:
    bucket = MemoryBucket()
    old = await started(bucket)
    await filled(old, L1, [b"%d" % n for n in range(10)])
    del bucket.objects[LogKeys(old.incarnation).number(4)]
    heir = await started(bucket)
    with pytest.raises(LogError, match=r"confirmed commits .* are gone, 4 first"):
        await heir.take(old.incarnation, None)


async def test_a_damaged_record_is_told_and_the_next_one_can_be_read() -> None:
    bucket = MemoryBucket()
    store = await started(bucket)
    owner = Owner()
    writer = store.open_ledger(L1, owner, "ns")
    for n in range(5):
        writer.append(b"entry %d" % n, 1)
    await owner.until(5)
    key = LogKeys(store.incarnation).number(1)
    bucket.objects[key] = bucket.objects[key].replace(b"entry 2", b"entrY 2")
    good = await store.read(L1, store.incarnation, 0, 5, MANY, MANY)
    assert [number for number, _, _ in good] == [0, 1]
    with pytest.raises(LogDamagedError) as damaged:
        await store.read(L1, store.incarnation, 2, 5, MANY, MANY)
    assert (damaged.value.first_bad, damaged.value.next_good) == (2, 3)
    assert len(await store.read(L1, store.incarnation, 3, 5, MANY, MANY)) == 2
    heir = await started(bucket)
    assert (await heir.take(store.incarnation, None))[L1].entries_end == 5


async def test_another_writer_under_the_same_name_ends_the_log() -> None:
    bucket = MemoryBucket()
    store = await started(bucket)
    owner = await filled(store, L1, [b"mine"])
    bucket.create_now(LogKeys(store.incarnation).number(2), encode_commit(5, 2, 2, 1, [], []))
    store.open_ledger(L2, Owner(), "ns").append(b"x", 1)
    assert "another broker uses its name" in str(await owner.until_lost())
    assert isinstance(store.ended, LogFailedError)


async def test_a_busy_log_makes_as_many_requests_as_it_may() -> None:
    store = await started(MemoryBucket(), ObjectLogPolicy(puts_per_second=0.001, puts_burst=5))
    owner = Owner()
    writer = store.open_ledger(L1, owner, "ns")
    for n in range(200):
        writer.append(b"%d" % n, 1)
        for _ in range(5):
            await asyncio.sleep(0)
    assert store.stats()["commits"] == 5
    assert owner.entries_end == 5
    # A large commit is not delayed: it costs no more than a small one.
    writer.append(b"x" * (5 << 20), 1)
    await owner.until(201)
    assert store.stats()["commits"] == 6
    await store.close()


class Stuck(MemoryBucket):
    """Answers every creation at once, but for the one that is to be stuck."""

    stuck = ""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def create(self, key: str, parts: Sequence[Buffer]) -> Created:
        self.asked.append(key)
        if key == self.stuck and self.asked.count(key) == 1:
            await asyncio.get_running_loop().create_future()
        return await super().create(key, parts)


async def test_a_creation_that_takes_long_is_asked_for_twice() -> None:
    medium = Stuck()
    store = await started(medium, ObjectLogPolicy(puts_per_second=0, hedge_seconds=0.001))
    await filled(store, L1, [b"%d" % n for n in range(20)])
    medium.stuck = LogKeys(store.incarnation).number(21)
    owner = await filled(store, L2, [b"stuck"])
    assert owner.entries_end == 1
    assert medium.asked.count(medium.stuck) == 2
    assert store.stats()["object_hedges"] >= 1
    await store.close()


async def test_blocks_are_read_once_for_all_readers_and_ahead_for_those_that_read_on() -> None:
    bucket = MemoryBucket()
    policy = ObjectLogPolicy(puts_per_second=0, cache_bytes=0, block_bytes=4096, commit_bytes_max=64 << 10)
    store = await started(bucket, policy)
    owner = Owner()
    writer = store.open_ledger(L1, owner, "ns")
    texts = [b"%04d" % n * 250 for n in range(300)]
    writer.append_many(texts, [1] * 300)
    await owner.until(300)
    before = store.stats()["object_gets"]
    read = await asyncio.gather(*(contents(store, L1, store.incarnation, 300) for _ in range(10)))
    assert read == [texts] * 10
    blocks = sum(-(-len(data) // 4096) for key, data in bucket.objects.items() if "/log/" in key)
    assert store.stats()["object_gets"] - before <= blocks
    # A reader that comes back for more finds that it was asked for.
    again = await started(bucket, policy)
    await again.take(store.incarnation, None)
    at = 0
    while at < 40:
        at += len(await again.read(L1, store.incarnation, at, 300, 4, MANY))
    for _ in range(10):
        await asyncio.sleep(0)
    before = again.stats()["object_gets"]
    assert len(await again.read(L1, store.incarnation, at, 300, 4, MANY)) == 4
    assert again.stats()["object_gets"] - before <= 4


async def test_a_store_that_ignores_conditions_is_refused_at_the_start() -> None:
    class Overwrites(MemoryBucket):
        async def create(self, key: str, parts: Sequence[Buffer]) -> Created:
            self.objects[key] = b"".join(parts)
            return Created.STORED

    store = store_on(Overwrites())
    with pytest.raises(MediumRefusedError, match="ignores conditions"):
        await store.start()
    await store.close()


async def test_fences_stay_after_the_log_was_taken_and_refuse_what_lands_late() -> None:
    bucket = MemoryBucket()
    old, heir = await started(bucket), await started(bucket)
    await filled(old, L1, [b"x"])
    await heir.take(old.incarnation, None)
    heir.delete(L1, old.incarnation)
    await heir.reclaim()
    keys = LogKeys(old.incarnation)
    # Whichever of the numbers that it may have had in flight.
    for number in range(2, 10):
        assert bucket.create_now(keys.number(number), b"late") is Created.EXISTS


class Held(MemoryBucket):
    """Creates at once, and answers for some keys only when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, asyncio.Event] = {}

    async def create(self, key: str, parts: Sequence[Buffer]) -> Created:
        created = await super().create(key, parts)
        if (held := self.held.get(key)) is not None:
            await held.wait()
        return created


class AppendsWhenTold(Owner):
    """Appends a commit full, once, inside the notification of its first entry."""

    writer: LedgerWriter | None = None

    def confirmed(self, entries_end: int, state_end: int) -> None:
        super().confirmed(entries_end, state_end)
        if self.writer is not None:
            writer, self.writer = self.writer, None
            writer.append(b"more" * 100, 1)


@pytest.mark.parametrize("appends_when_told", [False, True])
async def test_a_checkpoint_has_all_that_was_confirmed_on_both_sides_of_a_fence(
    appends_when_told: bool,
) -> None:
    """One answer confirms a commit, meets a fence for another ledger, and confirms the next commit. A checkpoint is due
    after the first of them, and an owner may append more than a commit's worth in the middle of it."""
    bucket = Held()
    policy = replace(EAGER, checkpoint_bytes=1, commit_bytes_max=300, hedge_seconds=3600)
    old = await started(bucket, policy)
    keys = LogKeys(old.incarnation)
    first, last = (bucket.held.setdefault(keys.number(number), asyncio.Event()) for number in (1, 4))
    owner, fenced = AppendsWhenTold(), Owner()
    writer, writer2 = old.open_ledger(L1, owner, "ns"), old.open_ledger(L2, fenced, "ns")
    if appends_when_told:
        owner.writer = writer

    async def stored(number: int) -> None:
        for _ in range(50):
            await asyncio.sleep(0)
        assert keys.number(number) in bucket.objects

    writer.append(b"before", 1)
    writer2.append(b"before", 1)
    await stored(1)
    assert bucket.create_now(keys.number(2), encode_fence("other", [L2])) is Created.STORED
    writer.append(b"behind", 1)
    await stored(3)
    writer2.append(b"behind", 1)
    await stored(4)
    assert (owner.calls, fenced.calls) == ([], [])
    first.set()
    await owner.until(2)
    assert isinstance(await fenced.until_lost(), FencedError)
    assert fenced.entries_end == 1
    if appends_when_told:
        await stored(5)
    await old._log.checkpoint()
    # Dies here, with what it has on its way.
    heir = await started(bucket)
    taken = await heir.take(old.incarnation, None)
    assert taken[L1].entries_end == 2 + appends_when_told
    assert taken[L2].entries_end == 1, "what lies above the fence does not count"
    last.set()
    await old.close()
