"""Who is held back by what: each kind is told of while it lasts, in the health's details and to the page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from anabranch.broker.config.config import BrokerConfig
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.names import TopicName
from anabranch.storage.memory import MemoryLogStore
from anabranch.wire.subscription_types import SHARED
from unit.broker.admin.conftest import NOW_MS, Rest, serving

T = "persistent://public/default/t"
NAME = TopicName.parse(T)
PATH = "/admin/v2/persistent/public/default/t"


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    config = BrokerConfig(max_unacked_messages_per_consumer=2)
    async with serving(MemoryMetadata(lambda: NOW_MS), config) as made:
        yield made


async def told(rest: Rest) -> list[tuple[str, str, str]]:
    found = await rest.get("/admin/v2/brokers/troubles")
    overview = await rest.get("/ui/api/overview")
    assert overview["troubles"] == found["troubles"]
    assert overview["brokers"][0]["disk"] == found["disk"]
    return [(one["kind"], one["topic"], one["subscription"]) for one in found["troubles"]]


async def details(rest: Rest) -> list[str]:
    return (await rest.call("GET", "/admin/v2/brokers/health?details=true")).text.splitlines()


async def test_a_broker_at_ease_has_a_disk_and_no_troubles(rest: Rest) -> None:
    await rest.publish("t", b"x")
    assert await told(rest) == []
    first, *others = await details(rest)
    assert first == "ok"
    assert [line.split(":")[0] for line in others] == ["disk"]
    # Scripts and Pulsar's clients compare the answer with one word.
    assert (await rest.call("GET", "/admin/v2/brokers/health")).text == "ok"


async def test_a_full_disk_is_told_of(rest: Rest) -> None:
    log: Any = rest.broker.log
    assert isinstance(log, MemoryLogStore)
    log.set_accepting(False)
    assert await told(rest) == [("disk", "", "")]
    assert "the disk is full" in await rest.refused("GET", "/admin/v2/brokers/health?details=true", 503)
    log.set_accepting(True)
    assert await told(rest) == []


async def test_a_quota_that_holds_producers_is_told_of_until_consumers_have_caught_up(rest: Rest) -> None:
    await rest.call("PUT", f"{PATH}/subscription/slow")
    quota = {"limitSize": 10, "limitTime": -1, "policy": "producer_request_hold"}
    await rest.call("POST", f"{PATH}/backlogQuota", json=quota)
    await rest.publish("t", b"x" * 100)
    assert await told(rest) == [("quota", T, "")]
    assert any(line.startswith(f"quota: {T}: producers wait") for line in await details(rest))
    await rest.broker.loaded()[NAME].subscriptions["slow"].skip_all()
    assert await told(rest) == []


async def test_a_consumer_that_acknowledges_nothing_is_told_of(rest: Rest) -> None:
    consumer = await rest.client.consumer("t", "s", kind=SHARED)
    await rest.publish("t", b"1", b"2", b"3")
    received = [await consumer.receive() for _ in range(2)]
    assert await told(rest) == [("unacknowledged", T, "s")]
    for one in received:
        await consumer.ack(one)
    await consumer.receive()
    assert await told(rest) == []
