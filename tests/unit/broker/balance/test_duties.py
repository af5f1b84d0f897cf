"""What a broker does about the states that name it, with topics that the test plays and no link between brokers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from anabranch.balance.core.states import BundleState
from anabranch.balance.core.transfer import Duty, owned, split
from anabranch.broker.balance.calls import RELEASED, ReleasedBundle
from anabranch.broker.balance.moves import LOOKS, SILENCE_MAX_S, BundleMoves
from anabranch.broker.peers.directory import RegisteredPeers
from anabranch.broker.peers.handshake import PeerIdentity
from anabranch.broker.peers.peers import Peers
from anabranch.model.bundles import BundleName
from anabranch.model.names import TopicName
from anabranch.simulation.machine.loop import SimLoop
from unit.broker.balance.owners_lab import FOUR, SALES, TOPICS, Lab, Machine, owners_lab, settled

BUNDLE = FOUR.bundles.ranges.bundles(SALES)[0]
CHILDREN = (BundleName(SALES, "0x00000000_0x20000000"), BundleName(SALES, "0x20000000_0x40000000"))


@dataclass
class PlayedTopics:
    """Implements `MovedTopics`: they are let go of when the test says so."""

    arrived: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    asked: int = 0

    async def let_go(self, holds: Callable[[TopicName], bool]) -> None:
        self.asked += 1
        await self.gone.wait()

    def left(self, holds: Callable[[TopicName], bool]) -> int:
        return self.here(holds)

    def here(self, holds: Callable[[TopicName], bool]) -> int:
        return self.arrived


@dataclass
class Mover:
    machine: Machine
    topics: PlayedTopics
    moves: BundleMoves
    peers: Peers
    split: list[Duty]

    async def said(self, by: Machine, version: int, left: int = 0) -> None:
        """Another broker's word, as a link delivers it."""
        body = RELEASED.encode(ReleasedBundle(str(BUNDLE), version, left))
        await self.peers.handlers.perform(by.run.broker, RELEASED.name, body)

    @property
    def state(self) -> BundleState | None:
        found = self.machine.states.fold.get(BUNDLE)
        return None if found is None else found.state


@contextlib.asynccontextmanager
async def mover(lab: Lab, name: str, *, silence_max_s: float = 30.0) -> AsyncIterator[Mover]:
    machine = await lab.started(name)
    topics, done = PlayedTopics(), []
    identity = PeerIdentity(machine.run.broker, machine.run.run)
    peers = Peers(identity, machine.metadata, RegisteredPeers(machine.metadata), lambda count: b"r" * count)

    async def performed(duty: Duty) -> None:
        done.append(duty)

    moves = BundleMoves(
        machine.owners, machine.states, topics, peers, lambda: 0, performed, silence_max_s=silence_max_s
    )
    moves.start()
    yield Mover(machine, topics, moves, peers, done)
    await moves.close()
    await peers.close()


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with owners_lab() as made:
        yield made


async def transfer(lab: Lab, leader: Machine, source: Machine, to: Machine) -> int:
    """A bundle of the source that goes to the other broker; the version of the transfer."""
    await leader.assign(BUNDLE, source.run)
    now = leader.states.fold.bundles[BUNDLE]
    await leader.states.append(lab.elect(leader).transfer(now, to.run, 0, "for a test"))
    await lab.agree()
    return now.version + 1


async def test_a_bundle_that_no_broker_has_is_taken_at_once(lab: Lab) -> None:
    other = await lab.started("b")
    async with mover(lab, "a") as me:
        await other.states.append(owned(BUNDLE, 1, me.machine.run, other.run, 0, ""))
        await lab.until(lambda: me.state is BundleState.ASSIGNED)
        assert me.machine.owners.is_mine(next(name for name in TOPICS if BUNDLE.holds(name)))
        assert me.topics.asked == 0


async def test_what_the_channel_asks_for_before_a_broker_follows_it_is_done_when_it_does(lab: Lab) -> None:
    other = await lab.started("b")
    async with mover(lab, "a") as me:
        await me.moves.close()
        await other.states.append(owned(BUNDLE, 1, me.machine.run, other.run, 0, ""))
        await lab.agree()
        again = BundleMoves(
            me.machine.owners,
            me.machine.states,
            me.topics,
            Peers(
                PeerIdentity("a", "b"),
                me.machine.metadata,
                RegisteredPeers(me.machine.metadata),
                lambda count: b"r" * count,
            ),
            lambda: 0,
            lambda duty: asyncio.sleep(0),
        )
        again.start()
        await lab.until(lambda: me.state is BundleState.ASSIGNED)
        await again.close()


async def test_a_destination_waits_for_the_word_of_the_source(lab: Lab) -> None:
    source, other = await lab.started("b"), await lab.started("c")
    async with mover(lab, "a") as me:
        version = await transfer(lab, other, source, me.machine)
        await settled()
        assert me.state is BundleState.ASSIGNING
        await me.said(source, version, left=7)
        await me.said(source, version - 1)  # Of an earlier transfer.
        await me.said(other, version)  # Not the source.
        await settled()
        assert me.state is BundleState.ASSIGNING
        await me.said(source, version)
        await lab.until(lambda: me.state is BundleState.ASSIGNED)


async def test_a_word_that_comes_before_the_transfer_is_read_counts_too(lab: Lab) -> None:
    source, other = await lab.started("b"), await lab.started("c")
    async with mover(lab, "a") as me:
        await me.said(source, 3)
        version = await transfer(lab, other, source, me.machine)
        assert version == 3
        await lab.until(lambda: me.state is BundleState.ASSIGNED)


async def test_a_destination_takes_the_bundle_of_a_source_that_is_gone(lab: Lab) -> None:
    source, other = await lab.started("b"), await lab.started("c")
    async with mover(lab, "a") as me:
        await transfer(lab, other, source, me.machine)
        await settled()
        assert me.state is BundleState.ASSIGNING
        await source.metadata.close()
        await lab.until(lambda: me.state is BundleState.ASSIGNED)


async def test_a_destination_takes_the_bundle_of_a_source_that_does_nothing_for_too_long(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    source, other = await lab.started("b"), await lab.started("c")
    async with mover(lab, "a", silence_max_s=0.05) as me:
        with caplog.at_level(logging.WARNING):
            await transfer(lab, other, source, me.machine)
            await lab.until(lambda: me.state is BundleState.ASSIGNED)
        assert "does not let go of it" in caplog.text


@pytest.mark.parametrize("sign", ["topics arrive", "the source tells of progress"])
async def test_a_destination_goes_on_waiting_for_a_source_that_is_at_work(
    lab: Lab, caplog: pytest.LogCaptureFixture, sign: str
) -> None:
    source, other = await lab.started("b"), await lab.started("c")
    async with mover(lab, "a", silence_max_s=0.05) as me:
        version, left = await transfer(lab, other, source, me.machine), 1_000_000
        with caplog.at_level(logging.DEBUG):
            async with asyncio.timeout(10):
                while caplog.text.count("is still handing it over") < 4:
                    if sign == "topics arrive":
                        me.topics.arrived += 1
                    else:
                        left -= 1
                        await me.said(source, version, left)
                    await asyncio.sleep(0)
        assert me.state is BundleState.ASSIGNING
        await me.said(source, version)
        await lab.until(lambda: me.state is BundleState.ASSIGNED)


def test_the_time_without_a_sign_counts_from_the_last_one() -> None:
    """The source has told of progress, and then does nothing any more."""
    loop, told_s = SimLoop(), 0.5 * SILENCE_MAX_S

    async def waited() -> float:
        async with owners_lab() as lab:
            source, other = await lab.started("b"), await lab.started("c")
            async with mover(lab, "a", silence_max_s=SILENCE_MAX_S) as me:
                version = await transfer(lab, other, source, me.machine)
                await asyncio.sleep(told_s)
                await me.said(source, version, left=7)
                began_s = loop.time()
                while me.state is BundleState.ASSIGNING:  # noqa: ASYNC110  # How much time passes is the question.
                    await asyncio.sleep(0.01)
                return loop.time() - began_s

    took_s = loop.run_until_complete(waited())
    loop.close()
    assert SILENCE_MAX_S <= took_s <= SILENCE_MAX_S * (1 + 2 / LOOKS)
    assert took_s < 4.5, "a bundle is to have an owner within 5 s"


async def test_a_source_lets_go_and_says_nothing_more_once_the_bundle_is_elsewhere(lab: Lab) -> None:
    target, other = await lab.started("b"), await lab.started("c")
    async with mover(lab, "a") as me:
        await transfer(lab, other, me.machine, target)
        await lab.until(lambda: me.topics.asked == 1)
        assert me.moves.under_way == 1
        await target.end(BUNDLE, target.run)
        me.topics.gone.set()
        await lab.until(lambda: me.moves.under_way == 0)
        assert me.state is BundleState.ASSIGNED


async def test_an_unload_is_over_when_the_topics_are_closed(lab: Lab) -> None:
    other = await lab.started("b")
    async with mover(lab, "a") as me:
        await other.assign(BUNDLE, me.machine.run)
        await other.states.append(lab.elect(other).unload(other.states.fold.bundles[BUNDLE], 0, ""))
        await lab.until(lambda: me.topics.asked == 1)
        await settled()
        assert me.state is BundleState.ASSIGNING
        me.topics.gone.set()
        await lab.until(lambda: me.state is BundleState.FREED)


async def test_an_end_that_the_channel_does_not_take_is_told_again_until_it_does(lab: Lab) -> None:
    other = await lab.started("b")
    async with mover(lab, "a") as me:
        me.machine.states.is_stopped = True
        await other.states.append(owned(BUNDLE, 1, me.machine.run, other.run, 0, ""))
        await lab.until(lambda: me.moves.under_way == 1)
        await settled()
        assert me.state is BundleState.ASSIGNING
        me.machine.states.is_stopped = False
        await lab.until(lambda: me.state is BundleState.ASSIGNED)


async def test_a_duty_ends_when_the_leader_gives_the_bundle_to_another_broker(lab: Lab) -> None:
    other = await lab.started("b")
    async with mover(lab, "a") as me:
        me.machine.states.is_stopped = True
        await other.states.append(owned(BUNDLE, 1, me.machine.run, other.run, 0, ""))
        await lab.until(lambda: me.moves.under_way == 1)
        now = other.states.fold.bundles[BUNDLE]
        await other.states.append(lab.elect(other).reassign(now, other.run, 0, "it takes too long"))
        await other.end(BUNDLE, other.run)
        me.machine.states.is_stopped = False
        await lab.until(lambda: me.moves.under_way == 0)
        assert me.machine.states.fold.bundles[BUNDLE].to == other.run


async def test_a_split_ends_with_the_parent_once_its_children_are_there(lab: Lab) -> None:
    async with mover(lab, "a") as me:
        await me.machine.assign(BUNDLE, me.machine.run)
        now = me.machine.states.fold.bundles[BUNDLE]
        await me.machine.states.append(split(now, CHILDREN, me.machine.run, 0, ""))
        await lab.until(lambda: me.state is BundleState.DELETED)
        assert [duty.children for duty in me.split] == [CHILDREN]
