"""The page of the cluster: brokers as banks, bundles as streams, moves with their reasons."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.balance.core.load import BrokerLoad
from anabranch.broker.admin.http.server import serve
from anabranch.broker.balance.balance_log import BalanceAct
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.rest import create_app
from harness.broker_process import BrokerProcess
from harness.browser import Page
from unit.broker.balance.balanced import BALANCED, agree, balanced, balancer, bundle_of, leader_of, topic_of
from unit.broker.scalable.cluster import NOW_MS, Cluster, Node, running

Opened = Callable[..., Page]


class Served:
    """Three brokers that share topics, on a loop in a thread of its own, with the page on real sockets."""

    def __init__(self, config: BrokerConfig) -> None:
        self.ports: list[int] = []
        self.loop = asyncio.new_event_loop()
        self.cluster: Cluster
        self._config = config
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
        is_balanced = self._config == BALANCED
        made = balanced(3) if is_balanced else running(3, self._config, is_shared=True)
        async with made as self.cluster, contextlib.AsyncExitStack() as stack:
            for node in self.cluster.nodes:
                listening = socket.create_server(("127.0.0.1", 0))
                listening.setblocking(False)
                self.ports.append(listening.getsockname()[1])
                app = create_app(node.broker.admin_services(), node.broker.page)
                await stack.enter_async_context(serve(app, self._config, [(listening, None)]))
            self._ready.set()
            await self._end.wait()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Runs it on the brokers' loop, and waits."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def url(self, number: int) -> str:
        return f"http://127.0.0.1:{self.ports[number]}/ui#/cluster"


@pytest.fixture
def served() -> Iterator[Served]:
    with Served(BALANCED) as started:
        yield started


def name_of(node: Node) -> str:
    return node.broker.registry.me.id


async def moved(cluster: Cluster, reason: str) -> str:
    """Moves a bundle of the second broker, with an open topic, to the third."""
    _, source, target = cluster.nodes
    name = topic_of(source)
    await source.publish(name, b"x")
    bundle = bundle_of(source, name)
    await balancer(source).requests.transfer(bundle, name_of(target), reason)
    await agree(cluster)
    return str(bundle)


def test_a_move_is_drawn_listed_and_explained_while_the_page_is_open(served: Served, opened: Opened) -> None:
    page = opened(served.url(0))
    page.shows("3 brokers")
    page.until("document.querySelectorAll('.bank').length === 3")
    leader = name_of(leader_of(served.cluster))
    assert page.evaluate("document.querySelector('.chip.leader').closest('.bank').innerText").startswith(
        leader
    )
    # Bundles that have been spread by the fixture came with the first answer.
    bundle = served.do(moved(served.cluster, "the other one is too warm"))
    page.shows("the other one is too warm")
    stream = f"document.querySelector('[data-bundle=\"{bundle}\"] .stream')"
    page.until(f"{stream}?.getAttribute('d')")
    page.until(
        f"anabranch.page.model.moves.some((one) => one.bundle === '{bundle}' && one.kind === 'transfer' "
        "&& one.state === 'assigned')"
    )
    source, target = (name_of(node) for node in served.cluster.nodes[1:])
    row = page.evaluate("[...document.querySelector('.moves tbody tr').children].map((one) => one.innerText)")
    assert row[1:5] == ["Transferred", row[2], source, target]
    assert row[2].replace("\N{EN DASH}", "_0x") in bundle
    page.until("document.querySelector('.bank-marks .mark')")
    page.press(".moves tbody tr button.link")
    page.until("document.querySelector('.story .facts').innerText.includes('the other one is too warm')")
    page.until("document.querySelector('.story .decisions').innerText.includes('Transferred to')")
    told = page.evaluate("document.querySelector('.story .facts').innerText")
    assert target in told


def test_a_story_tells_why_a_bundle_was_not_moved(served: Served, opened: Opened) -> None:
    leader = leader_of(served.cluster)
    bundle = bundle_of(leader, topic_of(leader))

    async def decide() -> None:
        kept = balancer(leader).decisions
        kept.left(BalanceAct.SHED, str(bundle), "TooHeavy", "no broker has room for it")
        kept.left(BalanceAct.SHED, "", "Balanced", "The loads are balanced.")

    served.do(decide())
    asked = next(number for number, node in enumerate(served.cluster.nodes) if node is not leader)
    page = opened(served.url(asked))
    page.shows("The loads are balanced.")
    page.until("document.querySelector('.bundles button.link')")
    page.evaluate(f"anabranch.page.choose('{bundle}')")
    page.shows("Not moved. no broker has room for it")


def test_banks_show_loads_and_safe_mode_is_plain_to_see(served: Served, opened: Opened) -> None:
    first, loaded, gone = served.cluster.nodes

    async def change() -> None:
        load = BrokerLoad(measured_ms=NOW_MS, cpu=0.3, disk=0.62, load=0.6)
        balancer(first).loads = lambda: {name_of(loaded): load}

    served.do(change())
    page = opened(served.url(0))
    page.shows("load 60 %, by disk")

    async def end() -> None:
        for node in (loaded, gone):
            await node.metadata.close()

    served.do(end())
    page.shows("Safe mode: no bundle is moved.")
    page.until("document.querySelectorAll('.bank.silent').length === 2")


def test_nothing_of_the_picture_lies_outside_of_its_bank_or_of_the_window(
    served: Served, opened: Opened
) -> None:
    served.do(moved(served.cluster, "for a picture"))
    page = opened(served.url(2), width=1280, height=800)
    page.until("document.querySelector('.bank-marks .mark')")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    # Labels fit: none is cut off.
    assert page.evaluate(
        "[...document.querySelectorAll('.bank-label')].every((one) => one.scrollHeight <= one.clientHeight + 1)"
    )
    assert page.evaluate(
        "(() => { const box = document.querySelector('.banks-body').getBoundingClientRect(); "
        "return [...document.querySelectorAll('.stream')].every((one) => { const at = one.getBBox(); "
        "return at.y >= 0 && at.y + at.height <= box.height && at.x >= 0; }); })()"
    )


def test_brokers_without_the_balancer_are_shown_without_moves(opened: Opened) -> None:
    with Served(BrokerConfig()) as served:
        page = opened(served.url(1))
        page.shows("A hash over the living brokers")
        page.until("document.querySelectorAll('.bank').length === 3")
        page.until("document.querySelectorAll('.bundles tbody tr').length > 3")
        assert page.evaluate("anabranch.page.movesCard.hidden && anabranch.page.spans.hidden")
        page.evaluate("anabranch.page.choose(anabranch.page.model.latest.bundles[0].name)")
        page.shows("a hash over the living brokers, or an operator's assignment")


def test_a_broker_that_is_alone_says_so_and_nothing_else(tmp_path: Path, opened: Opened) -> None:
    with BrokerProcess(tmp_path, brokers=1) as broker:
        page = opened(f"http://127.0.0.1:{broker.http_port}/ui")
        page.shows("No topics yet")
        page.evaluate("location.hash = '#/cluster'")
        page.shows("One broker serves all topics")
        assert "Bundles" not in page.text()


def test_a_bundle_that_was_split_tells_what_became_of_it(served: Served, opened: Opened) -> None:
    owner = served.cluster.nodes[1]
    bundle = bundle_of(owner, topic_of(owner))
    first, last = bundle.edges
    page = opened(served.url(0))
    page.shows("3 brokers")
    served.do(balancer(owner).requests.split(bundle, [(first + last) // 2], "it is cut for a test"))
    page.until(
        f"anabranch.page.model.moves.some((one) => one.bundle === '{bundle}' && one.state === 'deleted')"
    )
    page.press(".moves tbody tr button.link")
    page.until("document.querySelector('.story .facts').innerText.includes('split into')")
    page.shows("it is cut for a test")
    assert page.evaluate("document.querySelector('.story .outcome').innerText") == ""
