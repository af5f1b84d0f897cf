"""The two table views: brokers report to the leader over links, and follow each other's load there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial

import pytest

from anabranch.balance.core.load_json import decode_broker_load
from anabranch.balance.core.states import BrokerRun
from anabranch.broker.balance.load.broker_loads import BrokerLoads
from anabranch.broker.balance.load.leader_view import GONE_MAX, LeaderView
from anabranch.broker.balance.load.view_calls import FOLLOW_LOADS, REPORT_LOAD, BrokerReport, FollowLoads
from anabranch.broker.errors import NotReadyError
from anabranch.broker.peers.handlers import PeerHandlers
from anabranch.errors import AnabranchError
from anabranch.model.leaders_topics import BROKER_LOAD_TOPIC, TOP_BUNDLES_TOPIC
from anabranch.model.names import TopicName
from unit.broker.balance.load.rig import Election, Situation, broker_load, bundle_load, tops
from unit.broker.peers.lab import PeerLab, PeerNode, peer_lab

BUNDLE = bundle_load("public/default/0x00000000_0xffffffff", 100)


@dataclass
class Node:
    """One broker: its end of the links, its view of the election, and both ends of the views."""

    lab: ViewLab
    peer: PeerNode
    election: Election = field(default_factory=Election)
    situation: Situation = field(default_factory=Situation)
    published: list[tuple[TopicName, str, bytes | None]] = field(default_factory=list)
    safe_mode: str | None = None

    def __post_init__(self) -> None:
        self.view = LeaderView(
            self.election,
            self.situation.current,
            self.lab.living,
            self.situation.now_ms,
            lambda topic, key, value: self.published.append((topic, key, value)),
            why_safe_mode=lambda: self.safe_mode,
        )
        self.view.serve(self.peer.peers.handlers)
        self.loads = BrokerLoads(
            self.peer.peers,
            self.election,
            self.situation.current,
            self.lab.living,
            self.situation.now_ms,
            pause_s=0.001,
        )

    @property
    def id(self) -> str:
        return self.peer.id

    @property
    def run(self) -> BrokerRun:
        return BrokerRun(self.id, self.peer.peers.me.run)

    def has_load_of(self, other: Node) -> bool:
        return other.id in self.loads.loads()

    async def knows(self, condition: Callable[[], bool]) -> None:
        heard = asyncio.Event()
        stop = self.loads.on_change(heard.set)
        async with asyncio.timeout(10):
            while not condition():
                heard.clear()
                await heard.wait()
        stop()


@dataclass
class ViewLab:
    peers: PeerLab
    nodes: list[Node] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def living(self) -> dict[str, str]:
        return {node.id: node.run.run for node in self.nodes if node.id not in self.gone}

    async def node(self) -> Node:
        made = Node(self, await self.peers.node(f"run{len(self.nodes)}"))
        self.nodes.append(made)
        self.tasks.append(asyncio.create_task(made.loads.follow()))
        return made

    def elect(self, leader: Node, term: int) -> None:
        for node in self.nodes:
            node.election.elect(leader.run, term if node is leader else 0)


@pytest.fixture
async def views() -> AsyncIterator[ViewLab]:
    async with peer_lab() as peers:
        lab = ViewLab(peers)
        try:
            yield lab
        finally:
            for task in lab.tasks:
                task.cancel()
            await asyncio.gather(*lab.tasks, return_exceptions=True)
            await asyncio.gather(*(node.peer.peers.close() for node in lab.nodes))
            # A connection may have been accepted and not yet seen by its session.
            for _ in range(20):
                await asyncio.sleep(0)
                for node in lab.nodes:
                    for session in list(node.peer.sessions):
                        session.abort()


async def test_every_broker_learns_the_load_that_one_reports(views: ViewLab) -> None:
    leader, one, two = await views.node(), await views.node(), await views.node()
    views.elect(leader, 1)
    await one.loads.report(broker_load(0.5, msg_rate_in=7.0), tops(BUNDLE))
    for node in (leader, one, two):
        await node.knows(partial(node.has_load_of, one))
        assert node.loads.loads()[one.id].cpu == 0.5
        assert node.loads.loads()[one.id].msg_rate_in == 7.0


async def test_only_the_leader_has_the_top_bundles(views: ViewLab) -> None:
    leader, one = await views.node(), await views.node()
    views.elect(leader, 1)
    await one.loads.report(broker_load(0.5), tops(BUNDLE))
    assert leader.view.tops[one.id].bundles == (BUNDLE,)
    assert one.view.tops == {}


async def test_later_reports_replace_earlier_ones(views: ViewLab) -> None:
    leader, one = await views.node(), await views.node()
    views.elect(leader, 1)
    for cpu in (0.1, 0.9):
        await one.loads.report(broker_load(cpu), tops())
    await leader.knows(lambda: leader.loads.loads()[one.id].cpu == 0.9 if leader.loads.loads() else False)
    assert leader.view.tops[one.id].bundles == ()


async def test_times_are_the_readers_own_whatever_the_clocks_say(views: ViewLab) -> None:
    leader, one, two = await views.node(), await views.node(), await views.node()
    one.situation.ms, two.situation.ms = 77, 10**12
    views.elect(leader, 1)
    await one.loads.report(broker_load(0.5, measured_ms=77), tops(BUNDLE, measured_ms=77))
    assert leader.view.loads[one.id].measured_ms == leader.view.tops[one.id].measured_ms == 1_000_000
    await two.knows(lambda: one.id in two.loads.loads())
    assert two.loads.loads()[one.id].measured_ms == 10**12


async def test_a_broker_that_leaves_removes_its_keys(views: ViewLab) -> None:
    leader, one = await views.node(), await views.node()
    views.elect(leader, 1)
    await one.loads.report(broker_load(0.5), tops(BUNDLE))
    await leader.knows(lambda: one.id in leader.loads.loads())
    await one.loads.leave()
    assert (leader.view.loads, leader.view.tops) == ({}, {})
    await leader.knows(lambda: leader.loads.loads() == {})
    assert leader.published[-2:] == [(BROKER_LOAD_TOPIC, one.id, None), (TOP_BUNDLES_TOPIC, one.id, None)]


async def test_keys_that_are_too_old_are_removed_by_the_leader_and_ignored_by_readers(views: ViewLab) -> None:
    leader, one = await views.node(), await views.node()
    views.elect(leader, 1)
    await one.loads.report(broker_load(0.5), tops(BUNDLE))
    await leader.knows(lambda: one.id in leader.loads.loads())
    leader.situation.ms += 1_800_000
    leader.view.look()
    assert one.id in leader.view.loads
    leader.situation.ms += 1
    # Before the leader has looked.
    assert leader.loads.loads() == {}
    leader.view.look()
    assert (leader.view.loads, leader.view.tops) == ({}, {})
    assert leader.published[-2:] == [(BROKER_LOAD_TOPIC, one.id, None), (TOP_BUNDLES_TOPIC, one.id, None)]


async def test_a_broker_that_is_gone_loses_its_keys_but_not_in_safe_mode(views: ViewLab) -> None:
    leader, one = await views.node(), await views.node()
    views.elect(leader, 1)
    await one.loads.report(broker_load(0.5), tops(BUNDLE))
    views.gone.add(one.id)
    leader.safe_mode = "the store is in doubt"
    leader.view.look()
    assert one.id in leader.view.loads
    assert leader.loads.loads() == {}
    leader.safe_mode = None
    leader.view.look()
    assert leader.view.loads == {}


async def test_a_new_leader_begins_with_empty_views_and_readers_keep_what_they_know(views: ViewLab) -> None:
    first, second, reader = await views.node(), await views.node(), await views.node()
    views.elect(first, 1)
    await first.loads.report(broker_load(0.1), tops())
    await second.loads.report(broker_load(0.2), tops())
    await reader.knows(lambda: len(reader.loads.loads()) == 2)
    views.elect(second, 2)
    assert (first.view.loads, second.view.loads) == ({}, {})
    await second.loads.report(broker_load(0.8), tops())
    await reader.knows(lambda: reader.loads.loads()[second.id].cpu == 0.8)
    # The first has not reported to the new leader: what was known of it counts on.
    assert reader.loads.loads()[first.id].cpu == 0.1


async def test_a_broker_that_does_not_lead_takes_no_reports(views: ViewLab) -> None:
    leader, other = await views.node(), await views.node()
    views.elect(leader, 1)
    with pytest.raises(NotReadyError, match="does not lead"):
        await leader.peer.peers.call(other.id, REPORT_LOAD, BrokerReport(b"{}"))
    with pytest.raises(NotReadyError, match="does not lead"):
        await leader.peer.peers.call(other.id, FOLLOW_LOADS, FollowLoads())


async def test_without_a_leader_nothing_is_reported(views: ViewLab) -> None:
    node = await views.node()
    with pytest.raises(NotReadyError, match="no broker leads"):
        await node.loads.report(broker_load(0.5), tops())
    await node.loads.leave()


async def test_what_is_no_report_is_refused_and_changes_nothing(views: ViewLab) -> None:
    leader, one = await views.node(), await views.node()
    views.elect(leader, 1)
    good = b'{"measuredMs":1,"cpu":0.5}'
    for report in (BrokerReport(b"?"), BrokerReport(good, b'{"bundles":3,"measuredMs":1}')):
        with pytest.raises(AnabranchError):
            await one.peer.peers.call(leader.id, REPORT_LOAD, report)
    assert leader.view.loads == {}


async def test_a_reader_waits_at_the_leader_for_changes_and_gets_those_since(views: ViewLab) -> None:
    leader, one, two = await views.node(), await views.node(), await views.node()
    views.elect(leader, 1)
    await one.loads.report(broker_load(0.1), tops())
    ask = two.peer.peers.call
    whole = await ask(leader.id, FOLLOW_LOADS, FollowLoads())
    assert list(whole.loads) == [one.id]
    waiting = asyncio.create_task(ask(leader.id, FOLLOW_LOADS, FollowLoads(whole.view, whole.until)))
    await two.loads.report(broker_load(0.2), tops())
    since = await waiting
    assert {name: decode_broker_load(load).cpu for name, load in since.loads.items()} == {two.id: 0.2}
    await one.loads.leave()
    left = await ask(leader.id, FOLLOW_LOADS, FollowLoads(since.view, since.until))
    assert (left.loads, left.gone) == ({}, [one.id])
    nothing = await ask(leader.id, FOLLOW_LOADS, FollowLoads(left.view, left.until, 0.01))
    assert (nothing.loads, nothing.gone, nothing.until) == ({}, [], left.until)
    # A reader of another leader's view gets all that there is.
    anew = await ask(leader.id, FOLLOW_LOADS, FollowLoads("before", 100))
    assert list(anew.loads) == [two.id]


async def test_a_waiting_reader_is_told_when_the_leadership_ends(views: ViewLab) -> None:
    leader, one = await views.node(), await views.node()
    views.elect(leader, 1)
    whole = await one.peer.peers.call(leader.id, FOLLOW_LOADS, FollowLoads())
    waiting = asyncio.create_task(
        one.peer.peers.call(leader.id, FOLLOW_LOADS, FollowLoads(whole.view, whole.until))
    )
    await one.peer.peers.call(leader.id, FOLLOW_LOADS, FollowLoads())
    leader.election.elect(one.run)
    with pytest.raises(NotReadyError):
        await waiting


async def test_the_topics_of_the_views_get_what_is_reported(views: ViewLab) -> None:
    leader, one = await views.node(), await views.node()
    views.elect(leader, 1)
    await one.loads.report(broker_load(0.5), tops(BUNDLE))
    assert [(topic, key) for topic, key, _ in leader.published] == [
        (BROKER_LOAD_TOPIC, one.id),
        (TOP_BUNDLES_TOPIC, one.id),
    ]
    value = leader.published[0][2]
    assert value is not None
    assert decode_broker_load(value).cpu == 0.5
    assert one.published == []


async def test_removed_keys_are_not_remembered_without_bound() -> None:
    election, situation, handlers = Election(), Situation(), PeerHandlers()
    view = LeaderView(
        election, situation.current, lambda: {"reader:1": "r"}, situation.now_ms, lambda *_: None
    )
    view.serve(handlers)
    election.elect(BrokerRun("leader:1", "r"), 1)
    for number in range(GONE_MAX + 10):
        for report in (BrokerReport(b'{"measuredMs":1}'), BrokerReport()):
            await handlers.perform(f"broker:{number}", REPORT_LOAD.name, REPORT_LOAD.encode(report))
    asked = FOLLOW_LOADS.encode(FollowLoads())
    told = FOLLOW_LOADS.read_answer(await handlers.perform("reader:1", FOLLOW_LOADS.name, asked))
    assert (told.loads, len(told.gone)) == ({}, GONE_MAX)
