"""Chunks of one message reach one consumer, whoever comes, goes or hands something back: the message is put together
and acknowledged in the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.broker.dispatch.chunks import CHUNKS_MAX, BegunChunks, name_of
from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.observe.subscription_stats import subscription_stats
from anabranch.model.position import Position
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.subscription_types import KEY_SHARED, SHARED
from unit.broker.rig import RecordingLink, Rig

KEYS = [f"key-{n}" for n in range(20)]


def chunk(rig: Rig, message: str, number: int, of: int, key: str | None = None) -> Position:
    body = f"{message}/{number}/{of}".encode()
    return rig.publish(1, key=key, chunk=(message, number, of), body=body)[0]


@pytest.mark.parametrize("has_one_between", [False, True])
def test_chunks_follow_the_holder_of_a_key_that_has_changed_hands(rig: Rig, has_one_between: bool) -> None:
    old, old_link = rig.consumer(KEY_SHARED)
    first = {key: chunk(rig, key, 0, 3, key) for key in KEYS}
    _, new_link = rig.consumer(KEY_SHARED)
    # Another producer of the same key: its message waits until the old consumer is through with the key.
    between = {key: rig.publish(1, key=key)[0] for key in KEYS} if has_one_between else {}
    rest = {key: [chunk(rig, key, n, 3, key) for n in (1, 2)] for key in KEYS}
    rig.loop.settle()
    whole = {at for key in KEYS for at in (first[key], *rest[key])}
    assert whole <= set(old_link.places)
    assert not new_link.places
    rig.ack(old, whole)
    later = {key: rig.publish(1, key=key)[0] for key in KEYS}
    rig.loop.settle()
    moved = {message.key for message in new_link.messages}
    assert moved
    for key in moved:
        wanted = [between[key], later[key]] if has_one_between else [later[key]]
        assert [message.at for message in new_link.messages if message.key == key] == wanted


def test_a_chunk_waits_for_the_holder_of_its_message_though_the_key_is_anothers_by_now(rig: Rig) -> None:
    old, old_link = rig.consumer(KEY_SHARED, permits=len(KEYS))
    for key in KEYS:
        chunk(rig, key, 0, 2, key)
    rig.loop.settle()
    old_link.take()
    last = [chunk(rig, key, 1, 2, key) for key in KEYS]
    _, new_link = rig.consumer(KEY_SHARED)
    assert not old_link.places
    assert not new_link.places
    assert subscription_stats(rig.subscription)["msgInReplay"] == len(KEYS)
    rig.subscription.flow(old, 100)
    rig.loop.settle()
    assert old_link.take() == last
    assert not new_link.places


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_a_message_begins_again_with_whoever_gets_its_first_chunk_again(rig: Rig, kind: int) -> None:
    first, first_link = rig.consumer(kind, permits=2, name="first")
    places = [chunk(rig, "m", n, 4, "key-1") for n in range(4)]
    rig.loop.settle()
    assert first_link.take() == places[:2]
    # Somebody else has room; the rest waits for the first one, until that hands back what it has.
    _, second_link = rig.consumer(kind, name="second")
    assert not second_link.places
    rig.subscription.redeliver(first, None)
    if kind == KEY_SHARED:
        rig.subscription.remove_consumer(first)
    rig.loop.settle()
    assert second_link.places == places


def test_chunks_of_messages_that_were_not_handed_back_still_wait_for_their_consumer(rig: Rig) -> None:
    first, first_link = rig.consumer(SHARED, permits=2)
    a = [chunk(rig, "a", 0, 2)]
    b = [chunk(rig, "b", 0, 2)]
    a.append(chunk(rig, "a", 1, 2))
    b.append(chunk(rig, "b", 1, 2))
    rig.loop.settle()
    assert first_link.take() == [a[0], b[0]]
    _, second_link = rig.consumer(SHARED)
    rig.subscription.redeliver(first, [a[0]])
    rig.loop.settle()
    assert second_link.places == a
    rig.subscription.flow(first, 5)
    rig.loop.settle()
    assert first_link.take() == [b[1]]


def test_a_name_of_megabytes_is_kept_as_its_hash() -> None:
    chunks = BegunChunks()
    metadata = pb.MessageMetadata(uuid="x" * (1 << 20), chunk_id=0, num_chunks_from_msg=3)
    assert len(name_of(metadata)) == 32
    consumer = AttachedConsumer(1, "c", RecordingLink())
    chunks.sent((1, 0), metadata, consumer)
    metadata.chunk_id = 1
    assert chunks.owner(metadata) is consumer


def test_a_message_that_never_ends_is_not_remembered_for_ever() -> None:
    """All of it reaches one consumer at a time, and what it costs has an end."""
    chunks, consumer = BegunChunks(), AttachedConsumer(1, "c", RecordingLink())
    metadata = pb.MessageMetadata(uuid="m", chunk_id=0, num_chunks_from_msg=2**31 - 1)
    for n in range(3 * CHUNKS_MAX):
        metadata.chunk_id = min(n, 1)
        chunks.sent((1, n), metadata, consumer)
        assert n % 1000 or chunks.remembered <= CHUNKS_MAX
    assert chunks.remembered > 0


@dataclass
class Client:
    """Puts messages together as Java's client does: what does not follow is dropped, what is whole is acknowledged."""

    consumer: AttachedConsumer
    link: RecordingLink
    begun: dict[str, list[Position]] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)

    def take(self, rig: Rig) -> bool:
        messages = list(self.link.messages)
        self.link.messages.clear()
        whole: list[Position] = []
        for one in messages:
            name, number, of = one.body.decode().split("/")
            parts = self.begun.setdefault(name, [])
            if number == "0":
                parts.clear()
            if len(parts) != int(number):
                continue
            parts.append(one.at)
            if len(parts) == int(of):
                whole += self.begun.pop(name)
                self.done.append(name)
        if whole:
            rig.ack(self.consumer, whole)
        rig.subscription.flow(self.consumer, len(messages))
        return bool(messages)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("message"), st.integers(0, 5), st.integers(2, 4)),
        st.tuples(st.just("publish"), st.integers(0, 9), st.integers(1, 3)),
        st.tuples(st.just("join"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("take"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("refuse"), st.integers(0, 9), st.just(0)),
    ),
    max_size=60,
)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
@pytest.mark.parametrize("is_unordered", [False, True])
@settings(deadline=None, max_examples=60)
@given(steps=STEPS)
def test_every_chunked_message_is_put_together_in_the_end(
    kind: int, is_unordered: bool, steps: list[tuple[str, int, int]]
) -> None:
    rig = Rig()
    options: dict[str, Any] = {}
    if is_unordered and kind == KEY_SHARED:
        options["key_shared"] = pb.KeySharedMeta(keySharedMode=pb.AUTO_SPLIT, allowOutOfOrderDelivery=True)
    clients: list[Client] = []
    # Messages being published: name, key, chunks so far, chunks in all.
    unpublished: list[list[Any]] = []
    made = 0
    try:
        for step, a, b in steps:
            if step == "message":
                unpublished.append([f"m{made}", f"key-{a}", 0, b])
                made += 1
            elif step == "publish" and unpublished:
                one = unpublished[a % len(unpublished)]
                for _ in range(min(b, one[3] - one[2])):
                    chunk(rig, one[0], one[2], one[3], one[1])
                    one[2] += 1
                if one[2] == one[3]:
                    unpublished.remove(one)
            elif step == "join":
                clients.append(Client(*rig.consumer(kind, permits=a, **options)))
            elif step == "leave" and clients:
                gone = clients.pop(a % len(clients))
                rig.subscription.remove_consumer(gone.consumer)
            elif step == "take" and clients:
                clients[a % len(clients)].take(rig)
            elif step == "refuse" and clients:
                client = clients[a % len(clients)]
                client.begun.clear()
                client.link.messages.clear()
                rig.subscription.redeliver(client.consumer, None)
                rig.subscription.flow(client.consumer, 3)
            rig.loop.settle(10)
        for name, key, sent, of in unpublished:
            for number in range(sent, of):
                chunk(rig, name, number, of, key)
        clients.append(Client(*rig.consumer(kind, permits=3, **options)))
        while any([client.take(rig) for client in clients]):
            rig.loop.settle()
        assert rig.subscription.backlog() == 0, [client.begun for client in clients]
    finally:
        rig.close()
