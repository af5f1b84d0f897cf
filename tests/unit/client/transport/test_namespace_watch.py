"""Watching a namespace: what the watch shows, how it comes back, when it gives up. The broker is a script."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest

from anabranch.client.errors import Closed, ConnectionLost, RequestRefused, Unsupported
from anabranch.client.transport.attachment import Backoff
from anabranch.client.transport.core.topic_diff import TopicChange
from anabranch.client.transport.namespace_watch import (
    FIRST_PAUSE_S,
    PAUSE_MAX_S,
    NamespaceWatch,
    watch_backoff,
)
from anabranch.client.transport.pool import Connections
from anabranch.model.topic_hash import topic_hash
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.connection import Connection, Role
from anabranch.wire.encode import encode_command

C = pb.BaseCommand
A, B, D = (f"topic://public/default/{name}" for name in "abd")


class Watched:
    """A broker that answers nothing by itself: a test says what goes to the watch opened last."""

    def __init__(self) -> None:
        self.url = ""
        self.is_modern = True
        self.opened: list[pb.CommandWatchScalableTopics] = []
        self.closed: list[int] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._changed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        wire = Connection(Role.BROKER, now=0)
        try:
            while data := await reader.read(1 << 16):
                for kind, command, *_ in wire.feed(data, 0):
                    if kind == C.CONNECT:
                        flags = pb.FeatureFlags(supports_scalable_topics=self.is_modern)
                        writer.write(wire.accept("script", flags))
                    elif kind == C.WATCH_SCALABLE_TOPICS:
                        self.opened.append(command.watchScalableTopics)
                    elif kind == C.WATCH_SCALABLE_TOPICS_CLOSE:
                        self.closed.append(command.watchScalableTopicsClose.watch_id)
                self._changed.set()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def until(self, met: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not met():
                self._changed.clear()
                await self._changed.wait()

    def cut(self) -> None:
        self._writers[-1].transport.abort()

    def say(self, **fields: object) -> None:
        update = pb.CommandWatchScalableTopicsUpdate(watch_id=self.opened[-1].watch_id, **fields)  # type: ignore[arg-type]
        command = C(type=C.WATCH_SCALABLE_TOPICS_UPDATE, watchScalableTopicsUpdate=update)
        self._writers[-1].write(encode_command(command))

    def snapshot(self, *names: str) -> None:
        self.say(snapshot=pb.ScalableTopicsSnapshot(topics=names))

    def diff(self, added: list[str], removed: list[str]) -> None:
        self.say(diff=pb.ScalableTopicsDiff(added=added, removed=removed))


class Client:
    def __init__(self, broker: Watched, url: str = "") -> None:
        self.broker = broker
        self.connections = Connections(url or broker.url)
        self.backoff = Backoff(random.Random(1), first_s=0.001, limit_s=0.1)
        self.changes: asyncio.Queue[TopicChange | Exception] = asyncio.Queue()
        self.watch = NamespaceWatch(
            self.connections,
            "public/default",
            {"tier": "gold", "region": "eu"},
            changed=self.changes.put_nowait,
            ended=self.changes.put_nowait,
            backoff=self.backoff,
        )

    async def start(self, *names: str) -> frozenset[str]:
        starting = asyncio.create_task(self.watch.start())
        await self.broker.until(lambda: self.broker.opened)
        self.broker.snapshot(*names)
        return await starting

    async def next(self) -> TopicChange | Exception:
        async with asyncio.timeout(10):
            return await self.changes.get()

    async def close(self) -> None:
        await self.watch.close()
        await self.connections.close()


@pytest.fixture
async def broker() -> AsyncIterator[Watched]:
    broker = Watched()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield broker
    server.close()


@pytest.fixture
async def client(broker: Watched) -> AsyncIterator[Client]:
    client = Client(broker)
    yield client
    await client.close()


async def test_start_gives_the_first_snapshot_and_the_listener_only_what_follows(
    broker: Watched, client: Client
) -> None:
    assert await client.start(A, B) == {A, B}
    assert client.changes.empty()
    (request,) = broker.opened
    assert (request.namespace, request.HasField("current_hash")) == ("public/default", False)
    assert {f.key: f.value for f in request.property_filters} == {"tier": "gold", "region": "eu"}
    broker.diff([D], [A])
    assert await client.next() == TopicChange(frozenset({A}), frozenset({D}))
    assert client.watch.topics == {B, D}


async def test_an_empty_namespace_opens_the_watch_too(client: Client) -> None:
    assert await client.start() == frozenset()


async def test_an_error_before_the_snapshot_fails_the_start(broker: Watched, client: Client) -> None:
    starting = asyncio.create_task(client.watch.start())
    await broker.until(lambda: broker.opened)
    broker.say(error=pb.AuthorizationError, message="no")
    with pytest.raises(RequestRefused, match="no"):
        await starting


async def test_a_connection_lost_before_the_snapshot_fails_the_start(broker: Watched, client: Client) -> None:
    starting = asyncio.create_task(client.watch.start())
    await broker.until(lambda: broker.opened)
    broker.cut()
    with pytest.raises(ConnectionLost):
        await starting


async def test_closing_before_the_snapshot_fails_the_start(broker: Watched, client: Client) -> None:
    starting = asyncio.create_task(client.watch.start())
    await broker.until(lambda: broker.opened)
    await client.watch.close()
    with pytest.raises(Closed):
        await starting


async def test_an_update_with_neither_event_nor_error_is_ignored(broker: Watched, client: Client) -> None:
    await client.start(A)
    broker.say()
    broker.diff([B], [])
    assert await client.next() == TopicChange(frozenset(), frozenset({B}))


async def test_an_error_ends_the_watch_with_it(broker: Watched, client: Client) -> None:
    await client.start(A)
    broker.say(error=pb.AuthorizationError, message="revoked")
    ended = await client.next()
    assert isinstance(ended, RequestRefused)
    assert ended.error == pb.AuthorizationError


async def test_a_lost_watch_comes_back_with_its_hash_and_silence_means_that_nothing_changed(
    broker: Watched, client: Client
) -> None:
    await client.start(A, B)
    broker.cut()
    await broker.until(lambda: len(broker.opened) == 2)
    assert broker.opened[1].current_hash == topic_hash([A, B])
    broker.diff([D], [])
    assert await client.next() == TopicChange(frozenset(), frozenset({D}))
    broker.cut()
    await broker.until(lambda: len(broker.opened) == 3)
    assert broker.opened[2].current_hash == topic_hash([A, B, D])


async def test_a_snapshot_after_a_reconnect_is_applied_as_a_difference(
    broker: Watched, client: Client
) -> None:
    await client.start(A, B)
    broker.cut()
    await broker.until(lambda: len(broker.opened) == 2)
    broker.snapshot(B, D)
    assert await client.next() == TopicChange(frozenset({A}), frozenset({D}))


async def test_the_backoff_starts_again_once_the_watch_frame_is_written(
    broker: Watched, client: Client
) -> None:
    await client.start(A)
    for count in range(2, 12):
        broker.cut()
        await broker.until(lambda count=count: len(broker.opened) == count)  # type: ignore[misc]
    # Ten blips, and never a snapshot: the pause is still the first.
    assert client.backoff.next_s() <= 0.001


def test_pauses_grow_from_a_tenth_of_a_second_to_half_a_minute_with_jitter() -> None:
    backoff = watch_backoff(random.Random(7))
    pauses = [backoff.next_s() for _ in range(20)]
    assert FIRST_PAUSE_S / 2 <= pauses[0] <= FIRST_PAUSE_S == 0.1
    assert PAUSE_MAX_S / 2 <= pauses[-1] <= PAUSE_MAX_S == 30.0
    assert len(set(pauses[-5:])) == 5, "every client would come back at the same moment"


async def test_the_watch_comes_back_on_another_broker(broker: Watched) -> None:
    other = Watched()
    server = await asyncio.start_server(other.serve, "127.0.0.1", 0)
    first = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    ports = [s.sockets[0].getsockname()[1] for s in (first, server)]
    client = Client(broker, f"pulsar://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}")
    await client.start(A)
    first.close()
    broker.cut()
    await other.until(lambda: other.opened)
    other.snapshot(A, B)
    assert await client.next() == TopicChange(frozenset(), frozenset({B}))
    await client.close()
    server.close()


async def test_closing_says_so_and_closing_during_a_reconnect_leaves_nothing_running(
    broker: Watched, client: Client
) -> None:
    await client.start(A)
    await client.watch.close()
    await broker.until(lambda: broker.closed == [broker.opened[0].watch_id])
    again = Client(broker)
    starting = asyncio.create_task(again.watch.start())
    await broker.until(lambda: len(broker.opened) == 2)
    broker.snapshot(A)
    await starting
    broker.cut()
    before = asyncio.all_tasks()
    await again.close()
    assert not {task for task in asyncio.all_tasks() & before if "_follow" in repr(task)}


async def test_a_broker_without_scalable_topics_gives_a_clear_error(broker: Watched, client: Client) -> None:
    broker.is_modern = False
    with pytest.raises(Unsupported, match="no scalable topics"):
        await client.watch.start()
