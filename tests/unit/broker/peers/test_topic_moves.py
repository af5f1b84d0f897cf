"""Topics that move between brokers over their links."""

from __future__ import annotations

import asyncio

from anabranch.model.names import TopicName
from anabranch.model.position import Incarnation, LedgerId
from unit.broker.scalable.cluster import running

NAME = TopicName.parse("persistent://public/default/t")


async def test_a_topic_is_released_over_the_link() -> None:
    async with running(2) as cluster:
        former, new = cluster.nodes
        topic = await former.broker.topic(NAME, create=True)
        await former.publish(NAME, b"one", b"two")
        assert await former.read(NAME, "s", 1) == [b"one"]
        ledger = LedgerId(topic.log.ledger)
        cluster.move(NAME, 1)
        assert await new.read(NAME, "s", 1) == [b"two"]
        # It was released and not fenced.
        former.broker.log.look_for_fences()
        assert (await former.broker.log.release([ledger]))[ledger].entries_end == 2
        assert former.broker.peers.is_linked(new.broker.service_url) or new.broker.peers.is_linked(
            former.broker.service_url
        )


async def test_a_topic_with_clients_is_opened_at_its_new_owner() -> None:
    async with running(2) as cluster:
        former, new = cluster.nodes
        topic = await former.broker.topic(NAME, create=True)
        await former.client.producer(str(NAME))
        cluster.move(NAME, 1)
        await asyncio.wait_for(topic.wait_closed(), 10)
        async with asyncio.timeout(10):
            while new.broker.opened(NAME) is None:  # noqa: ASYNC110 - an open topic is no event.
                await asyncio.sleep(0)


async def test_the_ledger_of_a_broker_that_has_ended_is_fenced() -> None:
    async with running(2) as cluster:
        former, new = cluster.nodes
        await former.broker.topic(NAME, create=True)
        await former.publish(NAME, b"one")
        await former.broker.registry.close()
        async with asyncio.timeout(10):
            # A watch tells of it.
            while new.broker.registry.by_incarnation(former.broker.log.incarnation):  # noqa: ASYNC110
                await asyncio.sleep(0)
        for owners in cluster.owners:
            owners.moved[NAME] = 1
        assert await new.read(NAME, "s", 1) == [b"one"]
        former.broker.log.look_for_fences()
        await asyncio.sleep(0)
        opened = former.broker.opened(NAME)
        assert opened is None or opened.is_closed


async def test_a_broker_that_cannot_say_leaves_the_ledger_to_be_fenced() -> None:
    async with running(2) as cluster:
        former, new = cluster.nodes
        await former.broker.topic(NAME, create=True)
        for owners in cluster.owners:
            owners.moved[NAME] = 1
        last_word, path = new.broker.moves.last_word, "/managed-ledgers/public/default/persistent/t"
        assert await last_word(former.broker.log.incarnation, LedgerId(10**9), path) is None
        assert await last_word(Incarnation("never heard of"), LedgerId(1), path) is None


async def test_a_broker_that_drains_gives_its_topics_to_the_others() -> None:
    async with running(2) as cluster:
        former, new = cluster.nodes
        await former.broker.topic(NAME, create=True)
        await former.publish(NAME, b"one")
        producer = await former.client.producer(str(NAME))
        draining = asyncio.ensure_future(former.broker.drain())
        cluster.move(NAME, 1)
        await asyncio.wait_for(draining, 20)
        assert not former.broker.loaded()
        assert new.broker.opened(NAME) is not None
        assert producer.next_sequence == 0
        assert await new.read(NAME, "s", 1) == [b"one"]
