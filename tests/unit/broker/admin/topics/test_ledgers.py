"""`/admin/v2/anabranch/ledgers`: how many entries a topic has, by ledger, and who is told."""

from __future__ import annotations

import pytest

from anabranch.broker.security.rights import AllowAll
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.names import TopicName
from unit.broker.admin.conftest import NOW_MS, Rest, serving

TOPIC = "persistent://public/default/t"
PATH = "/admin/v2/anabranch/ledgers/persistent/public/default/t"


async def test_each_ledger_is_told_with_one_past_its_last_entry(rest: Rest) -> None:
    at = await rest.publish(TOPIC, b"1", b"2")
    assert await rest.get(PATH) == [[at[0][0], 2]]
    await rest.publish(TOPIC, b"3")
    assert await rest.get(PATH) == [[at[0][0], 3]]


async def test_segments_are_told_too(rest: Rest) -> None:
    await rest.call("PUT", "/admin/v2/scalable/public/default/s", params={"numInitialSegments": "1"})
    at = await rest.publish("segment://public/default/s/0000-ffff-0", b"1", b"2")
    path = "/admin/v2/anabranch/ledgers/segment/public/default/s"
    assert await rest.get(f"{path}/0000-ffff-0") == [[at[0][0], 2]]
    assert await rest.get(f"{path}%2F0000-ffff-0") == [[at[0][0], 2]]


class NobodyLooks(AllowAll):
    async def may_lookup(self, role: str, topic: TopicName) -> bool:
        return False


async def test_who_may_not_look_a_topic_up_is_not_told() -> None:
    async with serving(MemoryMetadata(lambda: NOW_MS), authorizer=NobodyLooks()) as rest:
        assert "may not" in await rest.refused("GET", PATH, 403)


async def test_a_topic_that_does_not_exist_is_not_made(rest: Rest) -> None:
    await rest.refused("GET", PATH, 404)
    assert await rest.get("/admin/v2/persistent/public/default") == []


@pytest.mark.parametrize("domain", ["topic", "non-persistent"])
async def test_a_name_without_a_log_is_refused(rest: Rest, domain: str) -> None:
    path = f"/admin/v2/anabranch/ledgers/{domain}/public/default/t"
    assert "no log of its own" in await rest.refused("GET", path, 412)
