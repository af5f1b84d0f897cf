"""A topic that cannot say its state, or whose owner is in trouble, is closed all the same and can be opened again."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from anabranch.broker.broker import Broker
from anabranch.broker.runtime import background
from anabranch.broker.runtime.background import Background
from anabranch.model.names import TopicName
from anabranch.storage.port import LogError

NAME = TopicName.parse("persistent://public/default/t")


def speechless() -> bytes:
    raise OverflowError("integer out of range")


async def test_a_topic_whose_state_cannot_be_said_is_unloaded_and_served_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await broker.topic(NAME, create=True)
    monkeypatch.setattr(topic, "encode_state", speechless)
    waiting = asyncio.ensure_future(topic.wait_closed())
    await asyncio.wait_for(topic.close(), 10)
    await asyncio.wait_for(waiting, 10)
    again = await asyncio.wait_for(broker.topic(NAME), 10)
    assert again is not topic
    assert not again.is_closed


async def test_an_unload_that_is_given_up_half_way_is_finished(broker: Broker) -> None:
    topic = await broker.topic(NAME, create=True)
    topic.publishing.publish_own(b"not confirmed yet", 1)
    closing = asyncio.ensure_future(topic.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    again = await asyncio.wait_for(broker.topic(NAME), 10)
    assert again is not topic


async def test_a_topic_that_lost_its_log_is_let_go_whatever_else_fails(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("a consumer that cannot be detached")

    topic = await broker.topic(NAME, create=True)
    monkeypatch.setattr(topic.attached, "close_all", fail)
    topic.log_lost(LogError("lost"))
    await asyncio.wait_for(topic.wait_closed(), 10)
    assert await asyncio.wait_for(broker.topic(NAME), 10) is not topic


async def test_a_seal_that_fails_once_its_only_caller_is_gone_is_nobodys_loose_end(broker: Broker) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    topic = await broker.topic(NAME, create=True)
    topic.publishing.publish_own(b"not confirmed yet", 1)
    caller = asyncio.ensure_future(topic.terminate())
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.sleep(0)
    topic.log.lost(LogError("lost"))
    await asyncio.wait_for(topic.wait_closed(), 10)
    del topic, caller
    gc.collect()
    assert complaints == []


async def test_work_that_must_be_done_is_tried_again_whatever_fails_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "RETRY_S", 0.001)
    tries = 0
    done = asyncio.Event()

    async def work() -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ValueError("our own fault")
        done.set()

    works = Background(asyncio.get_running_loop())
    works.until_done(work)
    await asyncio.wait_for(done.wait(), 10)
    assert tries == 3
    await works.close()
