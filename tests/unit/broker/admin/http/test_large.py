"""Requests about many topics give others their turn."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from anabranch.broker.admin.http.large import PER_TURN, in_turns
from anabranch.broker.catalog.resources import topic_record_path
from anabranch.model.bundles import bundle_hash
from anabranch.model.names import TopicName
from anabranch.storage.core.topic_record import TopicRecord
from unit.broker.admin.conftest import Rest

TOPICS = 4 * PER_TURN


class Turns:
    """How often somebody else gets a turn."""

    def __init__(self) -> None:
        self.count = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)

    def close(self) -> None:
        self._task.cancel()


async def test_everything_comes_and_others_get_their_turn() -> None:
    turns = Turns()
    assert [item async for item in in_turns(range(2000), 500)] == list(range(2000))
    assert turns.count >= 4
    turns.close()


@pytest.fixture
async def many(rest: Rest) -> list[str]:
    names = [f"persistent://public/default/topic-{number}" for number in range(TOPICS)]
    record = TopicRecord(created_ms=1).encode()
    for name in names:
        await rest.broker.metadata.create(topic_record_path(TopicName.parse(name)), record)
    return sorted(names)


@pytest.mark.parametrize(
    "path", ["/admin/v2/persistent/public/default", "/admin/v2/namespaces/public/default/topics"]
)
async def test_lists_of_many_topics_are_made_in_turns(rest: Rest, many: list[str], path: str) -> None:
    turns = Turns()
    before = turns.count
    answer = await rest.http.get(path)
    taken = turns.count - before
    turns.close()
    assert answer.headers["content-type"] == "application/json"
    assert sorted(answer.json()) == many
    assert taken >= TOPICS // PER_TURN


async def test_topics_of_one_of_many_bundles_are_those_that_hash_into_it(rest: Rest, many: list[str]) -> None:
    bundles = (await rest.get("/admin/v2/namespaces/public/default/bundles"))["boundaries"]
    found: list[str] = []
    for first, last in pairwise(bundles):
        part = await rest.get("/admin/v2/persistent/public/default", params={"bundle": f"{first}_{last}"})
        assert all(int(first, 16) <= bundle_hash(TopicName.parse(name)) for name in part)
        found += part
    assert sorted(found) == many


async def test_the_page_looks_at_many_topics_in_turns(rest: Rest, many: list[str]) -> None:
    await rest.get("/ui/api/overview")
    turns = Turns()
    before = turns.count
    found = await rest.get("/ui/api/overview")
    taken = turns.count - before
    turns.close()
    assert found["topicCount"] == TOPICS
    assert [one["name"] for one in found["topics"]] == many[: len(found["topics"])]
    assert taken >= TOPICS // PER_TURN
