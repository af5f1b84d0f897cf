"""Commits in which nothing lives any more are deleted, and nothing else is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random

import pytest

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.object.core.choice import RewritePolicy
from anabranch.storage.object.core.objects import LogKeys, encode_fence, is_fence
from anabranch.storage.object.hostile import HostileMedium, Hostility
from anabranch.storage.object.medium import Created, ObjectMedium
from anabranch.storage.object.memory_bucket import MemoryBucket
from anabranch.storage.object.object_store import ObjectLogStore
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.port import Buffer, FencedError, LedgerWriter, LiveLedger, LogMissingError
from unit.storage.object.test_object_store import contents, filled
from unit.storage.owners import Owner

L1, L2 = LedgerId(1), LedgerId(2)
RECORD = "/managed-ledgers/public/default/persistent/t"


def policy(delay: float = 0.0, *, rewrites: bool = False) -> ObjectLogPolicy:
    return ObjectLogPolicy(
        puts_per_second=0,
        retry_seconds=0.001,
        retry_seconds_max=0.01,
        checkpoint_seconds=3600,
        delete_delay_seconds=delay,
        rewrite=RewritePolicy(object_waste_min=1, waste_bytes=1),
        rewrite_bytes_per_second=1e12 if rewrites else 0,
        map_states=3,
    )


async def started(
    medium: ObjectMedium, delay: float = 0.0, *, is_sole: bool = True, rewrites: bool = False
) -> ObjectLogStore:
    store = ObjectLogStore(
        medium, clock_ms=lambda: 1, policy=policy(delay, rewrites=rewrites), is_sole=is_sole
    )
    await store.start()
    return store


def commits(bucket: MemoryBucket, incarnation: Incarnation) -> list[str]:
    folder = LogKeys(incarnation).log
    return [key for key, data in bucket.objects.items() if key.startswith(folder) and not is_fence(data)]


async def test_commits_of_trimmed_entries_are_deleted_and_the_others_stay() -> None:
    bucket = MemoryBucket()
    store = await started(bucket)
    store.retain([])
    texts = [b"%d" % n for n in range(20)]
    await filled(store, L1, texts)
    store.trim(L1, store.incarnation, 12)
    await store.reclaim()
    assert len(commits(bucket, store.incarnation)) == 8
    assert store.stats()["removed_files"] == 12
    found = await store.read(L1, store.incarnation, 12, 20, 100, 1 << 20)
    assert [bytes(data) for _, _, data in found] == texts[12:]
    # Another broker finds the same ends and states: what was deleted is in a checkpoint.
    other = await started(bucket, is_sole=False)
    assert (await other.take(store.incarnation, None))[L1].entries_end == 20
    assert len(await other.read(L1, store.incarnation, 12, 20, 100, 1 << 20)) == 8


async def test_a_commit_lives_as_long_as_one_ledger_in_it_does() -> None:
    bucket = MemoryBucket()
    store = await started(bucket)
    store.retain([])
    owners = [Owner(), Owner()]
    writers = [store.open_ledger(one, owner, "ns") for one, owner in zip((L1, L2), owners, strict=True)]
    for writer in writers:
        writer.append(b"together", 1)
    await owners[1].until(1)
    writers[0].close()
    store.delete(L1, store.incarnation)
    await store.reclaim()
    assert len(commits(bucket, store.incarnation)) == 1
    assert await contents(store, L2, store.incarnation, 1) == [b"together"]
    writers[1].close()
    store.delete(L2, store.incarnation)
    await store.reclaim()
    assert commits(bucket, store.incarnation) == []


async def test_nothing_is_deleted_before_the_delay_or_before_the_records_were_read() -> None:
    bucket = MemoryBucket()
    hasty, patient = await started(bucket), await started(bucket, delay=3600)
    for store, ledger in ((hasty, L1), (patient, L2)):
        await filled(store, ledger, [b"x"] * 5)
        store.trim(ledger, store.incarnation, 5)
    await hasty.reclaim()
    assert len(commits(bucket, hasty.incarnation)) == 5, "no record was read yet"
    patient.retain([])
    await patient.reclaim()
    assert len(commits(bucket, patient.incarnation)) == 5


async def test_the_log_of_a_writer_that_ended_is_deleted_but_for_its_fences() -> None:
    bucket = MemoryBucket()
    old = await started(bucket)
    await filled(old, L1, [b"kept"] * 3)
    await filled(old, L2, [b"dead"] * 3)
    heir = await started(bucket)
    await heir.take(old.incarnation, [L1])
    heir.retain([LiveLedger(L1, old.incarnation, 1, 3, "ns", RECORD)])
    await heir.reclaim()
    assert len(commits(bucket, old.incarnation)) == 2
    found = await heir.read(L1, old.incarnation, 1, 3, 100, 1 << 20)
    assert [number for number, _, _ in found] == [1, 2]
    heir.delete(L1, old.incarnation)
    await heir.reclaim()
    assert commits(bucket, old.incarnation) == []
    fences = [key for key, data in bucket.objects.items() if is_fence(data)]
    assert len(fences) >= 8, "what lands late is refused for ever"
    with pytest.raises(LogMissingError):
        await heir.read(L1, old.incarnation, 1, 3, 100, 1 << 20)


async def test_one_of_several_brokers_leaves_the_logs_of_others_alone() -> None:
    bucket = MemoryBucket()
    old = await started(bucket, is_sole=False)
    await filled(old, L1, [b"of a topic that is open elsewhere"])
    one = await started(bucket, is_sole=False)
    await one.take(old.incarnation, None)
    one.retain([])
    await one.reclaim()
    assert len(commits(bucket, old.incarnation)) == 1


async def test_what_another_broker_has_trimmed_of_a_topic_that_moved_is_asked_of_its_record() -> None:
    bucket = MemoryBucket()
    store = await started(bucket, is_sole=False)
    store.retain([])
    owner = Owner()
    writer = store.open_ledger(L1, owner, "ns", RECORD)
    for n in range(6):
        writer.append(b"%d" % n, 1)
        await owner.until(n + 1)
    records: dict[str, Sequence[LiveLedger]] = {RECORD: []}

    async def living(paths: Sequence[str]) -> Mapping[str, Sequence[LiveLedger]]:
        return {path: records[path] for path in paths if path in records}

    store.ask(living)
    # While it is being written, the record need not say anything about it.
    await store.reclaim()
    assert len(commits(bucket, store.incarnation)) == 6
    writer.close()
    await store.release([L1])
    unread = records.pop(RECORD)
    await store.reclaim()
    assert len(commits(bucket, store.incarnation)) == 6, "a record that could not be read says nothing"
    records[RECORD] = [LiveLedger(L1, store.incarnation, 4, 6, "ns", RECORD)]
    await store.reclaim()
    assert len(commits(bucket, store.incarnation)) == 2
    assert len(await store.read(L1, store.incarnation, 4, 6, 100, 1 << 20)) == 2
    records[RECORD] = unread
    await store.reclaim()
    assert commits(bucket, store.incarnation) == []


class Interrupted(MemoryBucket):
    """Lets something happen when a log's numbers are listed, or before an object is read."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        self.before: dict[str, Callable[[], Awaitable[None]]] = {}

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        if (before := self.before.pop(key, None)) is not None:
            await before()
        return await super().get(key, start, length)

    async def list(self, folder: str, after: str = "") -> list[tuple[str, int]]:
        meanwhile = self.meanwhile
        if folder.endswith("/log") and meanwhile is not None:
            self.meanwhile = None
            await meanwhile()
        return await super().list(folder, after)


async def test_commits_that_are_deleted_while_their_log_is_taken_are_no_gaps() -> None:
    """Fences in their places would say that nothing above them counts."""
    bucket = Interrupted()
    old = await started(bucket, is_sole=False)
    old.retain([])
    await filled(old, L1, [b"%d" % n for n in range(10)])

    async def meanwhile() -> None:
        old.trim(L1, old.incarnation, 5)
        await old.reclaim()

    bucket.meanwhile = meanwhile
    heir = await started(bucket, is_sole=False)
    assert (await heir.take(old.incarnation, [L1]))[L1].entries_end == 10
    assert len(await heir.read(L1, old.incarnation, 5, 10, 100, 1 << 20)) == 5
    third = await started(bucket, is_sole=False)
    assert (await third.take(old.incarnation, None))[L1].entries_end == 10


async def with_states(bucket: MemoryBucket) -> tuple[ObjectLogStore, LedgerWriter, Owner]:
    """A log with an entry, and acknowledgements after it: once they are in a checkpoint, nothing lives in their
    commits."""
    store = await started(bucket, is_sole=False)
    store.retain([])
    owner = Owner()
    writer = store.open_ledger(L1, owner, "public/default")
    writer.append(b"kept", 1)
    await owner.until(1)
    for n in range(30):
        writer.append_state(b"%d" % n)
        await owner.until(states=n + 1)
    return store, writer, owner


async def test_a_fence_among_numbers_that_were_deleted_holds_nobody() -> None:
    """A broker that slept between reading the checkpoint and listing finds nothing where the log began, and puts its
    fence there: far below what the writer confirms by now."""
    bucket = Interrupted()
    old, writer, owner = await with_states(bucket)
    bucket.meanwhile = old.reclaim
    heir = await started(bucket, is_sole=False)
    taken = (await heir.take(old.incarnation, [L1]))[L1]
    assert taken.entries_end == 1
    writer.append(b"late", 1)
    with pytest.raises(FencedError):
        await owner.until(2)
    assert owner.entries_end == 1


async def test_a_fence_that_another_put_where_a_commit_was_deleted_hides_nothing() -> None:
    """It was put by a broker that slept, while this one slept between the checkpoint and the commit."""
    bucket = Interrupted()
    old, _, _ = await with_states(bucket)
    key = old._log.keys.number(31)

    async def meanwhile() -> None:
        await old.reclaim()
        assert bucket.create_now(key, encode_fence("other", [L2])) is Created.STORED

    bucket.before[key] = meanwhile
    heir = await started(bucket, is_sole=False)
    assert len((await heir.take(old.incarnation, [L1]))[L1].deltas) == 30


async def test_entries_are_found_though_all_that_a_take_has_seen_is_deleted() -> None:
    bucket = MemoryBucket()
    old = await started(bucket, is_sole=False)
    old.retain([])
    await filled(old, L1, [b"%d" % n for n in range(5)])
    await old._log.checkpoint()
    heir = await started(bucket, is_sole=False)
    assert (await heir.take(old.incarnation, [L1]))[L1].entries_end == 5
    # As of a commit behind the fence, which does not count: its entries live nowhere.
    heir._other(old.incarnation).places.add(L1, 5, 99)
    assert len(await heir.read(L1, old.incarnation, 0, 5, 100, 1 << 20)) == 5


async def play(seed: int) -> int:
    """How many objects were rewritten. One broker after the other on a hostile medium appends, trims, deletes and
    reclaims, and ends in the middle of it. Whatever lives by the records can be read at any time."""
    random = Random(seed)
    bucket = MemoryBucket()
    # By ledger: its log, where it begins to live, its end where that is known, and what was appended.
    firsts: dict[LedgerId, int] = {}
    of: dict[LedgerId, Incarnation] = {}
    ends: dict[LedgerId, int] = {}
    texts: dict[LedgerId, list[bytes]] = {}
    next_ledger = 1
    stores = []
    for life in range(4):
        medium = HostileMedium(bucket, Random(seed * 100 + life), Hostility(late_turns_max=50))
        store = await started(medium, rewrites=True)
        stores.append(store)
        for ledger in [one for one in of if one not in ends]:
            state = (await store.take(of[ledger], [ledger])).get(ledger)
            ends[ledger] = state.entries_end if state is not None else 0
        store.retain(LiveLedger(one, of[one], firsts[one], ends[one], "ns", RECORD) for one in of)
        owners: dict[LedgerId, Owner] = {}
        writers = {}
        for _ in range(3):
            ledger = LedgerId(next_ledger)
            next_ledger += 1
            owners[ledger] = Owner()
            writers[ledger] = store.open_ledger(ledger, owners[ledger], "ns", RECORD)
            of[ledger], firsts[ledger], texts[ledger] = store.incarnation, 0, []
        for _ in range(random.randrange(30, 80)):
            ledger = random.choice(list(of))
            confirmed = owners[ledger].entries_end if ledger in owners else ends[ledger]
            match random.randrange(10):
                case 0:
                    firsts[ledger] = random.randint(firsts[ledger], confirmed)
                    store.trim(ledger, of[ledger], firsts[ledger])
                case 1 if ledger not in owners:
                    store.delete(ledger, of[ledger])
                    for one in (firsts, of, ends, texts):
                        one.pop(ledger)
                case 2:
                    await store.reclaim()
                case 3 if firsts[ledger] < confirmed:
                    read = await store.read(ledger, of[ledger], firsts[ledger], confirmed, 3, 1 << 20)
                    assert [bytes(data) for _, _, data in read] == texts[ledger][firsts[ledger] :][
                        : len(read)
                    ]
                case 4:
                    # Entries of several ledgers lie in one object, and die at different times.
                    for some in writers:
                        texts[some].append(b"%d-%d " % (some, len(texts[some])) * random.randrange(1, 20))
                        writers[some].append(texts[some][-1], 1)
                case _:
                    some = random.choice(list(writers))
                    texts[some].append(b"%d-%d" % (some, len(texts[some])))
                    writers[some].append(texts[some][-1], 1)
            for _ in range(random.randrange(40)):
                await asyncio.sleep(0)
        if random.random() < 0.5:
            await store.close()
            ends |= {ledger: owner.entries_end for ledger, owner in owners.items()}
        # Else it is left as it is, with what it has on its way.
    last = await started(bucket, rewrites=True)
    for ledger in of:
        if ledger not in ends:
            state = (await last.take(of[ledger], [ledger])).get(ledger)
            ends[ledger] = state.entries_end if state is not None else 0
    last.retain(LiveLedger(one, of[one], firsts[one], ends[one], "ns", RECORD) for one in of)
    await last.reclaim()
    for ledger in of:
        found: list[bytes] = []
        while firsts[ledger] + len(found) < ends[ledger]:
            at = firsts[ledger] + len(found)
            found += [
                bytes(data)
                for _, _, data in await last.read(ledger, of[ledger], at, ends[ledger], 9, 1 << 20)
            ]
        assert found == texts[ledger][firsts[ledger] : ends[ledger]]
    for store in [*stores, last]:
        await store.close()
    return sum(store._reclaimer.figures.rewritten for store in [*stores, last])


@pytest.mark.parametrize("first", range(0, 15, 5))
async def test_what_lives_can_be_read_whatever_is_deleted_and_rewritten(first: int) -> None:
    assert sum([await play(seed) for seed in range(first, first + 5)]) > 10
