"""A topic's log over its ledgers, on the stores that live in memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec
import pytest

from anabranch.metadata.errors import VersionConflict
from anabranch.metadata.memory import MemoryMetadata
from anabranch.metadata.port import MetadataStore
from anabranch.model.entry_runs import EntryRuns
from anabranch.model.position import Incarnation, LedgerId, Position
from anabranch.storage.core.topic_record import TopicRecord
from anabranch.storage.memory import MemoryLogStore, MemoryMedium
from anabranch.storage.port import FencedError, LedgerState, LogDamagedError, LogError
from anabranch.storage.topic.ledger_ids import LEDGER_IDS_PATH, LedgerIds
from anabranch.storage.topic.stored_record import TopicGoneError
from anabranch.storage.topic.taking_over import finish_delete
from anabranch.storage.topic.topic_log import TopicLog
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_entry

PATH = "/managed-ledgers/public/default/persistent/t"


class Owner:
    """A topic that counts: its state is the number of times it was told something."""

    def __init__(self, state: bytes = b"state") -> None:
        self.state = state
        self.end = 0
        self.error: LogError | None = None
        self.changed = asyncio.Event()

    def entries_confirmed(self, entries_end: int) -> None:
        self.end = entries_end
        self.changed.set()

    def log_lost(self, error: LogError) -> None:
        self.error = error
        self.changed.set()

    def encode_state(self) -> bytes:
        return self.state

    async def until(self, claim: Callable[[], bool]) -> None:
        while not claim():
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 5)


class World:
    """One metadata store and one log medium, on which brokers come and go."""

    def __init__(self) -> None:
        self.medium = MemoryMedium()
        self.brokers = 0
        self._metadata = MemoryMetadata(lambda: 1000)

    async def broker(self) -> tuple[MemoryLogStore, MetadataStore]:
        self.brokers += 1
        store = MemoryLogStore(self.medium, incarnation=Incarnation(f"broker-{self.brokers}"))
        await store.start()
        return store, await self._metadata.connect()

    async def open(self, store: MemoryLogStore, metadata: MetadataStore, owner: Owner) -> TopicLog:
        log = await TopicLog.open(PATH, "public/default", store, metadata, LedgerIds(metadata), 1000)
        log.start(owner)
        return log


async def opened() -> tuple[World, MetadataStore, Owner, TopicLog]:
    """A new topic, open on the first broker of a new world."""
    world, owner = World(), Owner()
    store, metadata = await world.broker()
    await TopicLog.create(PATH, metadata, 1000)
    return world, metadata, owner, await world.open(store, metadata, owner)


def entry(n: int, publish_time: int = 0) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=n, publish_time=publish_time or n)
    return build_entry(metadata, b"payload %d" % n)


async def contents(log: TopicLog) -> list[Position]:
    found, at = [], log.first
    while at < log.end:
        ledger, entries = await log.read(at, 2, 1 << 20)
        found += [(ledger, number) for number, _, _ in entries]
        at = log.normalise((ledger, entries[-1][0] + 1))
    return found


async def test_a_topic_is_made_once() -> None:
    _, metadata = await World().broker()
    assert await TopicLog.create(PATH, metadata, 1000)
    assert not await TopicLog.create(PATH, metadata, 1000)


async def test_an_absent_topic_cannot_be_opened() -> None:
    store, metadata = await World().broker()
    with pytest.raises(TopicGoneError):
        await TopicLog.open(PATH, "public/default", store, metadata, LedgerIds(metadata), 1000)


async def test_the_next_owner_reads_what_the_last_one_confirmed_under_larger_ledger_ids() -> None:
    world = World()
    first, metadata = await world.broker()
    await TopicLog.create(PATH, metadata, 1000)
    owner = Owner()
    log = await world.open(first, metadata, owner)
    for n in range(5):
        log.append(entry(n), 1)
    await owner.until(lambda: owner.end == 5)
    before = await contents(log)

    second, metadata = await world.broker()
    successor = await world.open(second, metadata, Owner())
    assert await contents(successor) == before
    assert successor.ledger > log.ledger
    assert successor.first == before[0]
    assert successor.last == before[-1]


async def test_opening_a_topic_fences_its_last_owner() -> None:
    world = World()
    first, metadata = await world.broker()
    await TopicLog.create(PATH, metadata, 1000)
    owner = Owner()
    log = await world.open(first, metadata, owner)
    second, metadata = await world.broker()
    successor = await world.open(second, metadata, Owner())
    try:
        log.append(entry(0), 1)
        await owner.until(lambda: owner.error is not None)
    except FencedError:
        pass
    assert owner.end == 0
    assert await contents(successor) == []


async def test_a_former_owner_that_gives_its_last_word_is_not_fenced() -> None:
    world = World()
    first, metadata = await world.broker()
    await TopicLog.create(PATH, metadata, 1000)
    owner = Owner(b"one")
    log = await world.open(first, metadata, owner)
    asked: list[tuple[Incarnation, LedgerId, str]] = []

    async def last_word(incarnation: Incarnation, ledger: LedgerId, path: str) -> LedgerState | None:
        asked.append((incarnation, ledger, path))
        for n in range(3):
            log.append(entry(n), 1)
        owner.state = b"last"
        log.close()
        return (await first.release([ledger]))[ledger]

    second, metadata = await world.broker()
    ids = LedgerIds(metadata)
    successor = await TopicLog.open(PATH, "public/default", second, metadata, ids, 1000, last_word)
    assert asked == [(first.incarnation, LedgerId(log.ledger), PATH)]
    assert successor.recovered == LedgerState(3, b"last", (), sum(len(entry(n)) for n in range(3)))
    assert len(await contents(successor)) == 3
    first.look_for_fences()
    assert (owner.end, owner.error) == (3, None)
    # Its own ledgers and those whose ends are known need no word.
    successor.start(Owner())
    successor.close()
    await TopicLog.open(PATH, "public/default", second, metadata, ids, 1000, last_word)
    assert len(asked) == 1


async def test_everything_that_can_be_asked_before_the_last_word_has_been() -> None:
    """From the last word on the topic's clients wait."""
    world, _, _, log = await opened()
    second, metadata = await world.broker()
    ids = LedgerIds(metadata)
    drawn: list[int] = []

    async def last_word(incarnation: Incarnation, ledger: LedgerId, path: str) -> LedgerState | None:
        drawn.append(await metadata.next_id(LEDGER_IDS_PATH))
        return None

    opened_there = await TopicLog.open(PATH, "public/default", second, metadata, ids, 1000, last_word)
    assert log.ledger < opened_there.ledger < drawn[0]


async def test_a_former_owner_that_says_nothing_is_fenced() -> None:
    world, _, owner, log = await opened()
    second, metadata = await world.broker()
    asked: list[LedgerId] = []

    async def silent(incarnation: Incarnation, ledger: LedgerId, path: str) -> LedgerState | None:
        asked.append(ledger)
        return None

    await TopicLog.open(PATH, "public/default", second, metadata, LedgerIds(metadata), 1000, silent)
    assert asked == [log.ledger]
    with contextlib.suppress(FencedError):
        log.append(entry(0), 1)
    await owner.until(lambda: owner.error is not None)
    assert isinstance(owner.error, FencedError)


async def test_a_former_owner_that_refuses_keeps_the_topic() -> None:
    world, metadata, owner, log = await opened()
    before = await metadata.get(PATH)
    second, metadata = await world.broker()

    async def refusing(incarnation: Incarnation, ledger: LedgerId, path: str) -> LedgerState | None:
        raise LogError("it is mine")

    with pytest.raises(LogError, match="mine"):
        await TopicLog.open(PATH, "public/default", second, metadata, LedgerIds(metadata), 1000, refusing)
    assert await metadata.get(PATH) == before
    log.append(entry(0), 1)
    await owner.until(lambda: owner.end == 1)


async def test_the_last_word_is_asked_for_again_when_the_record_has_changed_meanwhile() -> None:
    world = World()
    first, metadata = await world.broker()
    await TopicLog.create(PATH, metadata, 1000)
    logs = [await world.open(first, metadata, Owner())]
    asked: list[int] = []

    async def last_word(incarnation: Incarnation, ledger: LedgerId, path: str) -> LedgerState | None:
        asked.append(ledger)
        log = logs.pop()
        log.append(entry(len(asked)), 1)
        log.close()
        word = (await first.release([ledger]))[ledger]
        if len(asked) == 1:
            # The former owner opens the topic once more before its successor could.
            logs.append(await world.open(first, metadata, Owner()))
        return word

    second, other = await world.broker()
    successor = await TopicLog.open(PATH, "public/default", second, other, LedgerIds(other), 1000, last_word)
    assert len(asked) == 2
    assert asked[0] < asked[1] < successor.ledger
    assert len(await contents(successor)) == 2


async def test_state_follows_the_topic_through_owners_that_wrote_nothing() -> None:
    world = World()
    store, metadata = await world.broker()
    await TopicLog.create(PATH, metadata, 1000)
    owner = Owner(b"one")
    log = await world.open(store, metadata, owner)
    stored = asyncio.Event()
    log.record(b"two", lambda error: stored.set())
    await asyncio.wait_for(stored.wait(), 5)
    for _ in range(3):
        # These brokers open the topic and die before their first commit.
        broker, metadata = await world.broker()
        await TopicLog.open(PATH, "public/default", broker, metadata, LedgerIds(metadata), 1000)
    last, metadata = await world.broker()
    log = await TopicLog.open(PATH, "public/default", last, metadata, LedgerIds(metadata), 1000)
    assert log.recovered is not None
    assert log.recovered.snapshot == b"one"
    assert log.recovered.deltas == (b"two",)


async def test_empty_ledgers_do_not_pile_up_in_the_record() -> None:
    world = World()
    store, metadata = await world.broker()
    await TopicLog.create(PATH, metadata, 1000)
    for _ in range(6):
        owner = Owner()
        log = await world.open(store, metadata, owner)
        stored = asyncio.Event()
        log.record(b"x", lambda error, stored=stored: stored.set())  # type: ignore[misc]
        await asyncio.wait_for(stored.wait(), 5)
        store, metadata = await world.broker()
    assert len(log.topic_record.ledgers) <= 2


async def test_trimming_is_in_the_record_before_entries_go() -> None:
    world, metadata, owner, log = await opened()
    for n in range(6):
        log.append(entry(n), 1)
    await owner.until(lambda: owner.end == 6)
    await log.trim((log.ledger, 4))
    assert log.first == (log.ledger, 4)
    assert log.entries == 2
    found = await metadata.get(PATH)
    assert found is not None
    assert TopicRecord.decode(found.value).trimmed == (log.ledger, 4)
    other, metadata = await world.broker()
    successor = await world.open(other, metadata, Owner())
    assert [number for _, number in await contents(successor)] == [4, 5]


async def test_of_two_trims_at_once_the_further_one_counts() -> None:
    for targets in ((4, 2), (2, 4), (4, 4)):
        _world, metadata, owner, log = await opened()
        for n in range(6):
            log.append(entry(n), 1)
        await owner.until(lambda owner=owner: owner.end == 6)  # type: ignore[misc]
        await asyncio.gather(*(log.trim((log.ledger, target)) for target in targets))
        assert [number for _, number in await contents(log)] == [4, 5]
        assert log.has_lost((log.ledger, 3))
        found = await metadata.get(PATH)
        assert found is not None
        record = TopicRecord.decode(found.value)
        assert record.trimmed == record.gone == (log.ledger, 4)


async def test_a_trim_drops_whole_ledgers_and_their_bytes() -> None:
    world = World()
    store, metadata = await world.broker()
    await TopicLog.create(PATH, metadata, 1000)
    for _ in range(2):
        owner = Owner()
        log = await world.open(store, metadata, owner)
        for n in range(3):
            log.append(entry(n), 1)
        await owner.until(lambda: owner.end == 3)  # noqa: B023  # Awaited within the same turn.
        store, metadata = await world.broker()
    log = await world.open(store, metadata, owner := Owner())
    assert log.entries == 6
    size = log.size_bytes
    stored = asyncio.Event()
    log.record(b"x", lambda error: stored.set())
    await asyncio.wait_for(stored.wait(), 5)
    await log.trim(log.normalise((log.topic_record.ledgers[1].id, 0)))
    assert log.entries == 3
    assert log.size_bytes == size // 2
    assert len(log.topic_record.ledgers) == 2


async def test_a_position_is_found_by_publish_time() -> None:
    _world, _metadata, owner, log = await opened()
    for n in range(50):
        log.append(entry(n, publish_time=1000 + 10 * n), 1)
    await owner.until(lambda: owner.end == 50)
    assert await log.find_by_publish_time(0) == log.first
    assert await log.find_by_publish_time(1195) == (log.ledger, 20)
    assert await log.find_by_publish_time(1200) == (log.ledger, 20)
    assert await log.find_by_publish_time(99_999) == log.end


GARBAGE = b"\x0e\x01\0\0\0\0\0\0\0\x14" + b"\xff" * 20 + b"payload"


@pytest.mark.parametrize("garbage", [{24}, {12, 24, 25, 37}, set(range(15, 19)), {48, 49}, {0, 1}])
async def test_a_position_is_found_by_publish_time_among_entries_that_nobody_can_read(
    garbage: set[int],
) -> None:
    _world, _metadata, owner, log = await opened()
    for n in range(50):
        log.append(GARBAGE if n in garbage else entry(n, publish_time=1000 + 10 * n), 1)
    await owner.until(lambda: owner.end == 50)
    for n in range(50):
        _, found = await log.find_by_publish_time(1000 + 10 * n)
        # It may be garbage in front of the one that is looked for.
        assert found <= n
        assert set(range(found, n)) <= garbage
    assert await log.find_by_publish_time(99_999) in (log.end, (log.ledger, 48))


async def test_a_log_of_garbage_is_not_given_up_for_its_age() -> None:
    _world, _metadata, owner, log = await opened()
    for _ in range(300):
        log.append(GARBAGE, 1)
    await owner.until(lambda: owner.end == 300)
    assert await log.find_by_publish_time(99_999) == log.first


async def test_skipped_damage_is_stepped_over_for_good() -> None:
    world, metadata, owner, log = await opened()
    for n in range(6):
        log.append(entry(n), 1)
    await owner.until(lambda: owner.end == 6)
    assert await log.skip_damage(LogDamagedError(log.ledger, 2, 4, "a file", 17)) == 2
    assert [number for _, number in await contents(log)] == [0, 1, 4, 5]
    other, metadata = await world.broker()
    successor = await world.open(other, metadata, Owner())
    assert [number for _, number in await contents(successor)] == [0, 1, 4, 5]


async def test_a_deleted_topic_is_gone_and_may_be_made_again() -> None:
    world = World()
    store, metadata = await world.broker()
    await TopicLog.create(PATH, metadata, 1000)
    log = await world.open(store, metadata, Owner())
    await log.delete()
    assert await metadata.get(PATH) is None
    await TopicLog.create(PATH, metadata, 1000)
    again = await world.open(store, metadata, Owner())
    assert await contents(again) == []
    assert again.ledger > log.ledger


async def test_a_former_owner_changes_nothing_about_a_topic_that_was_made_again() -> None:
    world, _, owner, log = await opened()
    for n in range(3):
        log.append(entry(n), 1)
    await owner.until(lambda: owner.end == 3)
    # Another broker takes the topic and deletes it, a third makes it again: the record has the version that it had.
    store, metadata = await world.broker()
    await (await world.open(store, metadata, Owner())).delete()
    store, metadata = await world.broker()
    await TopicLog.create(PATH, metadata, 1000)
    again = await world.open(store, metadata, Owner())
    before = await metadata.get(PATH)
    with pytest.raises(VersionConflict):
        await log.trim((log.ledger, 2))
    with pytest.raises(VersionConflict):
        await log.delete()
    assert await metadata.get(PATH) == before
    assert await again.is_current()


async def test_a_topic_that_is_made_again_while_its_former_owner_is_asked_is_opened_with_what_it_holds() -> (
    None
):
    world, _, _, _ = await opened()
    owner = Owner()

    async def made_again(incarnation: Incarnation, ledger: LedgerId, path: str) -> LedgerState | None:
        """While the first owner is asked, others delete the topic, make it again and publish to it."""
        if incarnation == "broker-1":
            await (await world.open(*await world.broker(), Owner())).delete()
            store, metadata = await world.broker()
            await TopicLog.create(PATH, metadata, 1000)
            (await world.open(store, metadata, owner)).append(entry(7), 1)
            await owner.until(lambda: owner.end == 1)
        return None

    store, metadata = await world.broker()
    before = await metadata.get(PATH)
    ids = LedgerIds(metadata)
    log = await TopicLog.open(PATH, "public/default", store, metadata, ids, 1000, made_again)
    log.start(Owner())
    after = await metadata.get(PATH)
    assert before is not None
    assert after is not None
    # One more than the version that the record of either topic had.
    assert after.version == before.version + 1
    _, ((_, _, found),) = await log.read(log.first, 10, 1 << 20)
    assert bytes(found) == entry(7)


async def test_a_deletion_that_is_finished_late_leaves_a_topic_that_was_made_again() -> None:
    world, metadata, _, log = await opened()
    await log.change_record(lambda record: msgspec.structs.replace(record, is_deleting=True))
    marked = await metadata.get(PATH)
    assert marked is not None
    store, metadata = await world.broker()
    record = TopicRecord.decode(marked.value)
    await finish_delete(PATH, record, marked.version, store, metadata)
    await TopicLog.create(PATH, metadata, 1000)
    await world.open(store, metadata, Owner())
    again = await world.open(*await world.broker(), Owner())
    found = await metadata.get(PATH)
    assert found is not None
    assert found.version == marked.version
    await finish_delete(PATH, record, marked.version, store, metadata)
    assert await again.is_current()


async def test_the_end_of_what_was_written_is_known_when_all_of_it_is_gone() -> None:
    world, _metadata, owner, log = await opened()
    assert log.written_end == (0, 0)
    assert not log.has_lost((0, 0))
    for n in range(6):
        log.append(entry(n), 1)
    await owner.until(lambda: owner.end == 6)
    ledger = log.ledger
    assert log.written_end == (ledger, 6)
    await log.trim((ledger, 6))
    assert log.entries == 0
    assert log.written_end == (ledger, 6)
    assert log.has_lost((ledger, 5))
    assert not log.has_lost((ledger, 6))
    # Also for whoever opens it next, with a ledger of its own.
    store, metadata = await world.broker()
    after = await world.open(store, metadata, Owner())
    assert after.written_end == (ledger, 6)
    assert after.has_lost((ledger, 5))
    assert not after.has_lost((ledger, 6))


async def test_a_position_is_found_by_publish_time_while_the_log_is_trimmed() -> None:
    for turns in range(12):
        _world, _metadata, owner, log = await opened()
        for n in range(50):
            log.append(entry(n, publish_time=1000 + 10 * n), 1)
        await owner.until(lambda owner=owner: owner.end == 50)  # type: ignore[misc]
        finding = asyncio.create_task(log.find_by_publish_time(1300))
        for _ in range(turns):
            await asyncio.sleep(0)
        await log.trim((log.ledger, 15))
        assert await finding == (log.ledger, 30)


async def test_a_log_that_is_being_deleted_takes_no_other_change() -> None:
    _world, _metadata, owner, log = await opened()
    log.append(entry(1), 1)
    await owner.until(lambda: owner.end == 1)
    deleting, trimming = await asyncio.gather(log.delete(), log.trim(log.end), return_exceptions=True)
    assert deleting is None
    assert isinstance(trimming, TopicGoneError)


# -- owners and stores that fail


class MuteOwner(Owner):
    """Cannot say its state once it is mute."""

    is_mute = False

    def encode_state(self) -> bytes:
        if self.is_mute:
            raise OverflowError("integer out of range")
        return self.state


async def mute_topic() -> tuple[World, MemoryLogStore, MetadataStore, MuteOwner, TopicLog]:
    world, owner = World(), MuteOwner(b"said before")
    store, metadata = await world.broker()
    await TopicLog.create(PATH, metadata, 1000)
    log = await world.open(store, metadata, owner)
    log.append(entry(1), 1)
    log.record(b"+ a change")
    await owner.until(lambda: owner.end == 1)
    owner.is_mute = True
    return world, store, metadata, owner, log


async def test_a_topic_whose_state_cannot_be_said_is_closed_and_opened_again() -> None:
    world, store, metadata, _, log = await mute_topic()
    log.close()
    again = await world.open(store, metadata, Owner())
    assert again.recovered is not None
    assert (again.recovered.snapshot, again.recovered.deltas) == (b"said before", (b"+ a change",))
    assert len(await contents(again)) == 1


async def test_who_waits_for_a_state_that_cannot_be_said_is_told() -> None:
    _, _, _, _, log = await mute_topic()
    told: list[Exception | None] = []
    log.store_snapshot(told.append)
    assert isinstance(told[0], LogError)
    assert "cannot be said" in str(told[0])


async def test_a_topic_that_could_not_start_can_be_opened_again() -> None:
    world, store, metadata, owner, log = await mute_topic()
    log.close()
    with pytest.raises(OverflowError):
        await world.open(store, metadata, owner)
    owner.is_mute = False
    again = await world.open(store, metadata, owner)
    assert len(await contents(again)) == 1
    assert len(again.topic_record.ledgers) == 2


async def test_an_owner_that_fails_when_told_loses_its_log_after_all_others_were_answered() -> None:
    class Failing(Owner):
        def entries_confirmed(self, entries_end: int) -> None:
            raise RuntimeError("a subscription of it is broken")

    world, owner = World(), Failing()
    store, metadata = await world.broker()
    await TopicLog.create(PATH, metadata, 1000)
    log = await world.open(store, metadata, owner)
    told: list[Exception | None] = []

    def fail(error: Exception | None) -> None:
        raise RuntimeError("nor can this one be told")

    log.append(entry(1), 1)
    log.record(b"one", fail)
    log.record(b"two", told.append)
    await owner.until(lambda: owner.error is not None)
    assert told == [None]
    again = await world.open(store, metadata, Owner())
    assert len(await contents(again)) == 1


class SlowMetadata:
    """Carries changes out at once, and answers when it is let."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self.answers = asyncio.Event()
        self.asked = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metadata, name)

    async def put(self, *args: Any, **kwargs: Any) -> Any:
        stored = await self._metadata.put(*args, **kwargs)
        self.asked.set()
        await self.answers.wait()
        return stored


async def test_a_change_of_the_record_that_nobody_waits_for_any_more_is_carried_out() -> None:
    world, owner = World(), Owner()
    store, metadata = await world.broker()
    await TopicLog.create(PATH, metadata, 1000)
    slow = SlowMetadata(metadata)
    slow.answers.set()
    log = await world.open(store, cast(MetadataStore, slow), owner)
    for n in range(4):
        log.append(entry(n), 1)
    await owner.until(lambda: owner.end == 4)
    slow.answers.clear()
    slow.asked.clear()
    trimming = asyncio.ensure_future(log.trim((log.ledger, 2)))
    await slow.asked.wait()
    trimming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trimming
    slow.answers.set()
    await log.trim((log.ledger, 3))
    assert log.first == (log.ledger, 3)


class Telling(Owner):
    """Tells somebody else what it hears, so that nothing need hold it."""

    def __init__(self, heard: asyncio.Queue[int | LogError]) -> None:
        super().__init__()
        self.heard = heard

    def entries_confirmed(self, entries_end: int) -> None:
        self.heard.put_nowait(entries_end)

    def log_lost(self, error: LogError) -> None:
        self.heard.put_nowait(error)


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collector")
async def test_a_log_that_nobody_holds_tells_its_owner_everything_and_lets_it_go() -> None:
    heard: asyncio.Queue[int | LogError] = asyncio.Queue()
    world = World()
    store, metadata = await world.broker()
    await TopicLog.create(PATH, metadata, 1000)
    telling = Telling(heard)
    owner = weakref.ref(telling)
    log = await world.open(store, metadata, telling)
    del telling
    log.append(entry(1), 1)
    answered = asyncio.get_running_loop().create_future()
    log.record(b"change", answered.set_result)
    log.close()
    del log
    assert owner() is not None, "its entry is not confirmed yet"
    assert await asyncio.wait_for(heard.get(), 5) == 1
    assert await answered is None
    await asyncio.sleep(0)
    assert owner() is None


@pytest.mark.usefixtures("_no_collector")
async def test_a_log_that_another_broker_takes_says_so_and_lets_its_owner_go() -> None:
    heard: asyncio.Queue[int | LogError] = asyncio.Queue()
    world = World()
    store, metadata = await world.broker()
    await TopicLog.create(PATH, metadata, 1000)
    telling = Telling(heard)
    owner = weakref.ref(telling)
    log = await world.open(store, metadata, telling)
    del telling
    other, _ = await world.broker()
    await other.take(store.incarnation, [LedgerId(log.ledger)])
    log.append(entry(1), 1)
    assert isinstance(await asyncio.wait_for(heard.get(), 5), FencedError)
    await asyncio.sleep(0)
    assert owner() is None


# -- counting messages


async def test_messages_are_counted_across_ledgers_that_others_wrote() -> None:
    world, _, owner, log = await opened()
    log.append_many([entry(0), entry(1), entry(2)], [10, 1, 100])
    log.append(entry(3), 1000)
    await owner.until(lambda: owner.end == 4)
    ledger = log.ledger
    assert [log.messages((ledger, n), log.end) for n in range(5)] == [1111, 1101, 1100, 1000, 0]
    second, metadata = await world.broker()
    successor_owner = Owner()
    successor = await world.open(second, metadata, successor_owner)
    successor.append(entry(4), 7)
    await successor_owner.until(lambda: successor_owner.end == 1)
    # The whole is exact, a part of the old ledger goes by its mean.
    assert successor.messages(successor.first, successor.end) == 1118
    assert successor.messages((ledger, 2), successor.end) == 7 + 1111 - 1111 * 2 // 4
    assert successor.messages(successor.end, successor.end) == 0


async def test_dropped_entries_are_no_messages() -> None:
    _, _, owner, log = await opened()
    log.append_many([entry(n) for n in range(6)], [1, 2, 4, 8, 16, 32])
    await owner.until(lambda: owner.end == 6)
    log.hide(EntryRuns.of([(log.ledger, 1, 3)]), (log.ledger, 5))
    assert log.messages(log.first, log.end) == 1 + 8 + 16
