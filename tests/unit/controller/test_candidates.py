"""Which broker leads: the one that should, if it can, and another one else."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.controller import election
from anabranch.controller.core.errors import NotLeader
from anabranch.controller.service import ScalableTopics
from anabranch.model.names import TopicName
from anabranch.model.segments import SegmentId
from unit.controller.rig import TOPIC, Rig, simulated


class Chosen:
    """Brokers that agree on the one of them that should lead every topic."""

    def __init__(self) -> None:
        self.services: list[ScalableTopics] = []
        self.leader = 0
        self.urged = 0
        self.is_reachable = True

    def view(self, number: int) -> View:
        return View(self, number)

    def change(self, leader: int) -> None:
        self.leader = leader
        for service in self.services:
            service.owners_changed([TOPIC.namespace])


class View:
    """Implements `Candidates` for one of them."""

    def __init__(self, chosen: Chosen, number: int) -> None:
        self._chosen = chosen
        self._number = number

    def is_elsewhere(self, topic: TopicName) -> bool:
        return self._chosen.leader != self._number

    async def urge(self, topic: TopicName) -> None:
        self._chosen.urged += 1
        if self._chosen.is_reachable:
            await self._chosen.services[self._chosen.leader].urged(topic)


async def brokers(rig: Rig) -> Chosen:
    chosen = Chosen()
    for number in range(3):
        chosen.services.append(await rig.broker(candidates=chosen.view(number)))
    return chosen


def leads(service: ScalableTopics) -> bool:
    controller = service.controllers.get(TOPIC)
    return controller is not None and controller.is_leader


@simulated
async def test_a_topic_that_is_used_at_any_broker_is_led_by_the_one_that_should(rig: Rig) -> None:
    chosen = await brokers(rig)
    first, second, third = chosen.services
    await third.create(TOPIC)
    third.touch(TOPIC)
    second.touch(TOPIC)
    with pytest.raises(NotLeader) as refusal:
        await second.leading(TOPIC)
    assert refusal.value.leader == first.service_url
    assert leads(first)
    assert not leads(second)
    assert not leads(third)


@simulated
async def test_a_topic_whose_right_leader_cannot_be_reached_is_led_all_the_same(rig: Rig) -> None:
    chosen = await brokers(rig)
    chosen.is_reachable = False
    second = chosen.services[1]
    await second.create(TOPIC)
    await second.split(TOPIC, 0)
    assert leads(second)
    chosen.is_reachable = True
    # A leader that should not lead looks at that from time to time.
    await rig.until(lambda: leads(chosen.services[0]), within_s=2 * rig.settings.collect_every_s)
    assert not leads(second)


@simulated
async def test_a_leader_hands_over_to_the_broker_that_should_lead_from_now_on(rig: Rig) -> None:
    chosen = await brokers(rig)
    first, second, _ = chosen.services
    await first.create(TOPIC)
    await first.leading(TOPIC)
    splitting = asyncio.ensure_future(first.split(TOPIC, 0))
    await asyncio.sleep(0)
    chosen.change(leader=1)
    await splitting
    await rig.until(lambda: leads(second), within_s=10)
    assert not leads(first)
    assert await first.leader(TOPIC) == second.service_url
    record = await second.get(TOPIC)
    assert record is not None
    assert len(record.layout.active) == 2


@simulated
async def test_when_a_leader_dies_only_the_broker_that_should_lead_stands(rig: Rig) -> None:
    chosen = await brokers(rig)
    chosen.leader = 2
    first, second, third = chosen.services
    await first.create(TOPIC)
    first.touch(TOPIC)
    second.touch(TOPIC)
    await rig.until(lambda: leads(third))
    await rig.stores[2].expire_session()
    chosen.leader = 1
    await rig.until(lambda: leads(second), within_s=1)
    assert await election.leader_of(rig.stores[0], TOPIC) == second.service_url
    assert not leads(first)
    await rig.stores[2].reconnect()
    await rig.until(lambda: leads(second))


@simulated
async def test_what_a_leader_that_died_left_unfinished_is_taken_up_though_nobody_uses_the_topic(
    rig: Rig,
) -> None:
    """No other broker has heard of the topic, so none hears that it has lost its leader."""
    chosen = await brokers(rig)
    chosen.leader = 2
    first, second, third = chosen.services
    await third.create(TOPIC)
    rig.owners.unavailable.add(SegmentId(1))
    splitting = asyncio.ensure_future(third.split(TOPIC, 0))
    await rig.until(lambda: ("create", 1) in rig.owners.calls)
    await rig.stores[2].expire_session()
    splitting.cancel()
    rig.owners.unavailable.clear()
    chosen.change(leader=1)
    await rig.until(lambda: leads(second), within_s=10)
    assert not first.controllers
    async with asyncio.timeout(30):
        # A stored record is no event.
        while (record := await second.get(TOPIC)) is None or record.plan is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert len(record.layout.active) == 2


@simulated
async def test_sealed_segments_whose_leader_ends_later_than_the_owners_change_are_collected_by_the_next(
    rig: Rig,
) -> None:
    chosen = await brokers(rig)
    first, second, _ = chosen.services
    await first.create(TOPIC)
    await first.split(TOPIC, 0)
    chosen.leader = 1
    second.owners_changed([TOPIC.namespace])
    # It leads on, as it has not heard of the change, and then it is gone.
    await rig.until(lambda: TOPIC in second.controllers, within_s=10)
    assert leads(first)
    await rig.stores[0].expire_session()
    await rig.until(lambda: leads(second), within_s=10)
