"""What every `LogStore` must do, whatever it is made of. Each adapter adds a medium to `MEDIA` and runs all of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import count
from pathlib import Path
from random import Random

import pytest

from anabranch.metadata.memory import MemoryMetadata
from anabranch.metadata.port import MetadataStore
from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.memory import MemoryLogStore, MemoryMedium
from anabranch.storage.object.core.choice import RewritePolicy
from anabranch.storage.object.hostile import HostileMedium
from anabranch.storage.object.medium import ObjectMedium
from anabranch.storage.object.memory_bucket import MemoryBucket
from anabranch.storage.object.object_store import ObjectLogStore
from anabranch.storage.object.obstore_medium import open_medium
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.on_disk.file_store import FileLogStore
from anabranch.storage.port import (
    Buffer,
    FencedError,
    LedgerState,
    LiveLedger,
    LogError,
    LogMissingError,
    LogStore,
)
from anabranch.storage.topic.ledger_ids import LedgerIds
from anabranch.storage.topic.topic_log import TopicLog
from harness.minio import bucket_url
from unit.storage.owners import FoldingOwner, Owner

L1, L2, L3 = LedgerId(1), LedgerId(2), LedgerId(3)
MANY = 1 << 30

Opener = Callable[[], LogStore]


def memory_medium(_: Path) -> Opener:
    medium, names = MemoryMedium(), count(1)
    return lambda: MemoryLogStore(medium, incarnation=Incarnation(f"m{next(names)}"))


def file_medium(root: Path) -> Opener:
    # Small files, so that a few entries are enough to fill several.
    return lambda: FileLogStore(root, clock_ms=lambda: 1_000, is_shared=True, file_bytes=256 << 10)


# Nothing waits for the sake of the costs, and small commits are enough for several objects.
EAGER = ObjectLogPolicy(
    commit_bytes_max=256 << 10,
    puts_per_second=0,
    checkpoint_bytes=512 << 10,
    checkpoint_seconds=0.05,
    full_checkpoint_every=3,
    look_seconds=0,
    retry_seconds=0.001,
    retry_seconds_max=0.01,
    block_bytes=64 << 10,
    # Space is given back as soon as it can be, and whatever wastes anything is rewritten.
    delete_delay_seconds=0,
    rewrite=RewritePolicy(object_waste_min=1, waste_bytes=1),
    rewrite_bytes_per_second=1e12,
    map_states=2,
)


def object_medium(medium: Callable[[], ObjectMedium]) -> Opener:
    return lambda: ObjectLogStore(medium(), clock_ms=lambda: 1_000, policy=EAGER)


def bucket_medium(_: Path) -> Opener:
    bucket = MemoryBucket()
    return object_medium(lambda: bucket)


def hostile_medium(_: Path) -> Opener:
    bucket, seeds = MemoryBucket(), count(int(os.environ.get("SEED", 1)))
    return object_medium(lambda: HostileMedium(bucket, Random(next(seeds))))


def folder_medium(root: Path) -> Opener:
    return object_medium(lambda: open_medium(f"objects://{root}/objects"))


def minio_medium(_: Path) -> Opener:
    url = bucket_url(f"log-{secrets.token_hex(8)}")
    return object_medium(lambda: open_medium(url))


def hostile_minio_medium(_: Path) -> Opener:
    url, seeds = bucket_url(f"log-{secrets.token_hex(8)}"), count(int(os.environ.get("SEED", 1)))
    return object_medium(lambda: HostileMedium(open_medium(url), Random(next(seeds))))


MEDIA = {
    "memory": memory_medium,
    "file": file_medium,
    "object": bucket_medium,
    "object-hostile": hostile_medium,
    "object-folder": folder_medium,
    "object-minio": minio_medium,
    "object-minio-hostile": hostile_minio_medium,
}


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.objects if "minio" in name else ()) for name in sorted(MEDIA)
    ]
)
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opener]:
    opener = MEDIA[request.param](tmp_path)
    opened: list[LogStore] = []

    def open_one() -> LogStore:
        opened.append(opener())
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


async def started(open_store: Opener) -> LogStore:
    store = open_store()
    await store.start()
    return store


async def contents(
    store: LogStore, ledger: LedgerId, incarnation: Incarnation, end: int, first: int = 0
) -> list[bytes]:
    found: list[bytes] = []
    while first < end:
        for number, _, data in await store.read(ledger, incarnation, first, end, 7, 300):
            assert number == first
            found.append(bytes(data))
            first += 1
    return found


async def filled(store: LogStore, ledger: LedgerId, texts: list[bytes]) -> Owner:
    owner = Owner()
    writer = store.open_ledger(ledger, owner, "public/default")
    for text in texts:
        writer.append(text, 1)
    writer.append_state(b"read")
    await owner.until(len(texts), 1)
    return owner


# -- appending and confirming


async def test_entries_get_consecutive_ids_from_zero(open_store: Opener) -> None:
    store = await started(open_store)
    writer = store.open_ledger(L1, Owner(), "public/default")
    assert [writer.append(b"x", 1) for _ in range(3)] == [0, 1, 2]
    assert writer.next_entry == 3


async def test_many_appends_are_appends_one_after_the_other(open_store: Opener) -> None:
    store = await started(open_store)
    owner = Owner()
    writer = store.open_ledger(L1, owner, "public/default")
    writer.append(b"zero", 1)
    # More than one commit takes, so that a run is cut where a commit is full.
    texts = [b"%d" % n * (1 << 18) for n in range(60)]
    assert writer.append_many(texts, list(range(60))) == 1
    assert writer.append_many([b"last"], [7]) == 61
    await owner.until(62, 0)
    found = await contents(store, L1, store.incarnation, 62)
    assert found == [b"zero", *texts, b"last"]
    ((_, messages, _),) = await store.read(L1, store.incarnation, 41, 62, 1, MANY)
    assert messages == 40


async def test_nothing_is_confirmed_inside_append(open_store: Opener) -> None:
    store = await started(open_store)
    owner = Owner()
    writer = store.open_ledger(L1, owner, "public/default")
    writer.append(b"one", 1)
    assert writer.entries_end == 0
    assert owner.calls == []
    assert store.unconfirmed_bytes > 0
    await owner.until(1)
    assert writer.entries_end == 1
    assert store.unconfirmed_bytes == 0


async def test_unconfirmed_entries_are_not_read(open_store: Opener) -> None:
    store = await started(open_store)
    owner = Owner()
    writer = store.open_ledger(L1, owner, "public/default")
    writer.append(b"one", 1)
    assert store.read_cached(L1, 0, MANY, MANY) == []
    with pytest.raises(LogMissingError):
        await store.read(L1, store.incarnation, 5, 6, MANY, MANY)


async def test_one_commit_is_one_call_per_ledger(open_store: Opener) -> None:
    store = await started(open_store)
    owners = [Owner(), Owner()]
    writers = [store.open_ledger(one, owner, "ns") for one, owner in zip((L1, L2), owners, strict=True)]
    for i in range(10):
        writers[i % 2].append(b"x" * i, 1)
    writers[0].append_state(b"ack")
    await owners[0].until(5, 1)
    await owners[1].until(5)
    assert owners[0].calls == [(5, 1)]
    assert owners[1].calls == [(5, 0)]


async def test_entries_read_back_as_they_were_appended(open_store: Opener) -> None:
    store = await started(open_store)
    owner = Owner()
    writer = store.open_ledger(L1, owner, "public/default")
    kinds: list[Buffer] = [b"bytes", bytearray(b"bytearray"), memoryview(b"a view"), b""]
    for number, entry in enumerate(kinds):
        writer.append(entry, number + 1)
    await owner.until(len(kinds))
    expected = [(i, i + 1, bytes(entry)) for i, entry in enumerate(kinds)]
    cached = store.read_cached(L1, 0, MANY, MANY)
    assert cached is not None
    assert [(n, m, bytes(d)) for n, m, d in cached] == expected
    stored = await store.read(L1, store.incarnation, 0, 4, MANY, MANY)
    assert [(n, m, bytes(d)) for n, m, d in stored] == expected


async def test_the_callers_buffer_is_free_once_append_returns(open_store: Opener) -> None:
    store = await started(open_store)
    owner = Owner()
    writer = store.open_ledger(L1, owner, "public/default")
    buffer = bytearray(b"first")
    writer.append(memoryview(buffer), 1)
    buffer[:] = b"other"
    buffer += b"longer"
    await owner.until(1)
    assert await contents(store, L1, store.incarnation, 1) == [b"first"]


async def test_a_view_that_was_read_stays_valid(open_store: Opener) -> None:
    store = await started(open_store)
    await filled(store, L1, [b"kept"])
    cached = store.read_cached(L1, 0, 1, MANY)
    assert cached
    view = cached[0][2]
    await filled(store, L2, [b"y" * 1000 for _ in range(200)])
    store.trim(L1, store.incarnation, 1)
    assert bytes(view) == b"kept"


async def test_reads_keep_to_their_limits_but_give_at_least_one_entry(open_store: Opener) -> None:
    store = await started(open_store)
    await filled(store, L1, [b"z" * 100 for _ in range(20)])
    for read in (
        lambda n, b: store.read_cached(L1, 3, n, b),
        lambda n, b: store.read(L1, store.incarnation, 3, 20, n, b),
    ):

        async def got(entries: int, size: int, read: Callable[[int, int], object] = read) -> list[int]:
            found = read(entries, size)
            if asyncio.iscoroutine(found):
                found = await found
            assert isinstance(found, list)
            return [number for number, _, _ in found]

        assert await got(4, MANY) == [3, 4, 5, 6]
        assert await got(MANY, 250) == [3, 4]
        assert await got(MANY, 1) == [3]
        assert await got(MANY, MANY) == list(range(3, 20))


async def test_reading_past_the_confirmed_end_from_the_cache_gives_nothing(open_store: Opener) -> None:
    store = await started(open_store)
    await filled(store, L1, [b"one"])
    assert store.read_cached(L1, 1, MANY, MANY) == []


@pytest.mark.parametrize("way", ["closed", "taken"])
async def test_the_cache_does_not_say_where_a_ledger_ends_that_is_closed_or_taken(
    open_store: Opener, way: str
) -> None:
    store, other = await started(open_store), await started(open_store)
    owner = Owner()
    writer = store.open_ledger(L1, owner, "public/default")
    writer.append(b"one", 1)
    await owner.until(1)
    if way == "closed":
        writer.close()
    else:
        await other.take(store.incarnation, [L1])
        store.look_for_fences()
        await owner.until_lost()
    # Another broker may have found more of it.
    assert store.read_cached(L1, 1, MANY, MANY) is None


async def test_a_ledger_nobody_wrote_is_missing(open_store: Opener) -> None:
    store = await started(open_store)
    assert store.read_cached(L3, 0, 1, MANY) is None
    with pytest.raises(LogMissingError):
        await store.read(L3, store.incarnation, 0, 1, 1, MANY)
    with pytest.raises(LogMissingError):
        await store.read(L3, Incarnation("never"), 0, 1, 1, MANY)


async def test_a_closed_writer_still_confirms_what_it_had(open_store: Opener) -> None:
    store = await started(open_store)
    owner = Owner()
    writer = store.open_ledger(L1, owner, "public/default")
    writer.append(b"last words", 1)
    writer.close()
    with pytest.raises(LogError):
        writer.append(b"too late", 1)
    with pytest.raises(LogError):
        writer.append_state(b"too late")
    await owner.until(1)
    assert await contents(store, L1, store.incarnation, 1) == [b"last words"]


async def test_a_ledger_id_is_opened_once(open_store: Opener) -> None:
    store = await started(open_store)
    await filled(store, L1, [b"x"])
    with pytest.raises(LogError):
        store.open_ledger(L1, Owner(), "public/default")


async def test_closing_the_store_confirms_everything_first(open_store: Opener) -> None:
    store = await started(open_store)
    owner = Owner()
    writer = store.open_ledger(L1, owner, "public/default")
    for _ in range(50):
        writer.append(b"x" * 100, 1)
    await store.close()
    assert owner.entries_end == 50
    with pytest.raises(LogError):
        writer.append(b"x", 1)


async def test_what_is_appended_while_the_store_closes_is_refused_or_handed_over(open_store: Opener) -> None:
    store = await started(open_store)
    owner = Owner()
    writer = store.open_ledger(L1, owner, "public/default")
    writer.append(b"before", 1)
    closing = asyncio.ensure_future(store.close())
    appended = 1
    with contextlib.suppress(LogError):
        while not closing.done():
            writer.append(b"during", 1)
            appended += 1
            await asyncio.sleep(0)
    await closing
    heir = await started(open_store)
    state = (await heir.take(store.incarnation, None))[L1]
    assert owner.entries_end <= state.entries_end <= appended
    assert len(await contents(heir, L1, store.incarnation, state.entries_end)) == state.entries_end


async def test_an_owner_that_closed_its_ledger_is_not_told_that_the_log_ended(open_store: Opener) -> None:
    store = await started(open_store)
    owner = Owner()
    writer = store.open_ledger(L1, owner, "public/default")
    writer.append(b"x", 1)
    writer.close()
    await owner.until(1)
    await store.close()
    assert owner.error is None


async def test_the_end_of_the_log_is_told_where_no_ledger_is_open(open_store: Opener) -> None:
    store = await started(open_store)
    ended = [asyncio.Event(), asyncio.Event()]
    store.on_end(ended[0].set)
    store.open_ledger(L1, Owner(), "public/default").close()
    await store.close()
    assert await asyncio.wait_for(ended[0].wait(), 10)
    # Also to whoever asks when it is over.
    store.on_end(ended[1].set)
    assert await asyncio.wait_for(ended[1].wait(), 10)


# -- state records


async def test_state_comes_back_as_the_last_snapshot_and_the_deltas_after_it(open_store: Opener) -> None:
    store = await started(open_store)
    owner = Owner()
    writer = store.open_ledger(L1, owner, "public/default")
    assert writer.append_state(b"d0") == 0
    assert writer.append_snapshot(b"S1") == 1
    writer.append(b"entry", 3)
    assert writer.append_state(b"d2") == 2
    assert writer.append_state(b"d3") == 3
    await owner.until(1, 4)
    writer.close()
    expected = LedgerState(entries_end=1, snapshot=b"S1", deltas=(b"d2", b"d3"), bytes=5)
    assert (await store.take(store.incarnation, [L1]))[L1] == expected
    await store.close()
    heir = await started(open_store)
    assert await heir.take(store.incarnation, None) == {L1: expected}


async def test_deltas_without_a_snapshot_are_all_kept(open_store: Opener) -> None:
    store = await started(open_store)
    owner = Owner()
    writer = store.open_ledger(L1, owner, "public/default")
    for i in range(5):
        writer.append_state(b"%d" % i)
    await owner.until(0, 5)
    await store.close()
    heir = await started(open_store)
    state = (await heir.take(store.incarnation, [L1]))[L1]
    assert state == LedgerState(0, None, (b"0", b"1", b"2", b"3", b"4"), 0)


@pytest.mark.parametrize("is_closed", [True, False])
async def test_messages_are_counted_through_a_take(open_store: Opener, is_closed: bool) -> None:
    store = await started(open_store)
    owner = Owner()
    writer = store.open_ledger(L1, owner, "public/default")
    writer.append(b"entry", 3)
    writer.append_many([b"a", b"b"], [2, 500])
    await owner.until(3, 0)
    if is_closed:
        writer.close()
        assert (await store.release([L1]))[L1].messages == 505
        await store.close()
    heir = await started(open_store)
    assert (await heir.take(store.incarnation, [L1]))[L1].messages == 505
    # Asked again, the answer comes from what was stored.
    third = await started(open_store)
    assert (await third.take(store.incarnation, [L1]))[L1].messages == 505


async def test_an_own_ledger_still_open_is_not_handed_out(open_store: Opener) -> None:
    store = await started(open_store)
    await filled(store, L1, [b"x"])
    assert await store.take(store.incarnation, [L1]) == {}


# -- taking over


async def test_a_clean_hand_over_loses_nothing(open_store: Opener) -> None:
    old = await started(open_store)
    texts = [b"entry %d" % i for i in range(30)]
    await filled(old, L1, texts)
    await filled(old, L2, [])
    await old.close()
    new = await started(open_store)
    states = await new.take(old.incarnation, None)
    assert states == {
        L1: LedgerState(30, None, (b"read",), sum(map(len, texts))),
        L2: LedgerState(0, None, (b"read",), 0),
    }
    assert await contents(new, L1, old.incarnation, 30) == texts


async def test_a_new_store_has_a_new_name(open_store: Opener) -> None:
    old, new = await started(open_store), await started(open_store)
    assert old.incarnation != new.incarnation


async def test_once_taken_the_old_writer_confirms_nothing_more(open_store: Opener) -> None:
    old, new = await started(open_store), await started(open_store)
    owner = Owner()
    writer = old.open_ledger(L1, owner, "public/default")
    for i in range(10):
        writer.append(b"before %d" % i, 1)
    await owner.until(10)
    state = (await new.take(old.incarnation, None))[L1]
    assert state.entries_end == 10
    # The writer may have met the fence already, or meets it with its next commit.
    with contextlib.suppress(FencedError):
        writer.append(b"after", 1)
    assert isinstance(await owner.until_lost(), FencedError)
    assert owner.entries_end == 10
    with pytest.raises(FencedError):
        writer.append(b"again", 1)
    with pytest.raises(LogError):
        old.open_ledger(L2, Owner(), "public/default")
    assert len(await contents(new, L1, old.incarnation, 10)) == 10


async def test_an_owner_that_writes_nothing_is_told_of_a_fence_by_a_look(open_store: Opener) -> None:
    old, new = await started(open_store), await started(open_store)
    taken = await filled(old, L1, [b"mine"])
    kept = Owner()
    writer = old.open_ledger(L2, kept, "public/default")
    await new.take(old.incarnation, [L1])
    old.look_for_fences()
    assert isinstance(await taken.until_lost(), FencedError)
    writer.append(b"goes on", 1)
    await kept.until(1)
    await new.take(old.incarnation, None)
    old.look_for_fences()
    assert isinstance(await kept.until_lost(), FencedError)
    assert isinstance(old.ended, FencedError)


async def test_a_look_for_fences_holds_up_nothing(open_store: Opener) -> None:
    store = await started(open_store)
    owner = Owner()
    writer = store.open_ledger(L1, owner, "public/default")
    for number in range(200):
        store.look_for_fences()
        writer.append(b"before", 1)
        if number % 3:
            await asyncio.sleep(0)
        writer.append(b"behind", 1)
        store.look_for_fences()
        if number % 2:
            async with asyncio.timeout(10):
                await owner.until(2 * number + 2)
    async with asyncio.timeout(10):
        await owner.until(400)
    assert owner.error is None


async def test_a_ledger_that_its_taker_deletes_while_it_is_asked_for_is_no_error(open_store: Opener) -> None:
    old, new = await started(open_store), await started(open_store)
    owner, other = Owner(), Owner()
    writer = old.open_ledger(L1, owner, "public/default")
    writer.append(b"taken", 1)
    await owner.until(1)
    writer.close()
    await new.take(old.incarnation, [L1])
    busy = old.open_ledger(L2, other, "public/default")

    async def ask_while_busy() -> Mapping[LedgerId, LedgerState]:
        busy.append(b"on its way", 1)
        return await old.take(old.incarnation, [L1])

    asking = asyncio.create_task(ask_while_busy())
    await asyncio.sleep(0)
    new.delete(L1, old.incarnation)
    assert (await asking).keys() <= {L1}


async def test_a_take_that_races_with_appends_agrees_with_the_writer(open_store: Opener) -> None:
    old, new = await started(open_store), await started(open_store)
    owner = Owner()
    writer = old.open_ledger(L1, owner, "public/default")
    taking = asyncio.ensure_future(new.take(old.incarnation, [L1]))
    for i in range(200):
        try:
            writer.append(b"%d" % i, 1)
        except FencedError:
            break
        await asyncio.sleep(0)
    state = (await taking).get(L1, LedgerState(0, None, (), 0))
    confirmed = owner.entries_end
    writer_is_lost = owner.error is not None
    if not writer_is_lost:
        writer.append(b"past the fence", 1)
        await owner.until_lost()
    # Everything receipted is in the answer; what is beyond may be there, but never less.
    assert confirmed == owner.entries_end <= state.entries_end
    found = await contents(new, L1, old.incarnation, state.entries_end)
    assert found == [b"%d" % i for i in range(state.entries_end)]


async def test_taking_some_ledgers_leaves_the_others_writing(open_store: Opener) -> None:
    old, new = await started(open_store), await started(open_store)
    taken, kept = Owner(), Owner()
    taken_writer = old.open_ledger(L1, taken, "public/default")
    kept_writer = old.open_ledger(L2, kept, "public/default")
    taken_writer.append(b"mine", 1)
    kept_writer.append(b"mine too", 1)
    await taken.until(1)
    await kept.until(1)
    states = await new.take(old.incarnation, [L1])
    assert list(states) == [L1]
    with contextlib.suppress(FencedError):
        taken_writer.append(b"void", 1)
    kept_writer.append(b"goes on", 1)
    assert isinstance(await taken.until_lost(), FencedError)
    await kept.until(2)
    assert taken.entries_end == 1
    assert await new.take(old.incarnation, [L1]) == states
    kept_writer.append(b"still", 1)
    await kept.until(3)
    assert await contents(old, L2, old.incarnation, 3) == [b"mine too", b"goes on", b"still"]
    assert await contents(new, L1, old.incarnation, 1) == [b"mine"]


async def test_large_entries_of_one_commit_are_recovered_in_order(open_store: Opener) -> None:
    store = await started(open_store)
    owner = Owner()
    writer = store.open_ledger(L1, owner, "public/default")
    texts = [b"%02d" % n * 60_000 for n in range(12)]
    writer.append_many(texts[:7], [1] * 7)
    writer.append_state(b"between")
    for text in texts[7:]:
        writer.append(text, 1)
    await owner.until(12, 1)
    other = await started(open_store)
    taken = await other.take(store.incarnation, None)
    assert (taken[L1].entries_end, taken[L1].deltas) == (12, (b"between",))
    assert await contents(other, L1, store.incarnation, 12) == texts


async def test_taking_again_gives_the_same_answer(open_store: Opener) -> None:
    old, new = await started(open_store), await started(open_store)
    await filled(old, L1, [b"a", b"b"])
    await filled(old, L2, [b"c"])
    first = await new.take(old.incarnation, None)
    assert await new.take(old.incarnation, None) == first
    third = await started(open_store)
    assert await third.take(old.incarnation, None) == first
    assert await third.take(old.incarnation, [L2]) == {L2: first[L2]}


async def test_ledgers_the_incarnation_never_wrote_are_absent(open_store: Opener) -> None:
    old, new = await started(open_store), await started(open_store)
    await filled(old, L1, [b"a"])
    assert await new.take(old.incarnation, [L3]) == {}
    assert await new.take(Incarnation("unheard-of"), None) == {}


async def test_an_unopened_ledger_that_was_taken_cannot_be_written(open_store: Opener) -> None:
    old, new = await started(open_store), await started(open_store)
    await new.take(old.incarnation, [L1])
    owner = Owner()
    try:
        old.open_ledger(L1, owner, "public/default").append(b"void", 1)
    except FencedError:
        return
    assert isinstance(await owner.until_lost(), FencedError)
    assert owner.entries_end == 0


# -- released by their writer


async def test_a_released_ledger_has_everything_that_was_appended(open_store: Opener) -> None:
    store = await started(open_store)
    owner = Owner()
    writer = store.open_ledger(L1, owner, "public/default")
    writer.append_snapshot(b"all")
    writer.append(b"one", 1)
    writer.append_state(b"read")
    writer.append(b"two", 1)
    writer.close()
    states = await store.release([L1])
    assert states == {L1: LedgerState(2, b"all", (b"read",), 6)}
    assert (owner.entries_end, owner.state_end) == (2, 2)
    assert await store.release([L1]) == states
    with pytest.raises(LogError):
        writer.append(b"three", 1)


async def test_only_closed_ledgers_of_this_incarnation_are_released(open_store: Opener) -> None:
    store, other = await started(open_store), await started(open_store)
    await filled(store, L1, [b"one"])
    await filled(other, L2, [b"one"])
    closed = store.open_ledger(L3, Owner(), "public/default")
    closed.append(b"x", 1)
    closed.close()
    for ledgers in ([L1], [L2], [L3, L1]):
        with pytest.raises(LogError):
            await store.release(ledgers)
    assert list(await store.release([L3])) == [L3]


async def test_a_ledger_that_was_taken_is_not_released(open_store: Opener) -> None:
    store, other = await started(open_store), await started(open_store)
    owner = Owner()
    writer = store.open_ledger(L1, owner, "public/default")
    await other.take(store.incarnation, [L1])
    with contextlib.suppress(FencedError):
        writer.append(b"void", 1)
    writer.close()
    with pytest.raises(FencedError):
        await store.release([L1])


async def test_nothing_is_released_once_the_log_has_ended(open_store: Opener) -> None:
    store = await started(open_store)
    writer = store.open_ledger(L1, Owner(), "public/default")
    writer.append(b"one", 1)
    writer.close()
    await store.close()
    with pytest.raises(LogError):
        await store.release([L1])


@pytest.mark.parametrize("is_closed", [False, True])
async def test_taking_a_released_ledger_gives_the_same_answer(open_store: Opener, is_closed: bool) -> None:
    store, other = await started(open_store), await started(open_store)
    writer = store.open_ledger(L1, Owner(), "public/default")
    writer.append_snapshot(b"all")
    writer.append(b"one", 1)
    writer.append_state(b"read")
    writer.close()
    states = await store.release([L1])
    if is_closed:
        await store.close()
    assert await other.take(store.incarnation, [L1]) == states
    third = await started(open_store)
    assert await third.take(store.incarnation, [L1]) == states


async def test_released_entries_are_read_while_their_writer_goes_on(open_store: Opener) -> None:
    store, other = await started(open_store), await started(open_store)
    kept = Owner()
    kept_writer = store.open_ledger(L3, kept, "public/default")
    # Files are small: the released ledgers lie in several, finished and unfinished.
    for round_, ledger in enumerate((L1, L2)):
        writer = store.open_ledger(ledger, Owner(), "public/default")
        texts = [b"%d-%d" % (round_, n) * 5_000 for n in range(30)]
        for text in texts:
            writer.append(text, 1)
            kept_writer.append(text, 1)
            await kept.until(kept_writer.next_entry)
        writer.close()
        end = (await store.release([ledger]))[ledger].entries_end
        assert await contents(other, ledger, store.incarnation, end) == texts
    kept_writer.append(b"still", 1)
    await kept.until(61)


# -- giving space back


async def test_trimmed_entries_are_gone_and_the_rest_stays(open_store: Opener) -> None:
    store = await started(open_store)
    texts = [b"entry %d" % i for i in range(20)]
    await filled(store, L1, texts)
    store.trim(L1, store.incarnation, 12)
    await store.reclaim()
    assert await contents(store, L1, store.incarnation, 20, first=12) == texts[12:]


async def test_what_no_record_names_is_dropped_after_retain(open_store: Opener) -> None:
    old = await started(open_store)
    await filled(old, L1, [b"keep"])
    await filled(old, L2, [b"drop"] * 10)
    await old.close()
    new = await started(open_store)
    await new.take(old.incarnation, None)
    new.retain([LiveLedger(L1, old.incarnation, 0, 1, "public/default")])
    await new.reclaim()
    assert await contents(new, L1, old.incarnation, 1) == [b"keep"]
    with pytest.raises(LogMissingError):
        await new.read(L2, old.incarnation, 0, 10, 1, MANY)


async def test_a_deleted_ledger_is_missing(open_store: Opener) -> None:
    old = await started(open_store)
    await filled(old, L1, [b"a"])
    await filled(old, L2, [b"b"])
    await old.close()
    new = await started(open_store)
    await new.take(old.incarnation, None)
    new.retain([LiveLedger(L1, old.incarnation, 0, 1, "ns"), LiveLedger(L2, old.incarnation, 0, 1, "ns")])
    new.delete(L2, old.incarnation)
    await new.reclaim()
    assert await contents(new, L1, old.incarnation, 1) == [b"a"]
    with pytest.raises(LogMissingError):
        await new.read(L2, old.incarnation, 0, 1, 1, MANY)


async def test_stats_are_numbers(open_store: Opener) -> None:
    store = await started(open_store)
    await filled(store, L1, [b"x" * 1000])
    stats = store.stats()
    assert {"disk_bytes", "live_bytes", "files", "cache_bytes", "commits"} <= set(stats)
    assert stats["live_bytes"] >= 1000


# -- what goes wrong costs whoever made it go wrong


@pytest.mark.parametrize("messages", [-1, 1 << 32])
async def test_a_count_that_cannot_be_stored_leaves_the_ledger_as_it_was(
    open_store: Opener, messages: int
) -> None:
    store = await started(open_store)
    owner, other = Owner(), Owner()
    writer = store.open_ledger(L1, owner, "public/default")
    bystander = store.open_ledger(L2, other, "public/default")
    writer.append(b"zero", 1)
    bystander.append(b"other", 1)
    with pytest.raises(ValueError, match="cannot store"):
        writer.append_many([b"good", b"bad"], [1, messages])
    end = writer.next_entry
    with pytest.raises(ValueError, match="cannot store"):
        writer.append(b"bad", messages)
    assert writer.next_entry == end
    assert writer.append(b"next", 1) == end
    writer.append_state(b"state")
    await owner.until(end + 1, 1)
    await other.until(1)
    found = await contents(store, L1, store.incarnation, end + 1)
    assert found == [b"zero", *[b"good"] * (end - 1), b"next"]
    assert [bytes(data) for _, _, data in store.read_cached(L1, 0, MANY, MANY) or []] == found
    heir = await started(open_store)
    assert (await heir.take(store.incarnation, [L1]))[L1].entries_end == end + 1
    assert await contents(heir, L1, store.incarnation, end + 1) == found


class FailingOwner(FoldingOwner):
    """Raises when it is told of a commit, or asked for its state."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def confirmed(self, entries_end: int, state_end: int) -> None:
        if self.what == "confirmed":
            raise RuntimeError("an owner that cannot be told")
        super().confirmed(entries_end, state_end)

    def snapshot(self) -> bytes:
        if self.what == "snapshot":
            raise OverflowError("a state that cannot be said")
        return super().snapshot()


@pytest.mark.parametrize("what", ["confirmed", "snapshot"])
async def test_an_owner_that_fails_loses_its_ledger_and_nobody_elses(open_store: Opener, what: str) -> None:
    store = await started(open_store)
    failing, other = FailingOwner(what), Owner()
    writer = store.open_ledger(L1, failing, "public/default")
    bystander = store.open_ledger(L2, other, "public/default")
    writer.append_snapshot(b"first")
    # More than a log keeps without asking for the state in full.
    for _ in range(1_200):
        writer.append_state(b"x" * 300)
    writer.append(b"mine", 1)
    failing.state = whole = b"first" + b"x" * 300 * 1_200
    bystander.append(b"theirs", 1)
    assert "owner" in str(await asyncio.wait_for(failing.until_lost(), 10))
    await other.until(1)
    assert store.ended is None
    with pytest.raises(LogError):
        writer.append(b"more", 1)
    assert bystander.append(b"theirs too", 1) == 1
    await other.until(2)
    # What was appended is there, for the next owner in this store or in another.
    state = (await store.take(store.incarnation, [L1]))[L1]
    assert (state.entries_end, state.bytes) == (1, 4)
    assert (state.snapshot or b"") + b"".join(state.deltas) == whole
    assert await contents(store, L1, store.incarnation, 1) == [b"mine"]
    await store.close()
    heir = await started(open_store)
    states = await heir.take(store.incarnation, None)
    assert states[L1] == state
    assert await contents(heir, L1, store.incarnation, 1) == [b"mine"]
    assert await contents(heir, L2, store.incarnation, 2) == [b"theirs", b"theirs too"]


async def test_an_owner_that_fails_when_it_is_told_that_it_is_lost_hides_it_from_nobody(
    open_store: Opener,
) -> None:
    class Helpless(Owner):
        def lost(self, error: LogError) -> None:
            super().lost(error)
            raise RuntimeError("an owner that cannot take it")

    store = await started(open_store)
    owners = [Helpless(), Owner()]
    for ledger, owner in zip((L1, L2), owners, strict=True):
        store.open_ledger(ledger, owner, "public/default").append(b"x", 1)
        await owner.until(1)
    heir = await started(open_store)
    await heir.take(store.incarnation, None)
    with contextlib.suppress(LogError):
        store.open_ledger(L3, Owner(), "public/default").append(b"x", 1)
    for owner in owners:
        assert isinstance(await asyncio.wait_for(owner.until_lost(), 10), FencedError)


# -- what lives, as records say


PATH = "/managed-ledgers/public/default/persistent/t"


class Topic:
    """A topic as its log sees it: its state is always the same."""

    def __init__(self) -> None:
        self.error: LogError | None = None
        self.changed = asyncio.Event()
        self.end = 0

    def entries_confirmed(self, entries_end: int) -> None:
        self.end = entries_end
        self.changed.set()

    def log_lost(self, error: LogError) -> None:
        self.error = error
        self.changed.set()

    def encode_state(self) -> bytes:
        return b"state"


async def opened_topic(store: LogStore, metadata: MetadataStore) -> tuple[TopicLog, Topic]:
    log, topic = await TopicLog.open(PATH, "public/default", store, metadata, LedgerIds(metadata), 1), Topic()
    log.start(topic)
    return log, topic


async def publish(log: TopicLog, topic: Topic, texts: list[bytes]) -> None:
    log.append_many(texts, [1] * len(texts))
    while topic.end < len(texts):
        topic.changed.clear()
        await asyncio.wait_for(topic.changed.wait(), 10)


async def all_of(log: TopicLog) -> list[bytes]:
    found, at = [], log.first
    while at < log.end:
        ledger, entries = await log.read(at, 2, 1 << 20)
        found += [bytes(data) for _, _, data in entries]
        at = log.normalise((ledger, entries[-1][0] + 1))
    return found


async def test_a_backlog_that_two_former_owners_wrote_is_read_at_a_third(open_store: Opener) -> None:
    service = MemoryMetadata(lambda: 1000)
    third = await started(open_store)
    # It has read all records before the topic was made.
    third.retain([])
    metadata = await service.connect()
    await TopicLog.create(PATH, metadata, 1)
    texts = [[b"%d-%d" % (n, i) for i in range(3)] for n in range(2)]
    for some in texts:
        store = await started(open_store)
        store.retain([])
        log, topic = await opened_topic(store, await service.connect())
        await publish(log, topic, some)
    log, _ = await opened_topic(third, await service.connect())
    assert await all_of(log) == [one for some in texts for one in some]


async def test_a_ledger_that_no_record_names_is_not_served_until_one_does(open_store: Opener) -> None:
    store, other = await started(open_store), await started(open_store)
    store.retain([])
    await filled(other, L1, [b"a", b"b", b"c"])
    await filled(other, L2, [b"taken"])
    await other.close()
    await store.take(other.incarnation, [L2])
    with pytest.raises(LogMissingError):
        await store.read(L1, other.incarnation, 0, 3, 1, MANY)
    store.know([LiveLedger(L1, other.incarnation, 1, 3, "ns", PATH)])
    assert await contents(store, L1, other.incarnation, 3, first=1) == [b"b", b"c"]
    with pytest.raises(LogMissingError):
        await store.read(L1, other.incarnation, 0, 3, 1, MANY)
    assert await contents(store, L2, other.incarnation, 1) == [b"taken"]


async def test_what_was_known_before_all_records_were_read_stays_known(open_store: Opener) -> None:
    store, other = await started(open_store), await started(open_store)
    await filled(other, L1, [b"a"])
    await other.close()
    await store.take(other.incarnation, [L1])
    store.know([LiveLedger(L1, other.incarnation, 0, 1, "ns", PATH)])
    # Its record was read before it named the ledger.
    store.retain([])
    await store.reclaim()
    assert await contents(store, L1, other.incarnation, 1) == [b"a"]


async def test_an_owner_that_has_heard_everything_is_not_kept_with_its_ledger(open_store: Opener) -> None:
    store = await started(open_store)
    owner = FoldingOwner()
    writer = store.open_ledger(L1, owner, "ns")
    writer.append(b"x", 1)
    await owner.until(1)
    assert not writer.has_told_all, "it is open"
    writer.append_snapshot(b"last")
    writer.close()
    assert not writer.has_told_all
    await owner.until(1, 1)
    assert writer.has_told_all
    held = weakref.ref(owner)
    del owner
    # A task that waited for the owner has ended by then.
    await asyncio.sleep(0)
    assert held() is None
    assert (await store.release([L1]))[L1] == LedgerState(1, b"last", (), 1)


async def test_a_ledger_that_another_owner_closes_still_tells_its_own(open_store: Opener) -> None:
    """Both hear of one commit; the first closes the second's ledger before that has heard of it."""

    class Closing(Owner):
        def confirmed(self, entries_end: int, state_end: int) -> None:
            super().confirmed(entries_end, state_end)
            second.close()
            has_told.append(second.has_told_all)

    has_told: list[bool] = []
    store = await started(open_store)
    owner = Owner()
    first, second = store.open_ledger(L1, Closing(), "ns"), store.open_ledger(L2, owner, "ns")
    first.append(b"x", 1)
    second.append(b"y", 1)
    await owner.until(1)
    assert owner.calls == [(1, 0)]
    assert (has_told, second.has_told_all) == ([False], True)
