"""The page of several brokers, asked at any of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from anabranch.broker.config.config import BrokerConfig
from anabranch.model.names import TopicName
from unit.broker.admin.across.several import NOW_MS, Member, several

ADMIN = "/admin/v2/scalable/public/default"
TOPICS = "/ui/api/topics/public/default"
STEP_MS = 1_000


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.ms = NOW_MS

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def brokers(clock: Clock) -> AsyncIterator[list[Member]]:
    config = BrokerConfig(scalable_topic_load_report_interval=STEP_MS / 1000)
    async with several(3, config, now_ms=clock) as made:
        yield made


async def sampled(brokers: list[Member], clock: Clock, times: int = 1) -> None:
    for _ in range(times):
        clock.ms += STEP_MS
        for member in brokers:
            await member.broker.recorder.sample()


async def test_the_overview_sums_up_what_all_brokers_serve(brokers: list[Member], clock: Clock) -> None:
    await brokers[0].call("PUT", "/admin/v2/persistent/public/default/rides/partitions", json=3)
    consumers = []
    for index, member in enumerate(brokers):
        part = f"persistent://public/default/rides-partition-{index}"
        consumers.append(await member.client.consumer(part, "s"))
        await member.publish(part, b"x", b"y")
    await sampled(brokers, clock, 3)
    for asked in brokers:
        found = await asked.get("/ui/api/overview")
        (rides,) = found["topics"]
        assert (rides["backlog"], rides["consumers"], rides["segmentCount"]) == (6, 1, 3)
        assert found["totals"][-1][5] == 6
        assert sum(point[1] for point in rides["spark"]) > 0
        shown = found["brokers"]
        assert [one["isSilent"] for one in shown] == [False] * 3
        assert [one["topics"] for one in shown] == [1, 1, 1]
        assert sum(one["isThis"] for one in shown) == 1
        assert all(one["memory"] > 0 for one in shown)
    for consumer in consumers:
        await consumer.close()


async def test_a_broker_that_does_not_answer_is_shown_as_such(brokers: list[Member], clock: Clock) -> None:
    brokers[0].elsewhere.silent = {2}
    silent = {
        one["serviceUrl"]: one["isSilent"] for one in (await brokers[0].get("/ui/api/overview"))["brokers"]
    }
    assert silent == {
        brokers[0].broker.service_url: False,
        brokers[1].broker.service_url: False,
        brokers[2].broker.service_url: True,
    }


async def test_a_river_is_shown_by_every_broker_with_the_place_of_each_segment(
    brokers: list[Member], clock: Clock
) -> None:
    leader, other, third = brokers
    await leader.call("PUT", f"{ADMIN}/orders")
    await leader.call("POST", f"{ADMIN}/orders/split/0")
    assert leader.broker.scalable is not None
    record = await leader.broker.scalable.get(TopicName.parse("topic://public/default/orders"))
    assert record is not None
    one, two = [
        segment.topic(TopicName.parse("topic://public/default/orders")) for segment in record.layout.active
    ]
    for name, place in ((one, 1), (two, 2)):
        await leader.broker.unload_topic(name)
        leader.owners.places.moved[name] = place
        await brokers[place].publish(str(name), b"x", b"y")
    await sampled(brokers, clock, 3)
    for asked in brokers:
        found = await asked.get(f"{TOPICS}/orders")
        assert found["kind"] == "scalable"
        assert {one["id"] for one in found["layout"]["segments"]} == {0, 1, 2}
        ids = [member.broker.service_url.rpartition("/")[2] for member in brokers]
        assert found["owners"] == {"0": ids[0], "1": ids[1], "2": ids[2]}
        assert sum(total[1] for total in found["totals"]) > 0
        assert found["silent"] == []
    assert [number for number, request in other.elsewhere.asked if "api/topics" in request.path] == [0]
    assert [number for number, request in third.elsewhere.asked if "api/topics" in request.path] == [0]


async def test_a_topic_whose_leader_does_not_answer_comes_with_a_link_to_it(brokers: list[Member]) -> None:
    await brokers[0].call("PUT", f"{ADMIN}/orders")
    await brokers[0].get(f"{ADMIN}/orders/stats")
    brokers[1].elsewhere.silent = {0}
    found = await brokers[1].get(f"{TOPICS}/orders")
    assert (found["kind"], found["url"]) == ("elsewhere", "http://broker-0:8080/ui")


async def test_segments_that_only_a_former_leader_remembers_are_drawn(
    brokers: list[Member], clock: Clock
) -> None:
    leader, other, _ = brokers
    await leader.call("PUT", f"{ADMIN}/orders")
    await leader.call("POST", f"{ADMIN}/orders/split/0")
    await sampled(brokers, clock)
    topic = TopicName.parse("topic://public/default/orders")
    assert leader.broker.scalable is not None
    assert leader.broker.recorder.layouts.remembered(topic)[1]
    leader.owners.places.moved[topic] = 1
    await leader.broker.scalable.release(topic)
    await leader.broker.scalable.update(
        topic, lambda record: replace(record, layout=record.layout.prune([0]))
    )
    await other.get(f"{ADMIN}/orders/stats")
    assert await leader.broker.scalable.leader(topic) == other.broker.service_url
    found = await other.get(f"{TOPICS}/orders")
    segments = {one["id"]: one for one in found["layout"]["segments"]}
    assert segments[0]["children"] == [1, 2]


async def test_a_classic_topic_is_shown_with_the_consumers_of_all_brokers(
    brokers: list[Member], clock: Clock
) -> None:
    await brokers[0].call("PUT", "/admin/v2/persistent/public/default/rides/partitions", json=3)
    consumer = await brokers[2].client.consumer("persistent://public/default/rides-partition-2", "s")
    await brokers[2].publish("persistent://public/default/rides-partition-2", b"x")
    await sampled(brokers, clock, 3)
    for asked in brokers:
        found = await asked.get(f"{TOPICS}/rides")
        assert (found["kind"], found["partitions"]) == ("classic", 3)
        assert [(one["name"], one["consumerCount"]) for one in found["subscriptions"]] == [("s", 1)]
        assert found["totals"][-1][5] == 1
    await consumer.close()
