"""Consumers of a changing set of topics: tried for ever, never in each other's way."""

from __future__ import annotations

import asyncio
import random

from anabranch.client.consuming.topic_pool import FIRST_PAUSE_S, PAUSE_MAX_S, Failed, Topics, topic_backoff
from anabranch.client.errors import ConnectionLost
from anabranch.client.transport.attachment import Backoff
from anabranch.client.transport.core.topic_diff import TopicChange


class One:
    def __init__(self, name: str, failed: Failed, log: list[str]) -> None:
        self.name, self.failed, self._log = name, failed, log
        log.append(f"open {name}")

    async def close(self) -> None:
        await asyncio.sleep(0)
        self._log.append(f"close {self.name}")


class Rig:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.refused: set[str] = set()
        self.made: list[One] = []
        self.changed = asyncio.Event()
        self.topics: Topics[One] = Topics(
            self._open, lambda: Backoff(random.Random(1), first_s=0.001, limit_s=0.002)
        )

    async def _open(self, name: str, failed: Failed) -> One:
        self.changed.set()
        if name in self.refused:
            self.log.append(f"refuse {name}")
            raise ConnectionLost("no")
        self.made.append(One(name, failed, self.log))
        return self.made[-1]

    async def until(self, *words: str) -> None:
        async with asyncio.timeout(10):
            while not set(words) <= set(self.log):
                self.changed.clear()
                await self.changed.wait()

    def change(self, closed: str = "", opened: str = "") -> None:
        self.topics.apply(TopicChange(frozenset(closed.split()), frozenset(opened.split())))


async def test_a_topic_that_cannot_be_opened_is_tried_again_and_stops_nobody() -> None:
    rig = Rig()
    rig.refused = {"bad"}
    rig.change(opened="bad good")
    await rig.topics.tried(["bad", "good"])
    assert rig.topics.open.keys() == {"good"}
    rig.log.clear()
    await rig.until("refuse bad")
    rig.refused.clear()
    await rig.until("open bad")
    await rig.topics.close()
    assert sorted(rig.log[-2:]) == ["close bad", "close good"]


async def test_trying_ends_when_the_topic_leaves_the_set() -> None:
    rig = Rig()
    rig.refused = {"bad"}
    rig.change(opened="bad")
    await rig.until("refuse bad")
    rig.change(closed="bad")
    await rig.topics.gone()
    count = len(rig.log)
    rig.change(opened="good")
    await rig.until("open good")
    assert len(rig.log) == count + 1
    await rig.topics.close()


async def test_a_consumer_that_fails_is_closed_and_opened_again() -> None:
    rig = Rig()
    rig.change(opened="one")
    await rig.until("open one")
    rig.made[0].failed(ConnectionLost("gone"))
    async with asyncio.timeout(10):
        while len(rig.made) < 2:
            rig.changed.clear()
            await rig.changed.wait()
    assert rig.log == ["open one", "close one", "open one"]
    await rig.topics.close()


async def test_a_topic_of_the_same_name_is_opened_after_the_old_one_is_closed() -> None:
    rig = Rig()
    rig.change(opened="one")
    await rig.topics.tried(["one"])
    rig.change(closed="one", opened="one")
    await rig.topics.tried(["one"])
    assert rig.log == ["open one", "close one", "open one"]
    await rig.topics.close()
    assert not rig.topics.open


def test_pauses_grow_from_a_tenth_of_a_second_to_half_an_hour() -> None:
    backoff = topic_backoff(random.Random(3))
    pauses = [backoff.next_s() for _ in range(30)]
    assert FIRST_PAUSE_S / 2 <= pauses[0] <= FIRST_PAUSE_S == 0.1
    assert PAUSE_MAX_S / 2 <= pauses[-1] <= PAUSE_MAX_S == 1800.0
