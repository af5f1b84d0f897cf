"""Partitioned topics whose partitions are at several brokers: every broker answers for all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from anabranch.broker.admin.across import owner_calls
from anabranch.broker.observe.loop_share import LoopShare
from anabranch.model.names import TopicName
from harness.simple_client import Hidden
from unit.broker.admin.across.several import Member, several

TOPIC = "/admin/v2/persistent/public/default/rides"
NAME = "persistent://public/default/rides"


@pytest.fixture
async def brokers() -> AsyncIterator[list[Member]]:
    async with several(3) as made:
        await made[0].call("PUT", f"{TOPIC}/partitions", json=4)
        for index in range(4):
            await made[index % 3].publish(f"{NAME}-partition-{index}", *[b"x"] * (index + 1))
        yield made


async def test_every_broker_sums_up_the_figures_of_all_partitions(brokers: list[Member]) -> None:
    for asked in brokers:
        found = await asked.get(f"{TOPIC}/partitioned-stats")
        assert found["msgInCounter"] == 1 + 2 + 3 + 4
        assert list(found["partitions"]) == [f"{NAME}-partition-{index}" for index in range(4)]
        assert [one["msgInCounter"] for one in found["partitions"].values()] == [1, 2, 3, 4]


async def test_ledgers_of_all_partitions_are_told(brokers: list[Member]) -> None:
    inside = await brokers[1].get(f"{TOPIC}/partitioned-internalStats")
    assert [one["numberOfEntries"] for one in inside["partitions"].values()] == [1, 2, 3, 4]
    assert len((await brokers[2].get(f"{TOPIC}/internal-info"))["partitions"]) == 4


async def test_a_subscription_is_made_listed_moved_and_deleted_on_all_partitions(
    brokers: list[Member],
) -> None:
    one, other, third = brokers
    await one.call("PUT", f"{TOPIC}/subscription/s", json="earliest")
    assert await other.get(f"{TOPIC}/subscriptions") == ["s"]
    assert (await other.get(f"{TOPIC}/partitioned-stats"))["subscriptions"]["s"]["msgBacklog"] == 10
    assert (
        await third.refused("PUT", f"{TOPIC}/subscription/s", 409) == "Subscription already exists for topic"
    )
    await other.call("POST", f"{TOPIC}/subscription/s/skip_all")
    assert (await third.get(f"{TOPIC}/partitioned-stats"))["subscriptions"]["s"]["msgBacklog"] == 0
    await third.call("POST", f"{TOPIC}/subscription/s/resetcursor", json={"ledgerId": -1, "entryId": -1})
    assert (await one.get(f"{TOPIC}/partitioned-stats"))["subscriptions"]["s"]["msgBacklog"] == 10
    await one.call("POST", f"{TOPIC}/subscription/s/resetcursor/{2**52}")
    assert (await other.get(f"{TOPIC}/partitioned-stats"))["subscriptions"]["s"]["msgBacklog"] == 0
    await other.call("PUT", f"{TOPIC}/subscription/s/properties", json={"a": "b"})
    assert await third.get(f"{TOPIC}/subscription/s/properties") == {"a": "b"}
    await third.call("DELETE", f"{TOPIC}/subscription/s")
    assert await one.get(f"{TOPIC}/subscriptions") == []
    missing = await one.refused("POST", f"{TOPIC}/subscription/s/skip_all", 404)
    assert missing == f"Subscription s not found on topic {NAME}"


async def test_a_subscription_with_a_consumer_at_another_broker_is_not_deleted(brokers: list[Member]) -> None:
    one, other, _ = brokers
    await one.call("PUT", f"{TOPIC}/subscription/s", json="earliest")
    consumer = await other.client.consumer(f"{NAME}-partition-1", "s")
    assert "active connected consumers" in await one.refused("DELETE", f"{TOPIC}/subscription/s", 412)
    stats = (await one.get(f"{TOPIC}/partitioned-stats"))["partitions"]
    assert all("s" in part["subscriptions"] for part in stats.values())
    await consumer.close()
    await one.call("DELETE", f"{TOPIC}/subscription/s")


async def test_a_partitioned_topic_with_a_producer_at_another_broker_is_not_deleted(
    brokers: list[Member],
) -> None:
    one, _, third = brokers
    producer = await third.client.producer(f"{NAME}-partition-2")
    assert "active producers" in await one.refused("DELETE", f"{TOPIC}/partitions", 412)
    assert len((await one.get(f"{TOPIC}/partitioned-stats"))["partitions"]) == 4
    await producer.close()
    await one.call("DELETE", f"{TOPIC}/partitions")
    await one.call("GET", f"{TOPIC}/partitioned-stats", 404)
    assert await third.get("/admin/v2/persistent/public/default") == []


async def test_new_partitions_get_the_subscriptions_that_are_known_elsewhere(brokers: list[Member]) -> None:
    await brokers[0].call("PUT", f"{TOPIC}/subscription/s", json="earliest")
    await brokers[2].call("POST", f"{TOPIC}/partitions", json=6)
    stats = await brokers[1].get(f"{TOPIC}/partitioned-stats")
    assert len(stats["partitions"]) == 6
    assert all("s" in part["subscriptions"] for part in stats["partitions"].values())


async def test_all_partitions_are_terminated_truncated_trimmed_unloaded_and_compacted(
    brokers: list[Member],
) -> None:
    one, other, third = brokers
    await other.call("DELETE", f"{TOPIC}/truncate")
    inside = (await one.get(f"{TOPIC}/partitioned-internalStats"))["partitions"]
    assert [part["numberOfEntries"] for part in inside.values()] == [0, 0, 0, 0]
    await third.call("POST", f"{TOPIC}/trim")
    assert await third.get(f"{TOPIC}/compaction") == {"status": "NOT_RUN", "lastError": ""}
    await one.call("PUT", f"{TOPIC}/compaction")
    assert (await third.get(f"{TOPIC}/compaction"))["status"] in ("RUNNING", "SUCCESS", "NOT_RUN")
    assert (await third.call("POST", f"{TOPIC}/skip-damage")).json() == {"skippedEntries": 0}
    ended = (await third.call("POST", f"{TOPIC}/terminate/partitions")).json()
    assert list(ended) == ["0", "1", "2", "3"]
    await one.call("PUT", f"{TOPIC}/unload")
    opened = [name for member in brokers for name in member.broker.loaded()]
    assert TopicName.parse(NAME).partition(1) not in opened


async def test_a_missing_partitioned_topic_is_not_found_at_any_broker(brokers: list[Member]) -> None:
    for asked in brokers:
        text = await asked.refused("GET", "/admin/v2/persistent/public/default/none/subscriptions", 404)
        assert text == "Topic persistent://public/default/none not found"


async def test_a_broker_that_lost_a_partition_a_moment_ago_says_so_and_the_new_owner_is_asked(
    brokers: list[Member],
) -> None:
    one, other, third = brokers
    part = TopicName.parse(NAME).partition(1)
    await other.broker.unload_topic(part)
    one.owners.places.moved[part] = 2
    one.owners.believed[part] = 1

    def arrived(number: int, request: object) -> None:
        # From now on the asking broker knows better, too.
        one.owners.believed.pop(part, None)

    one.elsewhere.arrived = arrived
    found = await one.get(f"{TOPIC}/partitioned-stats")
    assert len(found["partitions"]) == 4
    assert part in third.broker.loaded()
    assert part not in other.broker.loaded()


async def test_a_silent_broker_is_an_error_that_may_be_retried_and_not_a_smaller_sum(
    brokers: list[Member],
) -> None:
    one = brokers[0]
    one.elsewhere.silent = {2}
    await one.call("POST", f"{TOPIC}/subscription/s/skip_all", 503)
    await one.call("GET", f"{TOPIC}/partitioned-stats", 503)


async def test_clients_cannot_reach_what_brokers_ask_each_other(brokers: list[Member]) -> None:
    await brokers[0].call("POST", "/inner/topics/topics.delete_part", 404, content=b"")


async def test_one_request_to_a_broker_is_for_all_its_partitions(brokers: list[Member]) -> None:
    one = brokers[0]
    await one.call("POST", f"{TOPIC}/partitions", json=30)
    one.elsewhere.asked.clear()
    assert len((await one.get(f"{TOPIC}/partitioned-stats"))["partitions"]) == 30
    assert sorted(number for number, _ in one.elsewhere.asked) == [1, 2]


async def test_results_that_do_not_fit_into_one_answer_are_asked_for_again(
    brokers: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_calls, "ANSWER_BYTES", 1)
    one = brokers[0]
    one.elsewhere.asked.clear()
    await one.call("POST", f"{TOPIC}/partitions", json=9)
    assert len((await one.get(f"{TOPIC}/partitioned-stats"))["partitions"]) == 9
    stats = [number for number, request in one.elsewhere.asked if request.path.endswith("part_stats")]
    assert sorted(stats) == [1, 1, 1, 2, 2, 2]


async def test_undecided_hidden_writes_of_all_brokers_are_listed(brokers: list[Member]) -> None:
    producer = await brokers[1].client.producer(f"{NAME}-partition-1", hidden=Hidden("job", 1, "a" * 32))
    await (await producer.send(b"x"))
    for asked in brokers:
        found = await asked.get("/admin/v2/anabranch/writes")
        assert [(one["topic"], one["write"]) for one in found] == [(f"{NAME}-partition-1", "job")]


async def test_a_load_report_tells_of_one_core(brokers: list[Member]) -> None:
    cpu = (await brokers[0].get("/admin/v2/broker-stats/load-report"))["cpu"]
    assert cpu["limit"] == 100.0
    assert 0.0 <= cpu["usage"] <= 100.0
    for member, share in zip(brokers, (0.0, 0.75, 0.0), strict=True):
        # On a clock that stands still: the share stays.
        member.broker.loop_share = LoopShare(lambda: 0.0, lambda: 0.0)
        member.broker.loop_share.last = share
    usages = [(await member.get("/admin/v2/broker-stats/load-report"))["cpu"]["usage"] for member in brokers]
    assert usages == [0.0, 75.0, 0.0], "that of the broker that tells, whatever the machine has to do besides"


async def test_backlog_quotas_are_checked_at_every_broker(brokers: list[Member]) -> None:
    checked = [member.broker.quota_check_times.count for member in brokers]
    await brokers[2].call("GET", "/admin/v2/brokers/backlog-quota-check")
    assert [member.broker.quota_check_times.count for member in brokers] == [one + 1 for one in checked]


async def test_health_is_shown_by_an_entry_that_was_stored_and_read(brokers: list[Member]) -> None:
    for asked in brokers:
        assert (await asked.call("GET", "/admin/v2/brokers/health")).text == "ok"
