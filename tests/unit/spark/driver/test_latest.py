"""Ends of topics that are followed: what moves is told, at once, by one request for all of them; nothing is missed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.connection import followed_ends
from anabranch.broker.connection.followed_ends import FollowedEnds
from anabranch.client.transport.pool import Connections
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.cut import BEGINNING, MessagePosition
from anabranch.model.names import TopicName
from anabranch.spark.driver.latest import Ends, Following
from anabranch.wire import pulsar_pb2 as pb
from harness.simple_client import Hidden
from unit.broker.admin.conftest import NOW_MS, Rest, serving

TOPICS = [f"persistent://public/default/t{n}" for n in range(5)]
ONE, OTHER, *_ = TOPICS
A = "a" * 32
LONG_S = 60.0


class Query:
    """What a driver has, of its own connections."""

    def __init__(self, rest: Rest) -> None:
        self.connections = Connections(rest.broker.service_url)
        self.following = Following()
        self.ends = Ends(self.connections, random.Random(1), self.following)

    async def known(self) -> list[MessagePosition | None]:
        """What was told of all topics, without asking for any that is followed."""
        return [await self.ends.of(topic, now=False) for topic in TOPICS]

    async def close(self) -> None:
        await self.ends.keep(())
        await self.following.close()
        await self.connections.close()


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    config = BrokerConfig(default_retention_time_in_minutes=-1, default_retention_size_in_mb=-1)
    async with serving(MemoryMetadata(lambda: NOW_MS), config) as made:
        yield made


@pytest.fixture
async def query(rest: Rest) -> AsyncIterator[Query]:
    for topic in TOPICS:
        await rest.publish(topic, b"first")
    made = Query(rest)
    yield made
    await made.close()


def asked(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each request for ends."""
    found: list[int] = []
    perform = rest.broker.requests.perform

    def counted(session: object, kind: int, command: pb.BaseCommand) -> None:
        if kind == pb.BaseCommand.GET_LAST_MESSAGE_ID:
            found.append(command.getLastMessageId.consumer_id)
        perform(session, kind, command)  # type: ignore[arg-type]

    monkeypatch.setattr(rest.broker.requests, "perform", counted)
    return found


def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer has no time for more than two ends."""
    monkeypatch.setattr(followed_ends, "AT_ONCE", 2)
    monkeypatch.setattr(followed_ends, "TURN_S", 0.0)


async def test_one_request_tells_all_ends_that_have_moved(
    rest: Rest, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await query.known()
    requests = asked(rest, monkeypatch)
    moved = [(await rest.publish(topic, b"more", b"and more"))[-1] for topic in TOPICS[1:4]]
    assert await query.known() == before, "nobody has looked"
    await query.following.look()
    ends: list[MessagePosition | None] = [(ledger, entry + 1, 0) for ledger, entry in moved]
    assert await query.known() == [before[0], *ends, before[4]]
    assert len(requests) == 1
    await query.following.look()
    assert await query.known() == [before[0], *ends, before[4]]
    assert len(requests) == 2


async def test_how_much_there_is_comes_with_the_end(rest: Rest, query: Query) -> None:
    await query.known()
    first = query.ends.kept(ONE)
    assert first is not None
    assert first.entries == 1
    assert first.bytes > len(b"first")
    await rest.publish(ONE, bytes(1000))
    await query.following.look()
    more = query.ends.kept(ONE)
    assert more is not None
    assert more.entries == 2
    assert more.bytes >= first.bytes + 1000


async def test_waiting_ends_with_the_first_end_that_moves(rest: Rest, query: Query) -> None:
    await query.known()
    following = query.following
    async with asyncio.timeout(LONG_S / 2), asyncio.TaskGroup() as group:
        waiting = group.create_task(following.wait(LONG_S, following.count))
        while not any(session.followed.is_waiting for session in rest.broker.sessions):  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not waiting.done()
        ((ledger, entry),) = await rest.publish(OTHER, b"more")
    assert (await query.known())[1] == (ledger, entry + 1, 0)


async def test_what_was_new_before_is_not_waited_for(rest: Rest, query: Query) -> None:
    await query.known()
    following = query.following
    count = following.count
    await rest.publish(ONE, b"more")
    async with asyncio.timeout(LONG_S / 2):
        await following.wait(LONG_S, count)
        assert following.count > count
        # Something else, which comes before the wait: a layout, say.
        await following.wait(LONG_S, count)


async def test_a_wait_ends_when_something_else_is_new(query: Query) -> None:
    await query.known()
    following = query.following
    async with asyncio.timeout(LONG_S / 2), asyncio.TaskGroup() as group:
        group.create_task(following.wait(LONG_S, following.count))
        group.create_task(asyncio.to_thread(lambda: None)).add_done_callback(lambda _: following.note())
    async with asyncio.timeout(LONG_S / 2):
        # The broker has another question of this connection waiting, and answers it for this one.
        await following.look()


async def test_without_news_a_wait_ends_in_time(query: Query) -> None:
    await query.known()
    count = query.following.count
    async with asyncio.timeout(LONG_S):
        await query.following.wait(0.05, count)
    assert query.following.count == count


async def test_hidden_entries_move_no_end_before_they_are_shown(rest: Rest, query: Query) -> None:
    await query.known()
    producer = await rest.client.producer(ONE, hidden=Hidden("job", 0, A))
    ledger, entry = await (await producer.send(b"hidden"))
    await query.following.look()
    assert await query.ends.of(ONE, now=False) == (ledger, entry, 0)
    assert query.ends.is_hiding(ONE)
    await rest.call("PUT", "/admin/v2/anabranch/writes/job/0", json={"winners": [A], "topics": [ONE]})
    path = "/admin/v2/anabranch/reveal/persistent/public/default/t0"
    await rest.call("POST", path, 204, params={"write": "job", "batch": "0"})
    await query.following.look()
    assert await query.ends.of(ONE, now=False) == (ledger, entry + 1, 0)
    assert not query.ends.is_hiding(ONE)


async def test_a_topic_that_is_closed_is_news_and_is_asked_again(rest: Rest, query: Query) -> None:
    await query.known()
    following = query.following
    async with asyncio.timeout(LONG_S / 2), asyncio.TaskGroup() as group:
        group.create_task(following.wait(LONG_S, following.count))
        group.create_task(rest.broker.unload_topic(TopicName.parse(OTHER)))
    await rest.publish(OTHER, b"more")
    end = (await query.known())[1]
    assert end is not None
    assert end > BEGINNING
    assert end == await query.ends.of(OTHER), "it is the end as it is, not as it was"


async def test_a_lost_connection_is_news_and_all_ends_are_asked_again(rest: Rest, query: Query) -> None:
    await query.known()
    following = query.following
    connection = await query.connections.owner(ONE)
    async with asyncio.timeout(LONG_S / 2), asyncio.TaskGroup() as group:
        group.create_task(following.wait(LONG_S, following.count))
        connection.abort()
    moved = [(await rest.publish(topic, b"more"))[0] for topic in TOPICS]
    await following.look()
    assert await query.known() == [(ledger, entry + 1, 0) for ledger, entry in moved]


async def test_consumers_that_are_closed_are_followed_no_more(rest: Rest, query: Query) -> None:
    await query.known()
    (session,) = [one for one in rest.broker.sessions if len(one.followed)]
    assert len(session.followed) == len(TOPICS)
    await query.ends.keep({ONE})
    assert len(session.followed) == 1
    await rest.publish(OTHER, b"more")
    await query.following.look()
    assert query.ends.kept(OTHER) is None


async def test_many_ends_are_told_in_several_answers_and_none_is_missed(
    rest: Rest, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    await query.known()
    few_at_once(monkeypatch)
    requests = asked(rest, monkeypatch)
    moved = [(await rest.publish(topic, b"more"))[0] for topic in TOPICS]
    await query.following.look()
    assert await query.known() == [(ledger, entry + 1, 0) for ledger, entry in moved]
    assert len(requests) == 3


async def test_a_look_ends_although_ends_move_faster_than_they_are_told(
    rest: Rest, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    await query.known()
    few_at_once(monkeypatch)
    first = [(await rest.publish(topic, b"more"))[0] for topic in TOPICS]
    told = FollowedEnds.moved

    async def moved(self: FollowedEnds, wait_ms: int) -> followed_ends.Moved:
        answer = await told(self, wait_ms)
        for topic in TOPICS:
            await rest.publish(topic, b"and more")
        return answer._replace(has_more=True)

    monkeypatch.setattr(FollowedEnds, "moved", moved)
    async with asyncio.timeout(LONG_S):
        await query.following.look()
    known = await query.known()
    assert all(at is not None and at >= (*one, 0) for at, one in zip(known, first, strict=True))


async def test_of_questions_that_come_together_one_is_answered_with_all_and_the_others_say_that_there_is_more(
    rest: Rest, query: Query
) -> None:
    await query.known()
    (session,) = [one for one in rest.broker.sessions if len(one.followed)]
    for topic in TOPICS:
        await rest.publish(topic, b"more")
    answers = await asyncio.gather(*(session.followed.moved(0) for _ in range(20)))
    assert [len(one.ends) for one in answers] == [*[0] * 19, len(TOPICS)]
    assert [one.has_more for one in answers] == [*[True] * 19, False]


async def test_one_consumer_of_a_subscription_is_followed_on_a_connection(rest: Rest) -> None:
    await rest.publish(ONE, b"first")
    consumers = [await rest.client.consumer(ONE, "shared", kind=pb.CommandSubscribe.Shared) for _ in range(3)]
    (session,) = [one for one in rest.broker.sessions if one.consumers]
    held = [one for one in session.consumers.values() if one is not None]
    subscription = (await rest.broker.topic(TopicName.parse(ONE))).subscriptions["shared"]
    assert [subscription.follow_end(one, session.followed) for one in held] == [True, False, False]
    # Again and again: that changes nothing.
    assert [subscription.follow_end(one, session.followed) for one in held] == [True, False, False]
    await consumers[0].close()
    assert [subscription.follow_end(one, session.followed) for one in held[1:]] == [True, False]
    assert len(session.followed) == 1
