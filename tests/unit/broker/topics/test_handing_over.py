"""Topics that move between two brokers over one memory log: released by the former owner, pulled by the new one."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from anabranch.broker.catalog.owners import BrokerAddress
from anabranch.broker.catalog.resources import MANAGED_LEDGERS
from anabranch.broker.config.listeners import Addresses
from anabranch.broker.errors import NotReadyError, TopicNotFoundError
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topics.handing_over import WAVE_TOPICS, WAVES_AT_ONCE, HandOver
from anabranch.client import ClientConnection
from anabranch.client.errors import ConnectionLost
from anabranch.client.transport.connection import PartKind
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName
from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.port import LedgerState
from anabranch.wire import pulsar_pb2 as pb
from harness.simple_client import Consumer, Producer
from unit.broker.scalable.cluster import Cluster, Node, running

NAME = TopicName.parse("persistent://public/default/t")


@dataclass
class DirectMoves:
    """Implements `CallsOfMoves` without a link between, and with trouble if a test wants it."""

    nodes: list[Node]
    asked: list[LedgerId] = field(default_factory=list)
    told: list[list[TopicName]] = field(default_factory=list)
    opening: int = 0
    most_opening: int = 0
    # Called before the former owner hears of it, and before its answer arrives.
    before: Callable[[], Awaitable[None]] | None = None
    after: Callable[[], Awaitable[None]] | None = None
    is_silent: bool = False

    async def last_word(self, incarnation: Incarnation, ledger: LedgerId, path: str) -> LedgerState | None:
        self.asked.append(ledger)
        if self.before is not None:
            await self.before()
        if self.is_silent:
            return None
        name = TopicName.from_storage_path(path.removeprefix(f"{MANAGED_LEDGERS}/"))
        node = next(node for node in self.nodes if node.broker.log.incarnation == incarnation)
        word = await node.broker.hand_over.release(name, ledger)
        if self.after is not None:
            await self.after()
        return word

    async def tell_open(self, owner: BrokerAddress, topics: Sequence[TopicName]) -> None:
        self.told.append(list(topics))
        if self.is_silent:
            raise NotReadyError("it does not answer")
        node = next(node for node in self.nodes if node.broker.service_url == owner.service_url)
        self.opening += 1
        self.most_opening = max(self.most_opening, self.opening)
        try:
            await node.broker.hand_over.open(topics)
        finally:
            self.opening -= 1


@contextlib.asynccontextmanager
async def two_brokers() -> AsyncIterator[tuple[Cluster, DirectMoves]]:
    made: list[DirectMoves] = []

    def moves(nodes: list[Node]) -> DirectMoves:
        if not made:
            made.append(DirectMoves(nodes))
        return made[0]

    async with running(2, moves=moves) as cluster:
        yield cluster, made[0]


def believe(cluster: Cluster, owner: int, *who: int, name: TopicName = NAME) -> None:
    """Those brokers (or all) see another owner of the topic, and are not told: they find it when they look."""
    for number, owners in enumerate(cluster.owners):
        if not who or number in who:
            owners.moved[name] = owner


async def open_with_messages(cluster: Cluster, *payloads: bytes) -> Topic:
    topic = await cluster.first.broker.topic(NAME, create=True)
    await cluster.first.publish(NAME, *payloads)
    return topic


class Watched(Producer):
    """A producer that keeps what the broker closed it with."""

    closed: pb.CommandCloseProducer | None = None

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None:
        super().received(kind, body, payload)
        if kind == pb.BaseCommand.CLOSE_PRODUCER:
            self.closed = body


class WatchedConsumer(Consumer):
    closed: pb.CommandCloseConsumer | None = None

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None:
        super().received(kind, body, payload)
        if kind == pb.BaseCommand.CLOSE_CONSUMER:
            self.closed = body


async def watched(cluster: Cluster, node: Node, name: TopicName = NAME) -> Watched:
    connection = await ClientConnection.open(node.broker.service_url)
    cluster.connections.append(connection)
    producer = connection.attach(PartKind.PRODUCER, lambda number: Watched(connection, number, str(name)))
    await producer.open(None)
    return producer


async def watched_consumer(cluster: Cluster, node: Node) -> WatchedConsumer:
    connection = await ClientConnection.open(node.broker.service_url)
    cluster.connections.append(connection)
    consumer = connection.attach(
        PartKind.CONSUMER, lambda number: WatchedConsumer(connection, number, str(NAME))
    )
    await consumer.open("s", pb.CommandSubscribe.Exclusive, earliest=True)
    return consumer


async def until(claim: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not claim():  # noqa: ASYNC110 - what is waited for is in the broker, which has no event for it.
            await asyncio.sleep(0)


# -- releasing


async def test_the_new_owner_goes_on_where_the_former_one_ended_and_nothing_is_fenced() -> None:
    async with two_brokers() as (cluster, moves):
        former, new = cluster.nodes
        topic = await open_with_messages(cluster, b"one", b"two", b"three")
        assert await former.read(NAME, "s", 1) == [b"one"]
        believe(cluster, 1)
        assert await new.read(NAME, "s", 2) == [b"two", b"three"]
        assert moves.asked == [topic.log.ledger]
        assert topic.is_closed
        # Not even asked for: the ledger has no fence.
        former.broker.log.look_for_fences()
        assert list(await former.broker.log.release([LedgerId(topic.log.ledger)])) == [topic.log.ledger]


async def test_clients_are_told_where_the_topic_is_now() -> None:
    async with two_brokers() as (cluster, _):
        former, new = cluster.nodes
        await open_with_messages(cluster, b"one")
        producer, consumer = await watched(cluster, former), await watched_consumer(cluster, former)
        believe(cluster, 1)
        await new.broker.topic(NAME)
        await until(lambda: producer.closed and consumer.closed)
        assert producer.closed is not None
        assert consumer.closed is not None
        for closed in (producer.closed, consumer.closed):
            assert closed.assignedBrokerServiceUrl == new.broker.service_url
            assert not closed.HasField("assignedBrokerServiceUrlTls")


def test_clients_are_not_sent_to_one_of_several_listeners() -> None:
    inside, outside = Addresses("pulsar://in:6650"), Addresses("pulsar://out:6650")
    own = BrokerAddress("pulsar://own:6650", "http://own:8080", "pulsar+ssl://own:6651")
    assert own.for_clients == Addresses("pulsar://own:6650", "pulsar+ssl://own:6651", "http://own:8080", "")
    one = BrokerAddress("pulsar://own:6650", "http://own:8080", listeners={"out": outside})
    assert one.for_clients is not None
    assert one.for_clients.service_url == "pulsar://out:6650"
    two = BrokerAddress("pulsar://own:6650", "http://own:8080", listeners={"in": inside, "out": outside})
    assert two.for_clients is None


async def test_no_address_is_told_where_clients_cannot_reach_it() -> None:
    async with two_brokers() as (cluster, _):
        former = cluster.first.broker
        believe(cluster, 1)
        parts = (former.open_topics, former.owners, former.log, former.background)
        assert HandOver(*parts, names_owners=False).moved_to(NAME) is None
        told = HandOver(*parts).moved_to(NAME)
        assert told is not None
        assert told.service_url == cluster.nodes[1].broker.service_url
        believe(cluster, 0)
        assert HandOver(*parts).moved_to(NAME) is None


async def test_an_unload_tells_no_address() -> None:
    async with two_brokers() as (cluster, _):
        await open_with_messages(cluster, b"one")
        producer = await watched(cluster, cluster.first)
        await cluster.first.broker.unload_topic(NAME)
        await until(lambda: producer.closed)
        assert producer.closed is not None
        assert not producer.closed.HasField("assignedBrokerServiceUrl")


async def test_publishes_in_flight_are_answered_in_order_or_not_at_all() -> None:
    async with two_brokers() as (cluster, _):
        former, new = cluster.nodes
        await open_with_messages(cluster)
        producer = await watched(cluster, former)
        receipts = []
        opening = None
        for n in range(300):
            with contextlib.suppress(ConnectionLost):
                receipts.append(await producer.send(b"%d" % n))
            if n == 100:
                believe(cluster, 1)
                opening = asyncio.ensure_future(new.broker.topic(NAME))
            await asyncio.sleep(0)
        assert opening is not None
        topic = await opening
        await until(lambda: producer.closed and all(one.done() for one in receipts))
        stored = [n for n, one in enumerate(receipts) if one.exception() is None]
        assert stored == list(range(len(stored)))
        assert len(stored) >= 100
        found = await new.read(NAME, "s", topic.log.entries)
        assert found[: len(stored)] == [b"%d" % n for n in stored]


async def test_the_same_request_again_has_the_same_answer() -> None:
    async with two_brokers() as (cluster, _):
        topic = await open_with_messages(cluster, b"one", b"two")
        ledger = LedgerId(topic.log.ledger)
        believe(cluster, 1)
        release = cluster.first.broker.hand_over.release
        first, second = await asyncio.gather(release(NAME, ledger), release(NAME, ledger))
        assert first is not None
        assert first.entries_end == 2
        assert first == second == await release(NAME, ledger)


async def test_a_ledger_that_is_not_known_is_not_released() -> None:
    async with two_brokers() as (cluster, _):
        topic = await open_with_messages(cluster, b"one")
        believe(cluster, 1)
        assert await cluster.first.broker.hand_over.release(NAME, LedgerId(topic.log.ledger + 50)) is None
        # The topic is none of that request's business.
        assert not topic.is_closed


async def test_a_former_owner_that_is_silent_is_fenced() -> None:
    async with two_brokers() as (cluster, moves):
        former, new = cluster.nodes
        topic = await open_with_messages(cluster, b"one")
        moves.is_silent = True
        believe(cluster, 1)
        assert await new.read(NAME, "s", 1) == [b"one"]
        former.broker.log.look_for_fences()
        await asyncio.wait_for(topic.wait_closed(), 10)
        believe(cluster, 1, 0)
        assert await former.broker.hand_over.release(NAME, LedgerId(topic.log.ledger)) is None


# -- brokers that disagree


async def test_a_broker_that_owns_the_topic_as_far_as_it_knows_keeps_it() -> None:
    async with two_brokers() as (cluster, _):
        former = cluster.first.broker
        topic = await open_with_messages(cluster, b"one")
        hand_over = HandOver(
            former.open_topics, former.owners, former.log, former.background, agree_max_s=0.01
        )
        with pytest.raises(NotReadyError):
            await hand_over.release(NAME, LedgerId(topic.log.ledger))
        await cluster.first.publish(NAME, b"two")


async def test_a_refusal_leaves_the_topic_where_it_is() -> None:
    async with two_brokers() as (cluster, moves):
        former, new = cluster.nodes
        topic = await open_with_messages(cluster, b"one")
        believe(cluster, 1, 1)

        async def refuse() -> None:
            raise NotReadyError("it is mine")

        moves.before = refuse
        with pytest.raises(NotReadyError):
            await new.broker.topic(NAME)
        assert not topic.is_closed
        await former.publish(NAME, b"two")
        moves.before = None
        believe(cluster, 1)
        assert await new.read(NAME, "s", 2) == [b"one", b"two"]


async def test_a_former_owner_whose_view_is_behind_waits_for_it() -> None:
    async with two_brokers() as (cluster, _):
        former, new = cluster.nodes
        await open_with_messages(cluster, b"one")
        believe(cluster, 1, 1)
        opening = asyncio.ensure_future(new.broker.topic(NAME))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not opening.done()
        assert former.broker.opened(NAME) is not None
        cluster.move(NAME, 1)
        await asyncio.wait_for(opening, 10)
        assert former.broker.opened(NAME) is None


# -- topics that are busy with something else


async def test_a_topic_that_is_being_opened_is_released_once_that_has_ended() -> None:
    async with two_brokers() as (cluster, moves):
        former, new = cluster.nodes
        await open_with_messages(cluster, b"one")
        believe(cluster, 1)
        await new.broker.topic(NAME)
        # It goes back, and away again before it is open there.
        arrived, go_on = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            arrived.set()
            await go_on.wait()

        moves.after = hold
        believe(cluster, 0)
        back = asyncio.ensure_future(former.broker.topic(NAME))
        await asyncio.wait_for(arrived.wait(), 10)
        believe(cluster, 1)
        moves.after = None
        again = asyncio.ensure_future(new.read(NAME, "s", 1))
        for _ in range(20):
            await asyncio.sleep(0)
        go_on.set()
        assert await asyncio.wait_for(again, 10) == [b"one"]
        with pytest.raises(NotReadyError):
            await back
        assert former.broker.opened(NAME) is None


async def test_a_topic_that_is_being_deleted_is_gone_at_the_new_owner_too() -> None:
    async with two_brokers() as (cluster, _):
        new = cluster.nodes[1]
        topic = await open_with_messages(cluster, b"one")
        believe(cluster, 1)
        deleting = asyncio.ensure_future(topic.delete(force=True))
        with pytest.raises(TopicNotFoundError):
            await new.broker.topic(NAME)
        await deleting


async def test_a_topic_that_is_being_sealed_keeps_its_end() -> None:
    async with two_brokers() as (cluster, _):
        new = cluster.nodes[1]
        topic = await open_with_messages(cluster, b"one", b"two")
        believe(cluster, 1)
        sealing = asyncio.ensure_future(topic.terminate())
        opened = await new.broker.topic(NAME)
        with contextlib.suppress(AnabranchError):
            await sealing
        if not opened.is_sealed:
            await opened.terminate()
        assert await new.read(NAME, "s", 2) == [b"one", b"two"]
        assert opened.log.topic_record.sealed_end == opened.log.end or opened.has_end


# -- the broker that loses topics


async def test_topics_with_clients_are_opened_at_the_new_owner_before_they_are_closed() -> None:
    async with two_brokers() as (cluster, moves):
        former, new = cluster.nodes
        topic = await open_with_messages(cluster, b"one")
        idle = await former.broker.topic(TopicName.parse("persistent://public/default/idle"), create=True)
        believe(cluster, 1, name=idle.name)
        producer = await watched(cluster, former)
        cluster.move(NAME, 1)
        await until(lambda: producer.closed and idle.is_closed)
        assert producer.closed is not None
        assert producer.closed.assignedBrokerServiceUrl == new.broker.service_url
        assert moves.told == [[NAME]]
        assert moves.asked == [topic.log.ledger]
        assert new.broker.opened(NAME) is not None
        assert new.broker.opened(idle.name) is None


async def test_topics_are_closed_when_the_new_owner_does_not_open_them() -> None:
    async with two_brokers() as (cluster, moves):
        former, new = cluster.nodes
        await open_with_messages(cluster, b"one")
        producer = await watched(cluster, former)
        moves.is_silent = True
        cluster.move(NAME, 1)
        await until(lambda: producer.closed)
        assert former.broker.opened(NAME) is None
        moves.is_silent = False
        assert await new.read(NAME, "s", 1) == [b"one"]


async def test_many_topics_move_in_waves() -> None:
    async with two_brokers() as (cluster, moves):
        former, new = cluster.nodes
        names = [TopicName.parse(f"persistent://public/default/t{n}") for n in range(2 * WAVE_TOPICS + 5)]
        producers = []
        for name in names:
            await former.broker.topic(name, create=True)
            producers.append(await former.client.producer(str(name)))
        for name in names:
            believe(cluster, 1, name=name)
        cluster.move(NAME, 1)
        await until(lambda: not former.broker.loaded() and len(new.broker.loaded()) == len(names))
        assert sorted(map(len, moves.told)) == [5, WAVE_TOPICS, WAVE_TOPICS]
        assert sorted(name for wave in moves.told for name in wave) == sorted(names)
        assert sorted(new.broker.loaded()) == sorted(names)


async def test_bundles_that_move_at_the_same_time_take_turns() -> None:
    """Else each topic of a wave would wait for those of all bundles, and the wave be closed for taking too long."""
    async with two_brokers() as (cluster, moves):
        former, new = cluster.nodes
        names = [TopicName.parse(f"persistent://public/default/t{n}") for n in range(40)]
        for name in names:
            await former.broker.topic(name, create=True)
            await former.client.producer(str(name))
            believe(cluster, 1, name=name)
        await asyncio.gather(*(former.broker.hand_over.let_go(name.__eq__) for name in names))
        assert not former.broker.loaded()
        assert sorted(new.broker.loaded()) == sorted(names)
        assert len(moves.told) == len(names)
        assert moves.most_opening == WAVES_AT_ONCE


async def test_a_topic_that_comes_back_while_it_waits_to_be_moved_stays() -> None:
    async with two_brokers() as (cluster, moves):
        former = cluster.first
        topic = await open_with_messages(cluster, b"one")
        await watched(cluster, former)
        moves.is_silent = True
        # The wave is told to the new owner, which does not open it; meanwhile the topic comes back.
        believe(cluster, 1)
        moved = former.broker.hand_over
        moved.owners_changed(frozenset())
        assert not moves.told
        cluster.move(NAME, 0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not topic.is_closed


async def test_a_broker_that_ends_gives_all_its_topics_away() -> None:
    async with two_brokers() as (cluster, moves):
        former, new = cluster.nodes
        await open_with_messages(cluster, b"one")
        other = TopicName.parse("persistent://public/default/other")
        await former.broker.topic(other, create=True)
        await watched(cluster, former)
        giving = asyncio.ensure_future(former.broker.hand_over.give_away())
        await asyncio.sleep(0)
        believe(cluster, 1, name=other)
        cluster.move(NAME, 1)
        await asyncio.wait_for(giving, 10)
        assert not former.broker.loaded()
        assert [NAME] in moves.told
        assert new.broker.opened(NAME) is not None


# -- everything at once


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_brokers_believe_nothing_receipted_is_lost_or_out_of_order(seed: int) -> None:
    chance = random.Random(seed)
    async with two_brokers() as (cluster, moves):
        receipted: list[tuple[tuple[int, int], bytes]] = []
        tasks: set[asyncio.Task[None]] = set()
        await cluster.first.broker.topic(NAME, create=True)

        async def trouble() -> None:
            for _ in range(chance.randrange(30)):
                await asyncio.sleep(0)
            if chance.random() < 0.2:
                raise NotReadyError("refused")

        moves.before = moves.after = trouble

        async def publish(node: Node, number: int) -> None:
            with contextlib.suppress(AnabranchError, TimeoutError):
                topic = await node.broker.topic(NAME)
                entry, ledger = b"%d" % number, topic.log.ledger
                place = topic.log.next_entry
                topic.publishing.publish_own(entry, 1)
                while topic.log.confirmed_end <= place:
                    if topic.is_closed and topic.log.confirmed_end <= place:
                        await topic.wait_closed()
                        for _ in range(5):
                            await asyncio.sleep(0)
                        if topic.log.confirmed_end <= place:
                            return
                        break
                    await asyncio.sleep(0)
                receipted.append(((ledger, place), entry))

        for number in range(150):
            match chance.randrange(8):
                case 0:
                    believe(cluster, chance.randrange(2), chance.randrange(2))
                case 1:
                    cluster.move(NAME, chance.randrange(2))
                case 2:
                    moves.is_silent = chance.random() < 0.3
                case 3:
                    for node in cluster.nodes:
                        node.broker.log.look_for_fences()
                case _:
                    task = asyncio.create_task(publish(chance.choice(cluster.nodes), number))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
        moves.before = moves.after = None
        moves.is_silent = False
        cluster.move(NAME, chance.randrange(2))
        async with asyncio.timeout(60):
            while tasks:
                await asyncio.wait(tasks)
        owner = cluster.nodes[cluster.owners[0].moved[NAME]]
        async with asyncio.timeout(60):
            topic = await owner.broker.topic(NAME)
        found: dict[tuple[int, int], bytes] = {}
        at = topic.log.first
        while at < topic.log.end:
            ledger, entries = await topic.log.read(at, 100, 1 << 20)
            found |= {(ledger, number): bytes(data) for number, _, data in entries}
            at = topic.log.normalise((ledger, entries[-1][0] + 1))
        for place, entry in receipted:
            assert found.get(place) == entry
        assert len(receipted) > 10
