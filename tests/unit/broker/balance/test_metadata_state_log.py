"""The bundle state channel in the metadata store: writes without an answer, nodes of forgotten bundles, reads that are
late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

import pytest

from anabranch.balance.core.codec import encode_change
from anabranch.balance.core.states import BrokerRun, BundleChange, BundleState
from anabranch.balance.core.transfer import LeaderHand, duty_of, ended, owned, split
from anabranch.broker.balance.channel.metadata_state_log import (
    TOMBSTONE_KEPT_MS,
    MetadataStateLog,
    state_path,
)
from anabranch.broker.balance.channel.state_log import ChangeRejected, ChannelUnavailable
from anabranch.metadata.embedded import Op
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.bundles import BundleName
from unit.broker.balance.lossy import LossyMetadata

T = TypeVar("T")

A, B = BrokerRun("a:6650", "run of a"), BrokerRun("b:6650", "run of b")
X = BundleName.parse("acme/sales/0x00000000_0x80000000")
Y = BundleName.parse("acme/sales/0x80000000_0xffffffff")
Z = BundleName.parse("acme/tools/0x00000000_0xffffffff")
OWN = owned(X, 1, A, A, 0, "a lookup")


@pytest.fixture
async def lossy() -> AsyncIterator[LossyMetadata]:
    made = LossyMetadata()
    yield made
    for store in made.stores():
        await store.close()


async def joined(shared: MemoryMetadata, doubt_s: float = 60) -> MetadataStateLog:
    made = MetadataStateLog(await shared.connect(), doubt_s=doubt_s)
    await made.start()
    return made


async def test_a_change_whose_answer_was_lost_is_found_by_reading_it_back(lossy: LossyMetadata) -> None:
    log = await joined(lossy)
    lossy.lost_after = 1
    await log.append(OWN)
    assert log.fold.get(X) == OWN
    await log.close()


async def test_a_change_that_was_lost_on_its_way_is_stored_after_all(lossy: LossyMetadata) -> None:
    log = await joined(lossy)
    lossy.lost_before = 1
    await log.append(OWN)
    assert log.fold.get(X) == OWN
    await log.close()


async def test_a_change_that_may_lie_below_a_later_one_is_neither_accepted_nor_rejected(
    lossy: LossyMetadata,
) -> None:
    log = await joined(lossy)
    lossy.lost_after = 1
    later = ended(duty_of(A, OWN), OWN, A, 0)  # type: ignore[arg-type]
    lossy.meanwhile = state_path(X), encode_change(later)
    with pytest.raises(ChannelUnavailable):
        await log.append(OWN)
    assert log.fold.get(X) == later
    await log.close()


async def test_a_lost_change_is_rejected_where_another_one_of_its_version_was_stored(
    lossy: LossyMetadata,
) -> None:
    log, other = await joined(lossy), await joined(lossy)
    lossy.lost_before = 1
    writing = asyncio.create_task(log.append(OWN))
    await asyncio.sleep(0)
    while lossy.lost_before:  # noqa: ASYNC110  # Only the loop knows of the turns.
        await asyncio.sleep(0)
    await other.append(owned(X, 1, B, B, 0, "another lookup"))
    with pytest.raises(ChangeRejected):
        await writing
    assert log.fold.bundles[X].to == B
    await log.close()
    await other.close()


async def test_a_change_stays_in_doubt_while_the_store_cannot_be_read(lossy: LossyMetadata) -> None:
    metadata = await lossy.connect()
    log = MetadataStateLog(metadata, doubt_s=0.05)
    await log.start()
    lossy.lost_after = 1
    writing = asyncio.create_task(log.append(OWN))
    while lossy.lost_after:  # noqa: ASYNC110  # Only the loop knows of the turns.
        await asyncio.sleep(0)
    metadata.disconnect()
    with pytest.raises(ChannelUnavailable):
        await writing
    await metadata.reconnect()
    async with asyncio.timeout(10):
        while log.fold.get(X) != OWN:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await log.close()


async def test_nothing_can_be_appended_or_led_while_the_store_is_away(lossy: LossyMetadata) -> None:
    metadata = await lossy.connect()
    log = MetadataStateLog(metadata)
    await log.start()
    metadata.disconnect()
    with pytest.raises(ChannelUnavailable):
        await log.append(OWN)
    with pytest.raises(ChannelUnavailable):
        await log.lead(1)
    await log.close()


async def test_the_node_of_a_forgotten_bundle_goes_after_an_hour_unless_the_bundle_is_used_again(
    lossy: LossyMetadata,
) -> None:
    metadata = await lossy.connect()
    log, other = MetadataStateLog(metadata), await joined(lossy)
    await log.start()
    await log.lead(1)
    hand = LeaderHand(A, 1)
    await log.append(OWN)
    await log.append(hand.remove(log.fold.bundles[X], 0, "no such bundle"))
    await log.append(hand.forget(log.fold.bundles[X], 0, "for long enough"))
    lossy.now += TOMBSTONE_KEPT_MS - 1
    await log.lead(2)
    assert await metadata.exists(state_path(X))
    lossy.now += 1
    await log.lead(3)
    assert not await metadata.exists(state_path(X))
    await other.append(owned(X, 1, B, B, 0, "a lookup"))
    async with asyncio.timeout(10):
        while (found := log.fold.get(X)) is None or found.to != B:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    lossy.now += TOMBSTONE_KEPT_MS
    await log.lead(4)
    assert await metadata.exists(state_path(X))
    await log.close()
    await other.close()


class GatedMetadata(LossyMetadata):
    """Each read of one node waits until it is let through."""

    def __init__(self, gated: str) -> None:
        super().__init__()
        self.gated = gated
        self.waiting, self.let_through = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def run(
        self,
        op: Op[T],
        *,
        node: str | None = None,
        folder: str | None = None,
        writes: str | None = None,
        always: bool = False,
    ) -> T:
        if node == self.gated:
            self.waiting.release()
            await self.let_through.acquire()
        return await super().run(op, node=node, folder=folder, writes=writes, always=always)


async def test_a_read_that_began_before_a_write_of_this_broker_undoes_nothing() -> None:
    shared = GatedMetadata(state_path(Y))
    log, somebody = await joined(shared), await shared.connect()
    heard: list[BundleChange] = []
    log.on_change(heard.extend)
    change = owned(Y, 1, A, A, 0, "")
    async with asyncio.timeout(10):
        await somebody.create(state_path(Y), encode_change(change))
        await shared.waiting.acquire()
        # While the follower waits for its first read, both nodes change: it will read them together.
        await somebody.create(state_path(X), encode_change(OWN))
        await somebody.put(state_path(Y), encode_change(ended(duty_of(A, change), change, A, 0)))  # type: ignore[arg-type]
        shared.let_through.release()
        await shared.waiting.acquire()
        # It has read X, and waits for Y.
        await log.append(ended(duty_of(A, OWN), OWN, A, 0))  # type: ignore[arg-type]
        shared.let_through.release()
        # What is read next shows that it is through.
        await somebody.create(state_path(Z), encode_change(owned(Z, 1, A, A, 0, "")))
        while log.fold.get(Z) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert log.fold.bundles[X].state is BundleState.ASSIGNED
    assert [(one.bundle, one.version) for one in heard] == [(Y, 2), (X, 2), (Z, 1)]
    await log.close()
    for store in shared.stores():
        await store.close()


async def test_a_node_that_cannot_be_read_hides_no_other_and_is_not_written_over(
    lossy: LossyMetadata,
) -> None:
    metadata = await lossy.connect()
    await metadata.create(state_path(X), b'{"v":99}')
    log = await joined(lossy)
    assert log.is_following
    await log.append(owned(Y, 1, A, A, 0, ""))
    with pytest.raises(ChannelUnavailable):
        await log.append(OWN)
    assert set(log.fold.bundles) == {Y}
    await log.close()


class Ordered(LossyMetadata):
    """What was done with nodes, in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[str, str]] = []

    async def run(
        self,
        op: Op[T],
        *,
        node: str | None = None,
        folder: str | None = None,
        writes: str | None = None,
        always: bool = False,
    ) -> T:
        if node is not None:
            self.done.append(("read", node))
        if writes is not None:
            self.done.append(("write", writes))
        return await super().run(op, node=node, folder=folder, writes=writes, always=always)


async def test_a_state_that_is_known_is_changed_without_reading_it_first() -> None:
    """A leader that repairs hundreds of bundles has one answer of the store less to wait for, of three."""
    ordered = Ordered()
    log = await joined(ordered)
    await log.append(OWN)
    for _ in range(50):
        await asyncio.sleep(0)  # What the watch tells is read.
    ordered.done.clear()
    later = ended(duty_of(A, OWN), OWN, A, 0)  # type: ignore[arg-type]
    await log.append(later)
    assert log.fold.get(X) == later
    assert ordered.done[0] == ("write", state_path(X))
    await log.close()


async def test_a_change_that_does_not_follow_from_what_is_known_may_follow_from_what_is_stored(
    lossy: LossyMetadata,
) -> None:
    behind, other = await joined(lossy), await joined(lossy)
    await other.append(OWN)
    await until(behind, OWN)
    later = ended(duty_of(A, OWN), OWN, A, 0)  # type: ignore[arg-type]
    await other.append(later)
    assert behind.fold.get(X) == OWN, "it has not been told yet"
    halves = tuple(
        BundleName.parse(f"acme/sales/{span}") for span in ("0x00000000_0x40000000", "0x40000000_0x80000000")
    )
    await behind.append(split(later, halves, A, 0, "for a test"))
    for log in (behind, other):
        await until(log, split(later, halves, A, 0, "for a test"))
        await log.close()


async def until(log: MetadataStateLog, change: BundleChange) -> None:
    async with asyncio.timeout(10):
        while log.fold.get(change.bundle) != change:  # noqa: ASYNC110  # Only the loop knows of the turns.
            await asyncio.sleep(0)
