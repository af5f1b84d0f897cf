"""The REST of the load balancer: loads, heaviest bundles, decisions with their reasons."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from anabranch.broker.balance.balance_log import BalanceAct
from anabranch.broker.rest import create_app
from anabranch.metadata.memory import MemoryMetadata
from unit.broker.admin.conftest import NOW_MS, Rest, serving
from unit.broker.balance.load.loaded import LOAD_EACH, BalancedNode, Loaded, loaded

PATH = "/admin/v2/load-manager"


@pytest.fixture
async def made() -> AsyncIterator[Loaded]:
    async with loaded(2) as found:
        found.heat(0, 1)
        await found.until(lambda: all(len(node.work.loads.loads()) == 2 for node in found.nodes))
        yield found


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    async with serving(MemoryMetadata(lambda: NOW_MS)) as found:
        yield found


async def ask(rest: Rest, node: BalancedNode, path: str = PATH, status: int = 200, **query: str) -> Any:
    """The answer of a broker with that balancer."""
    services = replace(rest.broker.admin_services(), load_work=node.work, registry=node.registry)
    transport = httpx.ASGITransport(create_app(services, rest.broker.page))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as http:
        answer = await http.get(path, params=query)
    assert answer.status_code == status, answer.text
    return answer.json() if status == 200 else answer


async def test_the_status_names_the_leader_and_what_acts_by_itself(made: Loaded, rest: Rest) -> None:
    leader, other = sorted(made.nodes, key=lambda node: node is not made.leader)
    told = [await ask(rest, node) for node in (leader, other)]
    assert [one["isLeader"] for one in told] == [True, False]
    assert {one["leader"] for one in told} == {leader.id}
    assert told[0]["safeMode"] is None
    assert (told[0]["isShedding"], told[0]["isSplitting"]) == (True, True)


async def test_every_broker_tells_the_load_of_all(made: Loaded, rest: Rest) -> None:
    busy = made.nodes[0].id
    await made.until(lambda: all(node.work.loads.loads()[busy].cpu == LOAD_EACH for node in made.nodes))
    for node in made.nodes:
        told = await ask(rest, node, f"{PATH}/brokers")
        assert set(told) == {one.id for one in made.nodes}
        assert (told[busy]["cpu"], told[busy]["msgRateIn"]) == (LOAD_EACH, 1000.0)


async def test_a_broker_tells_the_load_of_its_own_bundles(made: Loaded, rest: Rest) -> None:
    node = made.nodes[0]
    await made.until(lambda: any(one.msg_rate_in for one in node.work.reporter.bundles.values()))
    told = await ask(rest, node, f"{PATH}/bundles")
    assert [one["msgRateIn"] for one in told.values() if one["topics"]] == [1000.0]


async def test_the_heaviest_bundles_are_asked_of_the_leader(made: Loaded, rest: Rest) -> None:
    leader, other = sorted(made.nodes, key=lambda node: node is not made.leader)
    busy = made.nodes[0].id
    await made.until(lambda: leader.work.view.tops[busy].bundles != ())
    told = await ask(rest, leader, f"{PATH}/top-bundles")
    assert [one["msgRateIn"] for one in told[busy]] == [1000.0]
    answer = await ask(rest, other, f"{PATH}/top-bundles", 307)
    assert answer.headers["location"] == f"http://{leader.id}{PATH}/top-bundles"


async def test_decisions_are_told_with_their_reasons_and_found_by_subject(made: Loaded, rest: Rest) -> None:
    node = made.nodes[0]
    node.decisions.done(BalanceAct.TRANSFER, "a/b/0x0", "Admin", "asked", source="x:1", destination="y:1")
    [told] = await ask(rest, node, f"{PATH}/decisions", subject="a/b/0x0")
    assert (told["act"], told["because"], told["destination"]) == ("transfer", "asked", "y:1")
    assert len(await ask(rest, node, f"{PATH}/decisions", most="1")) == 1
    await ask(rest, node, f"{PATH}/decisions", 412, most="0")


async def test_the_load_report_has_what_the_balancer_measures(made: Loaded, rest: Rest) -> None:
    work = made.nodes[0].work
    await made.until(lambda: work.load is not None and work.load.cpu == LOAD_EACH)
    told = await ask(rest, made.nodes[0], "/admin/v2/broker-stats/load-report")
    assert told["cpu"] == {"usage": 100 * LOAD_EACH, "limit": 100.0}
    assert set(told["lastStats"]) == set(work.reporter.bundles)
    assert 0 < told["memory"]["usage"] < told["memory"]["limit"]


async def test_without_the_balancer_the_request_is_not_supported(rest: Rest) -> None:
    for path in ("", "/brokers", "/bundles", "/top-bundles", "/decisions"):
        answer = await rest.refused("GET", f"{PATH}{path}", 412)
        assert "not supported by this load manager" in answer
