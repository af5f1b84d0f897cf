"""Lists of a namespace's topics by pattern, and watches of them, over a real broker's socket."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from random import Random
from typing import Any

import pytest

from anabranch.broker.broker import Broker
from anabranch.broker.connection.topic_patterns import Pattern
from anabranch.broker.policy.bounded_patterns import PATTERN_CHARS_MAX
from anabranch.broker.security.rights import AllowAll
from anabranch.model.names import InvalidName, NamespaceName, TopicName
from anabranch.model.topic_hash import topic_hash
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.pulsar_pb2 import BaseCommand as C
from unit.broker.scalable.brokers import BrokerLab, Peer

SPACE = "persistent://public/default"


async def watch(peer: Peer, number: int = 1, **more: Any) -> pb.BaseCommand:
    values = {"namespace": "public/default", "topics_pattern": f"{SPACE}/a-.*", "watcher_id": number, **more}
    return await peer.ask(C.WATCH_TOPIC_LIST, "watchTopicList", **values)


async def update(peer: Peer) -> pb.CommandWatchTopicUpdate:
    return (await peer.receive(C.WATCH_TOPIC_UPDATE)).watchTopicUpdate


def name(local: str) -> TopicName:
    return TopicName.parse(f"{SPACE}/{local}")


async def test_a_watch_tells_what_there_is_and_what_comes_and_goes(broker: Broker, peer: Peer) -> None:
    assert peer.connected.feature_flags.supports_topic_watchers
    for local in ("a-1", "b-1"):
        await broker.new_topics.create(name(local))
    first = (await watch(peer)).watchTopicListSuccess
    assert (list(first.topic), first.watcher_id) == ([f"{SPACE}/a-1"], 1)
    assert first.topics_hash == topic_hash([f"{SPACE}/a-1"])
    for local in ("a-2", "b-2", "a-parts-partition-0"):
        await broker.new_topics.create(name(local))
    added: set[str] = set()
    while len(added) < 2:
        came = await update(peer)
        added |= set(came.new_topics)
    assert added == {f"{SPACE}/a-2", f"{SPACE}/a-parts-partition-0"}
    assert came.topics_hash == topic_hash([f"{SPACE}/a-1", *added])
    await broker.delete_topic(name("a-1"))
    gone = await update(peer)
    assert (list(gone.new_topics), list(gone.deleted_topics)) == ([], [f"{SPACE}/a-1"])
    # A topic made by use comes too.
    await broker.topic(name("a-3"), create=True)
    assert list((await update(peer)).new_topics) == [f"{SPACE}/a-3"]


async def test_a_client_that_has_the_list_already_is_not_told_it_again(broker: Broker, peer: Peer) -> None:
    await broker.new_topics.create(name("a-1"))
    known = (await watch(peer)).watchTopicListSuccess.topics_hash
    again = (await watch(peer, topics_hash=known)).watchTopicListSuccess
    assert (list(again.topic), again.topics_hash) == ([], known)
    # The same watcher asks whether it has missed something.
    await broker.new_topics.create(name("a-2"))
    later = (await watch(peer, topics_hash=known)).watchTopicListSuccess
    assert set(later.topic) == {f"{SPACE}/a-1", f"{SPACE}/a-2"}


async def test_lists_that_are_asked_for_at_once_are_made_one_a_turn(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pattern may take 50 ms of processor time, and one read may bring hundreds of them."""
    await broker.new_topics.create(name("a-1"))
    loop, turn, made_in, reads = asyncio.get_running_loop(), 0, [], 0
    matching, names = Pattern.matching, broker.resources.topic_names

    def count() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(count)

    def counted(self: Pattern, topics: Collection[str]) -> list[str]:
        made_in.append(turn)
        return matching(self, topics)

    async def read(*given: Any) -> list[TopicName]:
        nonlocal reads
        reads += 1
        return await names(*given)

    monkeypatch.setattr(Pattern, "matching", counted)
    monkeypatch.setattr(broker.resources, "topic_names", read)
    count()
    given = {"namespace": "public/default", "topics_pattern": f"{SPACE}/a.*"}
    for _ in range(50):
        peer.start(C.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace", **given)
    for _ in range(50):
        answer = await peer.receive(C.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        assert list(answer.getTopicsOfNamespaceResponse.topics) == [f"{SPACE}/a-1"]
    assert len(set(made_in)) == len(made_in) == 50
    assert reads < 25


async def test_a_closed_watch_is_told_nothing_and_others_are(broker: Broker, peer: Peer) -> None:
    await watch(peer, 1)
    await watch(peer, 2)
    await peer.ask(C.WATCH_TOPIC_LIST_CLOSE, "watchTopicListClose", watcher_id=1)
    await broker.new_topics.create(name("a-1"))
    assert (await update(peer)).watcher_id == 2
    assert not [one for one in await peer.settle() if one.type == C.WATCH_TOPIC_UPDATE]
    # Closing what is not there is no error.
    assert (await peer.ask(C.WATCH_TOPIC_LIST_CLOSE, "watchTopicListClose", watcher_id=9)).type == C.SUCCESS


async def test_a_connection_that_is_lost_ends_its_watches(lab: BrokerLab, broker: Broker, peer: Peer) -> None:
    await watch(peer)
    await peer.close()
    other = await lab.peer(broker)
    await watch(other)
    await broker.new_topics.create(name("a-1"))
    assert list((await update(other)).new_topics) == [f"{SPACE}/a-1"]


async def test_what_cannot_be_watched_is_refused(broker: Broker, peer: Peer) -> None:
    assert (await watch(peer, topics_pattern="(")).error.error == pb.InvalidTopicName
    assert (
        await watch(peer, topics_pattern="x" * (PATTERN_CHARS_MAX + 1))
    ).error.error == pb.InvalidTopicName
    assert (await watch(peer, namespace="public/none")).type == C.ERROR
    assert (await watch(peer)).type == C.WATCH_TOPIC_LIST_SUCCESS


class NoListing(AllowAll):
    async def may_list_topics(self, role: str, namespace: NamespaceName) -> bool:
        return False


async def test_a_watch_needs_the_right_to_list_topics(lab: BrokerLab) -> None:
    peer = await lab.peer(await lab.broker(authorizer=NoListing()))
    assert (await watch(peer)).error.error == pb.AuthorizationError


def test_patterns_are_for_names_without_domain_and_partition() -> None:
    pattern = Pattern("persistent://public/default/a-.")
    assert pattern.matching([f"{SPACE}/a-1", f"{SPACE}/a-2-partition-3", f"{SPACE}/a-10", f"{SPACE}/b"]) == [
        f"{SPACE}/a-1",
        f"{SPACE}/a-2-partition-3",
    ]
    with pytest.raises(InvalidName):
        Pattern("[")


@pytest.mark.parametrize("text", ["(a+)+b", "(a|a)*b", "(a|aa)+b", "(.*a){20}b", "(a*)*b"])
def test_no_pattern_tries_every_way_to_match(text: str) -> None:
    """That would take years."""
    names = [f"{SPACE}/" + "a" * 200] * 100
    assert Pattern(f"public/default/{text}").matching(names) == []


@pytest.mark.parametrize(
    ("text", "local"),
    [
        (r"\Qa.b*\E.*", "a.b*c"),
        (r"orders-\d{1,3}", "orders-42"),
        (r"(?<region>eu|us)-.+", "eu-1"),
        ("ä.*", "äöü"),
    ],
)
def test_patterns_are_read_as_pulsars_broker_reads_them(text: str, local: str) -> None:
    assert Pattern(f"public/default/{text}").matching([f"{SPACE}/{local}", f"{SPACE}/no"]) == [
        f"{SPACE}/{local}"
    ]


@pytest.mark.parametrize(
    "text", [r"public/default/(?!secret).*", r"(a)\1", "a{1001}", "(a{999}){999}", "\udc80", "("]
)
def test_what_cannot_be_said_in_that_language_is_refused(text: str) -> None:
    with pytest.raises(InvalidName, match="cannot be read here"):
        Pattern(text)


async def test_a_pattern_that_takes_too_long_is_left_to_the_client(broker: Broker, peer: Peer) -> None:
    for seed in range(200):
        await broker.new_topics.create(name("".join(Random(seed).choices("ab", k=1000))))
    costly = f"{SPACE}/[ab]*a[ab]{{300}}"
    answer = await peer.ask(
        C.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace", namespace="public/default", topics_pattern=costly
    )
    found = answer.getTopicsOfNamespaceResponse
    assert (len(found.topics), found.filtered) == (200, False)
    refused = await watch(peer, topics_pattern=costly)
    assert refused.error.error == pb.InvalidTopicName
    assert "takes too long" in refused.error.message
    # It is not kept either.
    again = await watch(peer, topics_pattern=f"{SPACE}/a.*")
    assert again.type == C.WATCH_TOPIC_LIST_SUCCESS


async def test_a_namespace_that_is_not_there_has_no_topics(peer: Peer) -> None:
    answer = await peer.ask(C.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace", namespace="public/none")
    assert answer.type == C.GET_TOPICS_OF_NAMESPACE_RESPONSE
    assert list(answer.getTopicsOfNamespaceResponse.topics) == []


async def test_watches_of_the_same_and_of_other_patterns_end_with_what_there_is(
    lab: BrokerLab, broker: Broker, peer: Peer
) -> None:
    peers = {"a-.*": peer, "a-[0-4]": await lab.peer(broker), ".*": await lab.peer(broker)}
    also = await lab.peer(broker)
    for text, one in (*peers.items(), ("a-.*", also)):
        assert list((await watch(one, topics_pattern=f"{SPACE}/{text}")).watchTopicListSuccess.topic) == []
    locals = [f"a-{n}" for n in range(8)] + ["b"]
    for local in locals:
        await broker.new_topics.create(name(local))
    for local in locals[::2]:
        await broker.delete_topic(name(local))
    left = [f"{SPACE}/{local}" for local in locals[1::2]]
    wanted = {
        "a-.*": [one for one in left if "/a-" in one],
        "a-[0-4]": [one for one in left if one[-1] in "01234"],
        ".*": left,
    }
    for text, one in (*peers.items(), ("a-.*", also)):
        told: set[str] = set()
        came = pb.CommandWatchTopicUpdate()
        while came.topics_hash != topic_hash(wanted[text]):
            came = await update(one)
            told = (told | set(came.new_topics)) - set(came.deleted_topics)
        assert told == set(wanted[text])


async def test_a_watch_asked_for_twice_at_once_is_one_and_ends_with_its_connection(
    broker: Broker, lab: BrokerLab, peer: Peer
) -> None:
    """What is left behind would be told of every change, for ever."""
    lists = broker.requests.topic_lists
    for number in (1, 1, 1, 2):
        peer.start(
            C.WATCH_TOPIC_LIST,
            "watchTopicList",
            namespace="public/default",
            topics_pattern=f"{SPACE}/a-.*",
            watcher_id=number,
        )
    for _ in range(4):
        await peer.receive(C.WATCH_TOPIC_LIST_SUCCESS)
    assert lists.watching == 2
    await peer.close()
    async with asyncio.timeout(30):
        while lists.watching:  # noqa: ASYNC110 - nothing tells of it.
            await asyncio.sleep(0.01)


async def test_no_more_watches_than_the_limit_are_let_in_at_once(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.broker.connection.topic_lists.WATCHES_MAX", 5)
    started = [
        peer.start(
            C.WATCH_TOPIC_LIST, "watchTopicList", namespace="public/default", topics_pattern="a", watcher_id=n
        )
        for n in range(20)
    ]
    answers = [
        await peer.wait_for(lambda c, n=n: n in (c.error.request_id, c.watchTopicListSuccess.request_id))  # type: ignore[misc]
        for n in started
    ]
    assert [one.HasField("error") for one in answers] == [False] * 5 + [True] * 15
