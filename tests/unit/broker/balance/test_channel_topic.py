"""The channel's topic as others meet it: brokers over their links, clients, operators."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable

import pytest

from anabranch.balance.core.codec import decode_change
from anabranch.balance.core.states import BrokerRun, BundleChange
from anabranch.balance.core.transfer import owned
from anabranch.broker.balance.channel.channel_calls import LinkedChannel
from anabranch.broker.balance.channel.state_log import ChangeRejected, ChannelUnavailable
from anabranch.broker.balance.channel.topic_state_log import TopicStateLog
from anabranch.broker.errors import NotAllowedError
from anabranch.broker.topic.topic import Topic
from anabranch.client.errors import RequestRefused
from anabranch.model.bundles import BundleName
from anabranch.model.leaders_topics import CHANNEL_TOPIC
from unit.broker.balance.topic_channel import Elected
from unit.broker.scalable.cluster import NOW_MS, Cluster, Node, running

X = BundleName.parse("acme/sales/0x00000000_0x80000000")
Y = BundleName.parse("acme/sales/0x80000000_0xffffffff")
REST = "persistent/pulsar/system/loadbalancer-service-unit-state"


def run_of(node: Node) -> BrokerRun:
    return BrokerRun(node.broker.registry.me.id, node.broker.run_id)


def linked(node: Node, election: Elected) -> TopicStateLog:
    """The channel of a broker, over its real links."""

    async def open_topic() -> Topic:
        await node.broker.new_topics.create(CHANNEL_TOPIC)
        return await node.broker.topic(CHANNEL_TOPIC)

    calls = LinkedChannel(node.broker.peers)
    made = TopicStateLog(run_of(node), election, calls, open_topic, lambda: NOW_MS)
    calls.serve(made)
    return made


@contextlib.asynccontextmanager
async def two_brokers() -> AsyncIterator[tuple[Cluster, Elected, list[TopicStateLog]]]:
    """The first one leads."""
    async with running(2) as cluster:
        election = Elected(run_of(cluster.first))
        logs = [linked(node, election) for node in cluster.nodes]
        for log in logs:
            await log.start()
        await logs[0].lead(1)
        yield cluster, election, logs
        for log in logs:
            await log.close()


async def until(claim: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not claim():  # noqa: ASYNC110  # What is waited for is in brokers, which have no event for it.
            await asyncio.sleep(0.001)


def own(bundle: BundleName, to: BrokerRun, version: int = 1) -> BundleChange:
    return owned(bundle, version, to, to, 0, "a lookup")


async def test_brokers_write_and_read_over_their_links() -> None:
    async with two_brokers() as (cluster, _, (leader, other)):
        me = run_of(cluster.nodes[1])
        await other.append(own(X, me))
        assert other.fold.get(X) == leader.fold.get(X) == own(X, me)
        with pytest.raises(ChangeRejected, match="version 1 does not follow version 1"):
            await other.append(own(X, me))
        await leader.append(own(Y, run_of(cluster.first)))
        await until(lambda: other.fold.snapshot() == leader.fold.snapshot())
        with pytest.raises(ChangeRejected, match="writes for"):
            await other.append(own(Y, run_of(cluster.first), 2))


async def test_a_change_to_a_leader_that_cannot_be_reached_is_in_doubt() -> None:
    async with two_brokers() as (cluster, election, (_, other)):
        await cluster.first.broker.peers.close()
        election.tell(BrokerRun("127.0.0.1:1", "gone"))
        with pytest.raises(ChannelUnavailable):
            await other.append(own(X, run_of(cluster.nodes[1])))
        assert not other.is_following


async def test_clients_may_read_the_topic() -> None:
    async with two_brokers() as (cluster, _, (leader, _other)):
        change = own(X, run_of(cluster.first))
        await leader.append(change)
        consumer = await cluster.first.client.consumer(str(CHANNEL_TOPIC), "curious", earliest=True)
        while True:
            message = await consumer.receive()
            if message.payload:
                break
        assert json.loads(message.payload)["action"] == "own"
        assert decode_change(str(X), message.payload) == change
        await consumer.close()


async def test_clients_may_not_write_to_the_topic_seal_it_empty_it_or_delete_it() -> None:
    async with two_brokers() as (cluster, _, (leader, _other)):
        await leader.append(own(X, run_of(cluster.first)))
        with pytest.raises(RequestRefused, match="is written by brokers only"):
            await cluster.first.client.producer(str(CHANNEL_TOPIC), None)
        for method, path in (
            ("DELETE", REST),
            ("DELETE", f"{REST}?force=true"),
            ("DELETE", f"{REST}/truncate"),
            ("POST", f"{REST}/terminate"),
        ):
            answer = await cluster.first.rest(method, path)
            assert 400 <= answer.status_code < 500, (method, path, answer.status_code)
            assert "written by brokers only" in answer.text
        with pytest.raises(NotAllowedError):
            await cluster.first.broker.discard_topic(CHANNEL_TOPIC)
        await leader.append(own(Y, run_of(cluster.first)))
        assert leader.fold.get(Y) is not None


async def test_the_topic_keeps_what_the_leader_does_not_trim_whatever_its_namespace_says() -> None:
    async with two_brokers() as (cluster, _, (leader, _other)):
        retention = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        await cluster.first.rest("POST", "namespaces/pulsar/system/retention", json=retention)
        for bundle in (X, Y):
            await leader.append(own(bundle, run_of(cluster.first)))
        topic = cluster.first.broker.opened(CHANNEL_TOPIC)
        assert topic is not None
        # The snapshot that the leader began with has trimmed the mark of its term.
        await until(lambda: topic.log.kept_first[1] == 1)
        had = topic.log.entries
        await topic.upkeep.maintain()
        assert topic.log.entries == had
        assert not topic.upkeep.is_retained_by_default


async def test_a_durable_subscription_does_not_hold_up_the_trim() -> None:
    async with two_brokers() as (cluster, _, (leader, _other)):
        consumer = await cluster.first.client.consumer(str(CHANNEL_TOPIC), "slow", earliest=True)
        await consumer.close()
        first = cluster.first.broker.opened(CHANNEL_TOPIC)
        assert first is not None
        await leader.append(own(X, run_of(cluster.first)))
        await first.close()
        await leader.lead(2)
        again = cluster.first.broker.opened(CHANNEL_TOPIC)
        assert again is not None
        await until(lambda: len(again.log.topic_record.ledgers) == 1)
        assert leader.fold.get(X) is not None
        assert again.subscriptions["slow"].backlog() <= again.log.entries


async def test_a_term_cannot_begin_where_the_topic_cannot_be_opened() -> None:
    async with two_brokers() as (_, _, (_, other)):
        await until(lambda: other.is_following)
        with pytest.raises(ChannelUnavailable, match="term 2 cannot begin"):
            await other.lead(2)
        assert other.fold.term == 1
