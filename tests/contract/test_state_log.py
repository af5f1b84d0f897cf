"""What every adapter of the bundle state channel promises. A new adapter is one more line in CHANNELS.

A channel stands for what the brokers share: it makes logs of brokers, and trouble for them. Waits go through what the
logs tell their listeners, and never through time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

import pytest

from anabranch.balance.core.states import BrokerRun, BundleChange, BundleState
from anabranch.balance.core.transfer import LeaderHand, child_of, duty_of, ended, owned, split
from anabranch.broker.balance.channel.metadata_state_log import MetadataStateLog
from anabranch.broker.balance.channel.state_log import ChangeRejected, StateLog
from anabranch.metadata.memory import MemoryMetadata, MemoryStore
from anabranch.model.bundles import BundleName
from unit.broker.balance.topic_channel import TopicChannel

A, B, C = (BrokerRun(f"{name}:6650", f"run of {name}") for name in "abc")
X = BundleName.parse("acme/sales/0x00000000_0x80000000")
Y = BundleName.parse("acme/sales/0x80000000_0xffffffff")
CHILDREN = tuple(
    BundleName.parse(f"acme/sales/{span}") for span in ("0x00000000_0x40000000", "0x40000000_0x80000000")
)


class Channel(Protocol):
    async def join(self, broker: BrokerRun) -> StateLog:
        """The started log of one more broker."""
        ...

    async def elect(self, broker: BrokerRun) -> LeaderHand:
        """That broker leads, for a term of its own."""
        ...

    async def cut(self, broker: BrokerRun) -> None:
        """The broker's log hears nothing and reaches nothing until `restore`."""
        ...

    async def restore(self, broker: BrokerRun) -> None: ...

    async def close(self) -> None: ...


class MetadataChannel:
    def __init__(self) -> None:
        self.store = MemoryMetadata(lambda: 1)
        self.logs: dict[BrokerRun, tuple[MemoryStore, MetadataStateLog]] = {}
        self.term = 0

    async def join(self, broker: BrokerRun) -> StateLog:
        metadata = await self.store.connect()
        made = MetadataStateLog(metadata)
        await made.start()
        self.logs[broker] = metadata, made
        return made

    async def elect(self, broker: BrokerRun) -> LeaderHand:
        self.term += 1
        await self.logs[broker][1].lead(self.term)
        return LeaderHand(broker, self.term)

    async def cut(self, broker: BrokerRun) -> None:
        self.logs[broker][0].disconnect()

    async def restore(self, broker: BrokerRun) -> None:
        await self.logs[broker][0].reconnect()

    async def close(self) -> None:
        for metadata, made in self.logs.values():
            await made.close()
            await metadata.close()


CHANNELS: list[Callable[[], Channel]] = [MetadataChannel, TopicChannel]


@pytest.fixture(params=CHANNELS, ids=lambda made: made.__name__)
async def channel(request: pytest.FixtureRequest) -> AsyncIterator[Channel]:
    made: Channel = request.param()
    yield made
    await made.close()


async def until(log: StateLog, claim: Callable[[], bool]) -> None:
    """Waits for a claim about what the broker has read."""
    async with asyncio.timeout(10):
        while not claim():  # noqa: ASYNC110  # Following begins again without a change to tell of.
            await asyncio.sleep(0.001)


async def agree(*logs: StateLog) -> None:
    first = logs[0].fold
    for log in logs:
        await until(log, lambda log=log: log.fold.snapshot() == first.snapshot())  # type: ignore[misc]


def step(log: StateLog, bundle: BundleName, broker: BrokerRun) -> BundleChange:
    """What the broker says once it has done what the bundle's state asks of it."""
    now = log.fold.bundles[bundle]
    duty = duty_of(broker, now)
    assert duty is not None
    return ended(duty, now, broker, 0)


async def assign(log: StateLog, bundle: BundleName, broker: BrokerRun) -> None:
    await log.append(owned(bundle, log.fold.next_version(bundle), broker, broker, 0, "asked for"))
    await log.append(step(log, bundle, broker))


def owner(log: StateLog, bundle: BundleName) -> BrokerRun | None:
    found = log.fold.get(bundle)
    return None if found is None else found.owner


async def test_a_change_is_read_by_its_author_at_once_and_by_the_others_soon(channel: Channel) -> None:
    a, b = await channel.join(A), await channel.join(B)
    await channel.elect(A)
    for author, log, other in ((A, a, b), (B, b, a)):
        bundle = X if author is A else Y
        change = owned(bundle, 1, B, author, 0, "a lookup")
        await log.append(change)
        assert log.fold.get(bundle) == change
        await until(other, lambda other=other, change=change: other.fold.get(change.bundle) == change)  # type: ignore[misc]


async def test_the_first_of_two_assignments_wins_and_the_loser_is_told(channel: Channel) -> None:
    logs = [await channel.join(broker) for broker in (A, B, C)]
    await channel.elect(A)
    tried = [log.append(owned(X, 1, to, to, 0, "")) for log, to in zip(logs, (A, B, C), strict=True)]
    outcomes = await asyncio.gather(*tried, return_exceptions=True)
    assert sorted(str(type(one).__name__) for one in outcomes) == ["ChangeRejected"] * 2 + ["NoneType"]
    winner = (A, B, C)[outcomes.index(None)]
    await agree(*logs)
    for log in logs:
        assert log.fold.bundles[X].to == winner


async def test_an_assignment_of_a_bundle_that_has_an_owner_is_rejected(channel: Channel) -> None:
    a, b = await channel.join(A), await channel.join(B)
    await channel.elect(A)
    stale = owned(X, b.fold.next_version(X), B, B, 0, "a lookup")
    await assign(a, X, A)
    for late in (stale, owned(X, 2, B, B, 0, "a lookup"), owned(X, 3, B, B, 0, "a lookup")):
        with pytest.raises(ChangeRejected):
            await b.append(late)
    await agree(a, b)
    assert owner(b, X) == A


async def test_a_change_that_was_stored_cannot_be_stored_again(channel: Channel) -> None:
    a = await channel.join(A)
    await channel.elect(A)
    change = owned(X, 1, A, A, 0, "")
    await a.append(change)
    with pytest.raises(ChangeRejected):
        await a.append(change)
    assert a.fold.get(X) == change


async def test_listeners_hear_of_each_change_of_their_own_broker_once_and_in_order(channel: Channel) -> None:
    a = await channel.join(A)
    hand = await channel.elect(A)
    heard: list[BundleChange] = []
    stop = a.on_change(heard.extend)
    await assign(a, X, A)
    with pytest.raises(ChangeRejected):
        await a.append(owned(X, 1, B, B, 0, ""))
    await a.append(hand.unload(a.fold.bundles[X], 0, "by hand"))
    await a.append(step(a, X, A))
    states = [BundleState.ASSIGNING, BundleState.ASSIGNED, BundleState.ASSIGNING, BundleState.FREED]
    assert [change.state for change in heard] == states
    stop()
    await assign(a, Y, A)
    assert len(heard) == 4


async def test_a_broker_that_joins_reads_everything_that_was_there(channel: Channel) -> None:
    a = await channel.join(A)
    hand = await channel.elect(A)
    await assign(a, X, A)
    await assign(a, Y, A)
    await a.append(hand.transfer(a.fold.bundles[Y], B, 0, "by hand"))
    b = await channel.join(B)
    await until(b, lambda: b.is_following)
    assert b.fold.snapshot() == a.fold.snapshot()
    assert b.lag_s == 0
    await b.append(step(b, Y, B))
    await agree(a, b)
    assert owner(a, Y) == B


async def test_a_new_leader_has_read_what_its_predecessor_stored_and_ends_its_term(channel: Channel) -> None:
    a, b = await channel.join(A), await channel.join(B)
    former = await channel.elect(A)
    await assign(a, X, A)
    await a.append(former.transfer(a.fold.bundles[X], B, 0, "by hand"))
    late = former.reassign(a.fold.bundles[X], A, 0, "stuck")
    newer = await channel.elect(B)
    assert b.fold.snapshot() == a.fold.snapshot()
    with pytest.raises(ChangeRejected):
        await b.append(late)
    await b.append(newer.reassign(b.fold.bundles[X], A, 0, "stuck"))
    await agree(b, a)
    with pytest.raises(ChangeRejected):
        await a.lead(former.term)
    assert a.fold.term == b.fold.term == newer.term


async def test_a_split_creates_its_children_and_nothing_else_does(channel: Channel) -> None:
    a, b = await channel.join(A), await channel.join(B)
    await channel.elect(A)
    await assign(b, X, B)
    now = b.fold.bundles[X]
    with pytest.raises(ChangeRejected):
        await b.append(child_of(now, CHILDREN[0], 1, B, 0))
    await b.append(split(now, CHILDREN, B, 0, "hot"))
    now = b.fold.bundles[X]
    with pytest.raises(ChangeRejected):
        await a.append(child_of(now, CHILDREN[0], 1, A, 0))
    for child in CHILDREN:
        await b.append(child_of(now, child, 1, B, 0))
    await b.append(step(b, X, B))
    with pytest.raises(ChangeRejected):
        await b.append(child_of(now, CHILDREN[0], 2, B, 0))
    await agree(a, b)
    assert [owner(a, child) for child in CHILDREN] == [B, B]
    assert a.fold.bundles[X].state is BundleState.DELETED


async def test_a_bundle_that_was_forgotten_is_like_one_that_never_was(channel: Channel) -> None:
    a, b = await channel.join(A), await channel.join(B)
    hand = await channel.elect(A)
    await assign(a, X, A)
    await a.append(hand.unload(a.fold.bundles[X], 0, "by hand"))
    await a.append(step(a, X, A))
    await agree(a, b)
    heard: list[BundleChange] = []
    b.on_change(heard.extend)
    await a.append(hand.forget(a.fold.bundles[X], 0, "for long enough"))
    assert a.fold.get(X) is None
    await until(b, lambda: b.fold.get(X) is None)
    assert [change.state for change in heard] == [None]
    newcomer = await channel.join(C)
    await until(newcomer, lambda: newcomer.is_following)
    assert newcomer.fold.get(X) is None
    await assign(newcomer, X, C)
    assert newcomer.fold.bundles[X].version == 2
    await agree(newcomer, a, b)
    assert owner(b, X) == C


async def test_a_broker_that_lost_the_channel_knows_it_and_hears_later_of_what_is_different(
    channel: Channel,
) -> None:
    a, b = await channel.join(A), await channel.join(B)
    hand = await channel.elect(A)
    await assign(a, X, A)
    await assign(a, Y, A)
    await agree(a, b)
    await until(b, lambda: b.is_following)
    heard: list[BundleChange] = []
    b.on_change(heard.extend)
    await channel.cut(B)
    await until(b, lambda: not b.is_following)
    await until(b, lambda: b.lag_s > 0)
    await a.append(hand.unload(a.fold.bundles[X], 0, "by hand"))
    await a.append(step(a, X, A))
    await assign(a, X, A)
    assert owner(b, X) == A
    assert heard == []
    await channel.restore(B)
    await until(b, lambda: b.is_following)
    await agree(a, b)
    assert b.lag_s == 0
    assert {change.bundle for change in heard} == {X}
    assert heard[-1] == a.fold.bundles[X]


async def test_brokers_that_write_at_the_same_time_agree_in_the_end(channel: Channel) -> None:
    brokers = (A, B, C)
    logs = [await channel.join(broker) for broker in brokers]
    await channel.elect(A)
    spans = [BundleName.parse(f"acme/sales/0x{at:08x}_0x{at + 1:08x}") for at in range(16)]

    async def own_all(log: StateLog, broker: BrokerRun) -> Sequence[BundleName]:
        won = []
        for bundle in spans:
            try:
                await assign(log, bundle, broker)
                won.append(bundle)
            except ChangeRejected:
                continue
        return won

    won = await asyncio.gather(*(own_all(log, broker) for log, broker in zip(logs, brokers, strict=True)))
    await agree(*logs)
    assert sorted(bundle for mine in won for bundle in mine) == sorted(spans)
    for broker, mine in zip(brokers, won, strict=True):
        for bundle in mine:
            assert owner(logs[0], bundle) == broker
