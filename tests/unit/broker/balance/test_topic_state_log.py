"""The bundle state channel on a topic: fences, snapshots, leaders that die at any moment, brokers that are behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest

from anabranch.balance.core.fold import Fold
from anabranch.balance.core.states import BrokerRun, BundleChange, BundleState
from anabranch.balance.core.transfer import LeaderHand, owned
from anabranch.broker.balance.channel import led_channel, topic_state_log
from anabranch.broker.balance.channel.channel_messages import decode_events
from anabranch.broker.balance.channel.state_log import ChangeRejected, ChannelUnavailable
from anabranch.broker.balance.channel.topic_state_log import TopicStateLog
from anabranch.broker.topic.replay import entries_between
from anabranch.model.bundles import BundleName
from anabranch.model.leaders_topics import CHANNEL_TOPIC
from unit.broker.balance.topic_channel import TopicChannel

A, B, C = (BrokerRun(f"{name}:6650", f"run of {name}") for name in "abc")
BUNDLES = [BundleName.parse(f"acme/sales/0x{at:08x}_0x{at + 1:08x}") for at in range(8)]
X, Y = BUNDLES[:2]


@pytest.fixture
async def channel() -> AsyncIterator[TopicChannel]:
    made = TopicChannel()
    yield made
    await made.close()


@pytest.fixture
async def silent() -> AsyncIterator[TopicChannel]:
    made = TopicChannel(is_silent=True)
    yield made
    await made.close()


async def until(claim: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not claim():  # noqa: ASYNC110  # What is waited for is in brokers, which have no event for it.
            await asyncio.sleep(0.001)


def own(bundle: BundleName, to: BrokerRun, version: int = 1) -> BundleChange:
    return owned(bundle, version, to, to, 0, "a lookup")


async def test_a_leader_that_was_replaced_confirms_nothing_more(silent: TopicChannel) -> None:
    """A has been paused: it believes that it leads, and its former term has not ended for it."""
    a, b = await silent.join(A), await silent.join(B)
    await silent.elect(A)
    await a.append(own(X, A))
    silent.tell(B, B)
    silent.believe(B, B)
    await b.lead(2)
    assert b.fold.get(X) == own(X, A)
    with pytest.raises(ChannelUnavailable):
        await a.append(own(Y, A))
    assert a.fold.get(Y) is None
    assert silent.topic(B).log.topic_record.ledgers[-1].incarnation == "broker-1"
    await b.append(own(Y, B))
    assert b.fold.bundles[Y].to == B


async def test_a_leader_that_lives_and_does_not_know_of_the_next_one_keeps_the_topic_meanwhile(
    channel: TopicChannel,
) -> None:
    a, b = await channel.join(A), await channel.join(B)
    await channel.elect(A)
    channel.tell(B, B)
    channel.believe(B, B)
    with pytest.raises(ChannelUnavailable):
        await b.lead(2)
    await a.append(own(X, A))
    channel.tell(B, A)
    channel.believe(B, A)
    await b.lead(2)
    assert b.fold.get(X) == own(X, A)


async def test_two_that_believe_that_they_lead_settle_on_the_later_one(silent: TopicChannel) -> None:
    """A opens the topic again when it has lost it, finds a later term, and leaves the topic to B."""
    a, b = await silent.join(A), await silent.join(B)
    await silent.elect(A)
    silent.tell(B, B)
    silent.believe(B, B)
    await b.lead(2)
    with pytest.raises(ChannelUnavailable):
        await a.append(own(X, A))
    # A has fenced B when it reads of the later term.
    await until(lambda: silent.members[A].node.broker.opened(CHANNEL_TOPIC) is not None)
    with pytest.raises(ChannelUnavailable):
        await b.append(own(X, B))
    await until(lambda: b.is_following)
    await b.append(own(X, B))
    assert not a.is_following
    silent.tell(B, A)
    await until(lambda: a.fold.snapshot() == b.fold.snapshot())
    assert (a.fold.term, a.fold.bundles[X].to) == (2, B)


async def test_a_change_that_was_under_way_when_the_log_was_lost_is_in_doubt(channel: TopicChannel) -> None:
    a = await channel.join(A)
    await channel.elect(A)
    writing = asyncio.create_task(a.append(own(X, A)))
    await asyncio.sleep(0)
    channel.kill(A)
    with pytest.raises(ChannelUnavailable):
        await writing
    assert a.fold.get(X) is None
    assert not a.is_following


async def test_a_change_waits_for_a_leader_and_not_for_ever() -> None:
    channel = TopicChannel(append_s=0.05)
    a, b = await channel.join(A), await channel.join(B)
    with pytest.raises(ChannelUnavailable):
        await b.append(own(X, B))
    # B knows who leads before that broker has begun.
    channel.tell(A)
    with pytest.raises(ChannelUnavailable):
        await b.append(own(X, B))
    await channel.elect(A)
    waiting = TopicChannel()
    await until(lambda: b.is_following)
    await b.append(own(X, B))
    assert a.fold.get(X) == b.fold.get(X) == own(X, B)
    await channel.close()
    # With more time the change waits until there is a leader.
    await waiting.join(A)
    c = await waiting.join(C)
    writing = asyncio.create_task(c.append(own(X, C)))
    await asyncio.sleep(0)
    await waiting.elect(A)
    await writing
    assert c.fold.get(X) == own(X, C)
    await waiting.close()


async def test_a_leader_whose_topic_is_unloaded_opens_it_again(channel: TopicChannel) -> None:
    a, b = await channel.join(A), await channel.join(B)
    await channel.elect(A)
    await b.append(own(X, B))
    former = channel.topic(A)
    await former.close()
    await b.append(own(Y, B))
    assert channel.topic(A) is not former
    assert a.fold.snapshot() == b.fold.snapshot()
    assert set(a.fold.bundles) == {X, Y}


async def test_a_leader_that_was_opening_its_topic_again_leads_its_next_term_undisturbed(
    channel: TopicChannel, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its topic was closed while the metadata store was in doubt; then the same broker is elected once more."""
    monkeypatch.setattr(topic_state_log, "RETRY_S", 0.0)
    a = await channel.join(A)
    await channel.elect(A)
    metadata = channel.members[A].node.metadata
    metadata.disconnect()
    await channel.topic(A).close()
    await until(lambda: caplog.text.count("is not open again yet") > 2)
    # What opens the topic again in the name of the former term is waiting from now on; it must not outlive that term.
    monkeypatch.setattr(topic_state_log, "RETRY_S", 3600.0)
    await metadata.reconnect()
    await channel.elect(A)
    keeping = [task for task in asyncio.all_tasks() if "TopicStateLog._keep" in repr(task.get_coro())]
    assert len(keeping) == 1
    with pytest.raises(ChangeRejected, match="term 1 is over"):
        await a.lead(1)
    await a.append(own(X, A))
    assert a.is_following


# -- snapshots


async def events_in(channel: TopicChannel, leader: BrokerRun) -> list[object]:
    log = channel.topic(leader).log
    return [
        event
        async for _, _, _, entry in entries_between(channel.topic(leader).name, log, log.kept_first, log.end)
        for event in decode_events(entry)
    ]


async def test_the_log_stays_in_proportion_to_the_bundles() -> None:
    channel = TopicChannel(snapshot_every=10)
    a = await channel.join(A)
    hand = await channel.elect(A)
    version = 1
    for _ in range(40):
        await a.append(own(X, A, version))
        await a.append(hand.reassign(a.fold.bundles[X], A, 0, ""))
        await a.append(hand.remove(a.fold.bundles[X], 0, ""))
        await a.append(hand.forget(a.fold.bundles[X], 0, ""))
        version = a.fold.next_version(X)
    assert channel.topic(A).publishing.messages_in >= 160
    await until(lambda: channel.topic(A).log.entries < 40)
    assert a.fold.snapshot() == []
    await channel.close()


async def test_a_leader_begins_with_a_snapshot_and_gives_up_the_ledgers_before(channel: TopicChannel) -> None:
    await channel.join(A)
    b = await channel.join(B)
    for number, leader in enumerate((A, B, A, B, A)):
        await channel.elect(leader)
        await b.append(own(BUNDLES[number], B))
    await until(lambda: len(channel.topic(A).log.topic_record.ledgers) == 1)
    assert [type(event).__name__ for event in await events_in(channel, A)] == [
        "SnapshotBegan",
        *["SnapshotPart"] * 4,
        "SnapshotEnded",
        "BundleChange",
    ]


async def work(log: TopicStateLog, me: BrokerRun, chance: random.Random) -> None:
    """Changes bundles for ever."""
    version = {bundle: log.fold.next_version(bundle) for bundle in BUNDLES}
    while True:
        bundle = chance.choice(BUNDLES)
        now = log.fold.get(bundle)
        if now is None:
            await log.append(own(bundle, me, version[bundle]))
        else:
            hand = LeaderHand(me, log.fold.term)
            if now.state is BundleState.DELETED:
                await log.append(hand.forget(now, 0, ""))
            elif chance.random() < 0.2:
                await log.append(hand.remove(now, 0, ""))
            else:
                await log.append(hand.reassign(now, me, 0, ""))


@pytest.mark.parametrize("seed", range(4))
async def test_whenever_a_leader_dies_the_next_one_has_what_was_accepted(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshots are written all the time, in many entries, so that many leaders die while they write one."""
    monkeypatch.setattr(led_channel, "PARTS_AT_ONCE", 2)
    chance = random.Random(seed)
    channel = TopicChannel(brokers=12, is_silent=True, snapshot_every=3)
    brokers = [BrokerRun(f"b{number}:6650", "1") for number in range(12)]
    reference, accepted = Fold(), 0
    try:
        for leader in brokers:
            log = await channel.join(leader)
            told: list[BundleChange] = []
            hand = await channel.elect(leader)
            reference.lead(hand.term)
            assert log.fold.snapshot() == reference.snapshot()
            log.on_change(told.extend)
            working = asyncio.create_task(work(log, leader, chance))
            for _ in range(chance.randrange(120)):
                await asyncio.sleep(0)
            channel.kill(leader)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            for change in told:
                assert reference.apply(change) is None
            accepted += len(told)
    finally:
        await channel.close()
    assert accepted > 50


# -- brokers that read from the leader


async def test_a_broker_reads_all_states_in_parts_and_goes_on_from_there() -> None:
    channel = TopicChannel(changes_per_answer=3)
    a = await channel.join(A)
    await channel.elect(A)
    for bundle in BUNDLES[:7]:
        await a.append(own(bundle, A))
    b = await channel.join(B)
    await until(lambda: b.is_following)
    assert b.fold.snapshot() == a.fold.snapshot()
    await a.append(own(BUNDLES[7], A))
    await until(lambda: b.fold.get(BUNDLES[7]) is not None)
    # One list serves the next broker as well, with what came after it.
    c = await channel.join(C)
    await until(lambda: c.is_following and len(c.fold.bundles) == 8)
    await channel.close()


async def test_a_broker_that_was_away_hears_of_what_is_different(channel: TopicChannel) -> None:
    a, b = await channel.join(A), await channel.join(B)
    c = await channel.join(C)
    first = await channel.elect(A)
    for bundle in BUNDLES[:4]:
        await a.append(own(bundle, A))
    await until(lambda: b.fold.snapshot() == a.fold.snapshot())
    await channel.cut(B)
    heard: list[BundleChange] = []
    b.on_change(heard.extend)
    for change in (first.remove, first.forget):
        await a.append(change(a.fold.bundles[X], 0, ""))
    await a.append(first.reassign(a.fold.bundles[Y], C, 0, ""))
    # The next leader has the snapshot alone: what came before it is not in its feed.
    second = await channel.elect(C)
    await until(lambda: len(channel.topic(C).log.topic_record.ledgers) == 1)
    await channel.elect(A)
    await a.append(own(BUNDLES[5], A))
    await channel.restore(B)
    await until(lambda: b.fold.snapshot() == a.fold.snapshot())
    assert {(one.bundle, one.state) for one in heard} == {
        (X, None),
        (Y, BundleState.ASSIGNING),
        (BUNDLES[5], BundleState.ASSIGNING),
    }
    assert len(heard) == 3
    assert b.fold.term == second.term + 1
    assert c.fold.get(X) is None


async def test_reading_goes_on_where_it_was_when_another_broker_leads(channel: TopicChannel) -> None:
    """No state is told again that has not changed."""
    a, c = await channel.join(A), await channel.join(C)
    b = await channel.join(B)
    await channel.elect(A)
    await a.append(own(X, A))
    await until(lambda: b.fold.get(X) is not None and c.fold.get(X) is not None)
    heard: list[BundleChange] = []
    for log in (a, b, c):
        log.on_change(heard.extend)
    await channel.elect(C)
    await b.append(own(Y, B))
    await until(lambda: a.fold.get(Y) is not None)
    assert [one.bundle for one in heard] == [Y, Y, Y]


async def test_a_broker_that_is_behind_is_not_read_from(silent: TopicChannel) -> None:
    """C has read from B. It takes A for the leader again, which has not read that far."""
    await silent.join(A)
    b, c = await silent.join(B), await silent.join(C)
    await silent.elect(A)
    silent.tell(B, B, C)
    silent.believe(B, B, C)
    await b.lead(2)
    await b.append(own(X, B))
    await until(lambda: c.fold.get(X) is not None)
    silent.tell(A, C)
    await until(lambda: not c.is_following)
    assert c.fold.get(X) is not None
    silent.tell(B, C)
    await until(lambda: c.is_following)


async def test_a_stale_change_of_another_broker_is_rejected_at_once(channel: TopicChannel) -> None:
    a, b = await channel.join(A), await channel.join(B)
    await channel.elect(A)
    await a.append(own(X, A))
    with pytest.raises(ChangeRejected, match="version 1 does not follow version 1"):
        await b.append(own(X, B))
    assert channel.topic(A).publishing.messages_in < 10


async def test_a_broker_writes_for_itself_alone(channel: TopicChannel) -> None:
    await channel.join(A)
    b = await channel.join(B)
    await channel.elect(A)
    with pytest.raises(ChangeRejected, match="b:6650 writes for c:6650"):
        await b.append(own(X, C))
