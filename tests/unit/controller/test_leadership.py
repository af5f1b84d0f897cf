"""Who leads a topic, what others may do, and what becomes of a leader that no longer is one."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.controller.core.errors import NotLeader, SegmentRefused
from anabranch.metadata.errors import StoreUnavailable
from anabranch.model.scalable import SubscriptionKind, controller_path
from anabranch.model.segments import Segment, SegmentId
from unit.controller.rig import GRACE_S, TOPIC, Link, Rig, simulated


@simulated
async def test_of_many_brokers_asked_at_once_exactly_one_leads(rig: Rig) -> None:
    brokers = [await rig.broker() for _ in range(5)]
    await brokers[0].create(TOPIC)
    for broker in brokers:
        broker.touch(TOPIC)
    await rig.until(lambda: any(b.controllers[TOPIC].is_leader for b in brokers))
    leaders = [b for b in brokers if b.controllers[TOPIC].is_leader]
    assert len(leaders) == 1
    assert await brokers[3].leader(TOPIC) == leaders[0].service_url


@simulated
async def test_the_leaders_record_is_its_service_url_and_goes_with_its_session(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    await broker.split(TOPIC, 0)
    found = await broker.metadata.get(controller_path(TOPIC))
    assert found is not None
    assert found.is_ephemeral
    assert found.value.decode() == broker.service_url
    watcher = await rig.metadata.connect()
    await rig.stores[0].expire_session()
    assert await watcher.get(controller_path(TOPIC)) is None


@simulated
async def test_a_lost_leader_is_replaced_by_a_broker_that_has_read_the_record_afresh(rig: Rig) -> None:
    first, second = await rig.broker(), await rig.broker()
    await first.create(TOPIC)
    await first.split(TOPIC, 0)
    second.touch(TOPIC)
    await rig.until(lambda: second.controllers[TOPIC].leader == first.service_url)
    await rig.stores[0].expire_session()
    await rig.until(lambda: second.controllers[TOPIC].is_leader)
    state = second.controllers[TOPIC].state
    assert state is not None
    assert state.topic.layout.epoch == 1
    assert (await second.split(TOPIC, 1)).epoch == 2
    assert not first.controllers[TOPIC].is_leader


@simulated
async def test_every_broker_that_knew_a_lost_leader_stands_and_one_wins(rig: Rig) -> None:
    brokers = [await rig.broker() for _ in range(5)]
    await brokers[0].create(TOPIC)
    await brokers[0].split(TOPIC, 0)
    for broker in brokers[1:]:
        broker.touch(TOPIC)
    await asyncio.sleep(1)
    assert {b.controllers[TOPIC].leader for b in brokers} == {brokers[0].service_url}
    await rig.stores[0].expire_session()
    await asyncio.sleep(1)
    [winner] = [b for b in brokers if b.controllers[TOPIC].is_leader]
    assert {b.controllers[TOPIC].leader for b in brokers[1:]} == {winner.service_url}
    assert (await winner.split(TOPIC, 1)).epoch == 2


@simulated
async def test_a_leader_whose_session_ended_stands_again_once_it_has_a_new_one(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    await broker.split(TOPIC, 0)
    await rig.stores[0].expire_session()
    assert not broker.controllers[TOPIC].is_leader
    await rig.stores[0].reconnect()
    await rig.until(lambda: broker.controllers[TOPIC].is_leader)
    assert (await broker.split(TOPIC, 1)).epoch == 2


@simulated
async def test_a_leader_whose_new_session_cannot_reach_the_store_yet_stands_until_somebody_leads(
    rig: Rig,
) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    await broker.split(TOPIC, 0)
    await rig.stores[0].expire_session()

    async def refuse(verb: str, path: str) -> None:
        raise StoreUnavailable("the store does not answer")

    rig.held[0].before = refuse
    await rig.stores[0].reconnect()
    await asyncio.sleep(60)
    assert not broker.controllers[TOPIC].is_leader
    # Nobody asks for anything: consumers wait for whoever leads.
    rig.held[0].before = None
    await rig.until(lambda: broker.controllers[TOPIC].is_leader)


@simulated
async def test_a_broker_that_does_not_lead_reads_and_refuses_the_rest_by_name_of_the_leader(rig: Rig) -> None:
    leader, other = await rig.broker(), await rig.broker()
    await leader.create(TOPIC, segments=2)
    await leader.split(TOPIC, 0)
    assert (await other.view(TOPIC)).layout.epoch == 1
    for refused in (
        other.split(TOPIC, 1),
        other.merge(TOPIC, 2, 3),
        other.register(TOPIC, "s", "c", SubscriptionKind.STREAM, 1, Link()),
        other.delete_subscription(TOPIC, "s"),
    ):
        with pytest.raises(NotLeader, match=leader.service_url) as error:
            await refused
        assert error.value.leader == leader.service_url
    assert (await leader.view(TOPIC)).layout.epoch == 1


@simulated
async def test_a_deposed_leaders_late_effects_are_refused_by_the_record(rig: Rig) -> None:
    """It was paused with a seal on its way; the next leader finished the split and another one meanwhile."""
    paused, other = await rig.broker(), await rig.broker()
    await paused.create(TOPIC)
    await paused.split(TOPIC, 0)
    resumes = asyncio.get_running_loop().create_future()
    held: list[Segment] = []

    async def hold(what: str, segment: Segment) -> None:
        if what == "seal" and not held:
            held.append(segment)
            await resumes

    rig.owners.before = hold
    late = asyncio.ensure_future(paused.split(TOPIC, 1))
    await rig.until(lambda: held)
    # The store ends its session; the paused broker does not know yet.
    rig.stores[0].disconnect()
    await rig.stores[0].expire_session()
    await rig.until(lambda: True)
    layout = await other.split(TOPIC, 2)
    assert layout.epoch == 3, "the plan of the paused leader came first"
    assert [s.id for s in layout.active] == [3, 4, 5, 6]
    before = await other.view(TOPIC)
    resumes.set_result(None)
    await rig.stores[0].reconnect()
    with pytest.raises(NotLeader):
        await late
    assert await other.view(TOPIC) == before
    active = {f"{s.topic(TOPIC)}" for s in layout.active}
    assert {name for name, log in rig.owners.logs.items() if not log.is_sealed} == active


@simulated
async def test_an_owner_refuses_what_the_record_does_not_call_for(rig: Rig) -> None:
    broker = await rig.broker()
    record = await broker.create(TOPIC)
    segment = record.layout.segments[SegmentId(0)]
    for refused in (rig.owners.seal(TOPIC, segment), rig.owners.delete(TOPIC, segment)):
        with pytest.raises(SegmentRefused):
            await refused
    child = record.layout.split(0, 0).segments[SegmentId(1)]
    with pytest.raises(SegmentRefused):
        await rig.owners.create(TOPIC, child, ())


@simulated
async def test_losing_leadership_ends_every_timer_of_the_topic(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC, segments=2)
    await broker.create_subscription(TOPIC, "billing")
    rig.owners.log((await broker.view(TOPIC)).layout.active[0]).messages = 1
    timers = rig.loop.timers
    link, _ = await rig.joined(broker, "one")
    await rig.joined(broker, "two")
    broker.disconnected(TOPIC, "billing", "one", link)
    await broker.split(TOPIC, 0)
    await asyncio.sleep(1)
    assert rig.loop.timers == timers + 2, "a grace period, and the next look whether the parent is drained"
    coordinator = broker.controllers[TOPIC].coordinators["billing"]
    rig.stores[0].disconnect()
    await rig.stores[0].expire_session()
    broker.controllers[TOPIC].depose("the test says so")
    assert rig.loop.timers == timers
    calls = len(rig.owners.calls)
    await asyncio.sleep(3 * GRACE_S)
    assert "one" in coordinator.group.sessions, "its grace timer went off after the leadership had ended"
    assert len(rig.owners.calls) == calls, "somebody still asks the owners"


@simulated
async def test_releasing_a_controller_ends_every_timer_of_the_topic(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    timers = rig.loop.timers
    link, _ = await rig.joined(broker, "one")
    broker.disconnected(TOPIC, "billing", "one", link)
    await asyncio.sleep(1)
    assert rig.loop.timers == timers + 1
    await broker.release(TOPIC)
    assert rig.loop.timers == timers


@simulated
async def test_controllers_are_made_on_demand_and_outlive_neither_topic_nor_broker(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    assert TOPIC not in broker.controllers
    broker.touch(TOPIC)
    await rig.until(lambda: broker.controllers[TOPIC].is_leader)
    await broker.release(TOPIC)
    assert TOPIC not in broker.controllers
    assert await broker.leader(TOPIC) == "", "a released controller leads nothing"
    await broker.split(TOPIC, 0)
    assert TOPIC in broker.controllers
    await broker.delete(TOPIC)
    assert TOPIC not in broker.controllers
    await rig.until(lambda: broker.feed.listeners == 0)
    await broker.create(TOPIC)
    await broker.split(TOPIC, 0)
    await broker.close()
    assert not broker.controllers
    watcher = await rig.metadata.connect()
    assert await watcher.get(controller_path(TOPIC)) is None


@simulated
async def test_no_controller_outlives_its_topic_at_a_broker_that_did_not_lead_it(rig: Rig) -> None:
    leader, other = await rig.broker(), await rig.broker()
    await leader.create(TOPIC)
    await leader.split(TOPIC, 0)
    other.touch(TOPIC)
    await rig.until(lambda: other.controllers[TOPIC].leader == leader.service_url)
    await leader.delete(TOPIC)
    await asyncio.sleep(5)
    assert not other.controllers
    assert other.feed.listeners == 0
    other.touch(TOPIC)  # By somebody who has not heard yet.
    await asyncio.sleep(5)
    assert not other.controllers


@simulated
async def test_one_more_idle_topic_is_no_more_task_and_no_more_timer(rig: Rig) -> None:
    broker = await rig.broker()
    names = [TOPIC.namespace.topic(f"t{n}", TOPIC.domain) for n in range(200)]
    for name in names:
        await broker.create(name)
        broker.touch(name)
    await rig.until(lambda: all(broker.controllers[n].is_leader for n in names))
    await asyncio.sleep(1)
    tasks, timers = len(asyncio.all_tasks()), rig.loop.timers
    await broker.create(TOPIC)
    broker.touch(TOPIC)
    await asyncio.sleep(1)
    assert len(asyncio.all_tasks()) == tasks, "one more topic, one more task"
    assert rig.loop.timers == timers, "one more topic, one more timer"


@simulated
async def test_a_plan_without_a_leader_is_finished_by_whoever_meets_it(rig: Rig) -> None:
    first, second = await rig.broker(), await rig.broker()
    await first.create(TOPIC)
    await first.split(TOPIC, 0)
    rig.owners.unavailable.add(SegmentId(1))
    late = asyncio.ensure_future(first.split(TOPIC, 1))
    await rig.until(lambda: ("seal", 1) in rig.owners.calls)
    await rig.stores[0].expire_session()
    with pytest.raises(NotLeader):
        await late
    record = await second.view(TOPIC)
    assert record.plan is not None
    rig.owners.unavailable.clear()
    second.touch(TOPIC)
    await asyncio.sleep(5)
    record = await second.view(TOPIC)
    assert record.plan is None
    assert record.layout.epoch == 2


@simulated
async def test_what_a_lost_leader_left_half_done_is_finished_by_a_broker_that_starts(rig: Rig) -> None:
    """Nobody else had a controller of these topics, and nobody asks for them."""
    first = await rig.broker()
    split, deleted, sealed, idle = (TOPIC.namespace.topic(name, TOPIC.domain) for name in "abcd")
    for name in (split, deleted, sealed, idle):
        await first.create(name)
    await first.split(sealed, 0)
    held: list[str] = []

    async def hold(what: str, segment: Segment) -> None:
        if what in ("seal", "delete"):
            held.append(what)
            await asyncio.get_running_loop().create_future()

    rig.owners.before = hold
    works = [asyncio.ensure_future(work) for work in (first.split(split, 0), first.delete(deleted))]
    await rig.until(lambda: sorted(held) == ["delete", "seal"])
    await rig.stores[0].expire_session()
    for error in await asyncio.gather(*works, return_exceptions=True):
        assert isinstance(error, NotLeader)
    await first.close()
    rig.owners.before = None
    second = await rig.broker()
    await asyncio.sleep(300)
    assert (await second.view(split)).layout.epoch == 2, "split, and its parent collected"
    assert not (await second.view(sealed)).layout.sealed
    assert await second.get(deleted) is None
    assert idle not in second.controllers, "one that needs nothing is left alone"
    await second.create(deleted)


@simulated
async def test_a_leader_that_is_lost_only_after_a_broker_has_started_is_succeeded_too(rig: Rig) -> None:
    first = await rig.broker()
    await first.create(TOPIC)
    await first.create(other := TOPIC.namespace.topic("other", TOPIC.domain))
    await first.split(other, 0)
    await first.create_subscription(TOPIC, "billing")
    rig.owners.unavailable.add(SegmentId(0))
    splitting = asyncio.ensure_future(first.split(TOPIC, 0))
    await rig.until(lambda: rig.owners.calls.count(("seal", 0)) > 1)
    second = await rig.broker()
    await asyncio.sleep(1)
    assert set(second.controllers) == {TOPIC}, "the other one is led, and nothing of it waits"
    await rig.stores[0].expire_session()
    rig.owners.unavailable.clear()
    with pytest.raises(NotLeader):
        await splitting
    await asyncio.sleep(5)
    assert (await second.view(TOPIC)).layout.epoch == 1
