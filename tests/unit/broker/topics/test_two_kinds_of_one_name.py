"""A scalable topic and a classic one never stand beside each other under one name, whoever makes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from anabranch.broker.errors import NotAllowedError, NotReadyError
from anabranch.client.errors import RequestRefused
from anabranch.controller.core.errors import TopicExists
from anabranch.controller.service import ScalableTopics
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.names import TopicName
from unit.broker.admin.conftest import NOW_MS, Rest, serving

SCALABLE = TopicName.parse("topic://public/default/x")
CLASSIC = TopicName.parse("persistent://public/default/x")
Create = Callable[[Rest], Awaitable[Any]]


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    async with serving(MemoryMetadata(lambda: NOW_MS)) as made:
        yield made


def service(rest: Rest) -> ScalableTopics:
    found = rest.broker.scalable
    assert found is not None
    return found


async def kinds(rest: Rest) -> list[str]:
    """Everything of that name that is stored."""
    resources = rest.broker.resources
    found = ["scalable"] if await service(rest).get(SCALABLE) is not None else []
    found += ["classic"] if await resources.topic_exists(CLASSIC) else []
    return found + (["partitioned"] if await resources.partitions(CLASSIC) else [])


async def make_scalable(rest: Rest) -> None:
    await service(rest).create(SCALABLE)


async def make_classic(rest: Rest) -> None:
    await rest.broker.new_topics.create(CLASSIC)


async def make_by_use(rest: Rest) -> None:
    await rest.broker.new_topics.create_by_use(CLASSIC)


async def make_partitioned(rest: Rest) -> None:
    await rest.broker.new_topics.create_partitioned(CLASSIC, 2)


async def test_a_lookup_by_a_classic_client_makes_nothing_beside_a_scalable_topic(rest: Rest) -> None:
    wanted = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
    await rest.call("POST", "/admin/v2/namespaces/public/default/autoTopicCreation", 204, json=wanted)
    await make_scalable(rest)
    with pytest.raises(RequestRefused, match="is a scalable topic"):
        await rest.client.partitions("x")
    assert await kinds(rest) == ["scalable"]


async def test_partitions_beside_a_scalable_topic_are_refused(rest: Rest) -> None:
    await make_scalable(rest)
    path = "/admin/v2/persistent/public/default/x/partitions"
    assert "is a scalable topic" in (await rest.http.put(path, json=2)).text
    assert await kinds(rest) == ["scalable"]


@pytest.mark.parametrize(
    ("make", "kind"), [(make_classic, "classic"), (make_by_use, "classic"), (make_partitioned, "partitioned")]
)
@pytest.mark.parametrize("is_scalable_first", [True, False])
async def test_one_of_two_that_are_made_at_once_is_taken_back(
    rest: Rest, monkeypatch: pytest.MonkeyPatch, make: Create, kind: str, is_scalable_first: bool
) -> None:
    """The other one is made between the look at the name and the storing."""
    store = rest.broker.metadata
    create, others = store.create, [make if not is_scalable_first else make_scalable]

    async def create_behind(path: str, *arguments: Any, **options: Any) -> Any:
        if path.endswith("/x") and others:
            await others.pop()(rest)
        return await create(path, *arguments, **options)

    monkeypatch.setattr(store, "create", create_behind)
    if is_scalable_first:
        with pytest.raises(NotReadyError, match="at the same time"):
            await make(rest)
        assert await kinds(rest) == ["scalable"]
        with pytest.raises(NotAllowedError, match="is a scalable topic"):
            await make(rest)
    else:
        with pytest.raises(TopicExists, match="a classic topic"):
            await make_scalable(rest)
        assert await kinds(rest) == [kind]
