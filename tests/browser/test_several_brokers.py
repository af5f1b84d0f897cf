"""The page of three brokers, asked at one that does not lead the topic."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from anabranch.broker.admin.http.server import serve
from anabranch.broker.config.config import BrokerConfig
from anabranch.model.names import TopicName
from harness.browser import Page
from unit.broker.admin.across.several import Member, several

Opened = Callable[..., Page]
TOPIC = TopicName.parse("topic://public/default/orders")


class Served:
    """Three brokers on a loop in a thread of its own, with the REST on real sockets."""

    def __init__(self) -> None:
        self.ports: list[int] = []
        self.members: list[Member] = []
        self.loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=lambda: self.loop.run_until_complete(self._run()))

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *exc: object) -> None:
        self.loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)
        self.loop.close()

    async def _run(self) -> None:
        config = BrokerConfig(scalable_topic_load_report_interval=1.0)
        now_ms = lambda: int(time.time() * 1000)  # noqa: E731
        async with several(3, config, now_ms=now_ms) as self.members, contextlib.AsyncExitStack() as stack:
            for member in self.members:
                listening = socket.create_server(("127.0.0.1", 0))
                listening.setblocking(False)
                self.ports.append(listening.getsockname()[1])
                await stack.enter_async_context(serve(member.app, config, [(listening, None)]))
            await self._prepare()
            self._ready.set()
            traffic = asyncio.create_task(self._traffic())
            await self._end.wait()
            traffic.cancel()
            await asyncio.gather(traffic, return_exceptions=True)

    async def _prepare(self) -> None:
        leader = self.members[0]
        await leader.call("PUT", "/admin/v2/scalable/public/default/orders?numInitialSegments=3")
        await leader.call("PUT", "/admin/v2/persistent/public/default/rides/partitions", json=3)
        await leader.get("/admin/v2/scalable/public/default/orders/stats")
        await leader.call("PUT", "/admin/v2/scalable/public/default/shaped?numInitialSegments=1")
        assert leader.broker.scalable is not None
        record = await leader.broker.scalable.get(TOPIC)
        assert record is not None
        self.segments = [segment.topic(TOPIC) for segment in record.layout.active]
        for place, name in enumerate(self.segments):
            await leader.broker.unload_topic(name)
            leader.owners.places.moved[name] = place

    async def _traffic(self) -> None:
        producers = [
            await member.client.producer(str(name))
            for member, name in zip(self.members, self.segments, strict=True)
        ]
        producers += [
            await member.client.producer(f"persistent://public/default/rides-partition-{place}")
            for place, member in enumerate(self.members)
        ]
        while True:
            for number, producer in enumerate(producers):
                for _ in range(1 + number):
                    await producer.send(b"x" * 100)
            await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served() as started:
        yield started


def ids(served: Served) -> list[str]:
    return [member.broker.service_url.rpartition("/")[2] for member in served.members]


def test_a_broker_that_does_not_lead_a_topic_shows_its_river_and_where_segments_live(
    served: Served, opened: Opened
) -> None:
    page = opened(f"http://127.0.0.1:{served.ports[1]}/ui#/topics/public/default/orders")
    page.until("anabranch.page.river.picture")
    page.shows("3 active segments")
    for one in ids(served):
        page.shows(one)
    page.until("anabranch.page.model.totals.length > 3")
    page.until("[...anabranch.page.model.segments.values()].every((one) => one.rate[0] > 0)")
    page.press(".segments tbody tr:nth-child(2) button.link")
    page.until("document.querySelector('.facts').innerText.includes('Broker')")


def test_a_split_is_asked_of_the_leader_by_the_broker_whose_page_it_is(
    served: Served, opened: Opened
) -> None:
    """The page may talk to its own origin only, so it could not follow a redirect."""
    page = opened(f"http://127.0.0.1:{served.ports[1]}/ui#/topics/public/default/shaped")
    page.until("anabranch.page.river.picture")
    page.press(".segments button.link")
    page.press(".segment-panel .actions .button")
    page.shows("Split segment 0? Press again")
    page.press(".segment-panel .actions .button")
    page.shows("2 active segments")


def test_the_overview_shows_every_broker_and_one_that_does_not_answer(served: Served, opened: Opened) -> None:
    page = opened(f"http://127.0.0.1:{served.ports[2]}/ui")
    page.shows("orders")
    page.shows("rides")
    page.shows("Topics open")
    page.until("anabranch.page.totals.length > 3 && anabranch.page.totals.at(-1)[1] > 0")
    page.until("anabranch.page.answer.brokers.every((one) => one.topics > 0)")
    served.members[2].elsewhere.silent = {0}
    page.shows(f"{ids(served)[0]} (does not answer)")
