"""Watches of namespaces over the memory store, and their clients, on a loop whose time jumps to the next timer."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from anabranch.broker.scalable.watch.namespace_feed import NamespaceFeed
from anabranch.broker.scalable.watch.namespace_watch import ServedNamespaceWatch
from anabranch.controller.feed import TopicFeed
from anabranch.metadata.memory import MemoryMetadata, MemoryStore
from anabranch.metadata.port import Versioned, Watch
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import PUBLIC_DEFAULT, NamespaceName, TopicName
from anabranch.model.scalable import ScalableTopic, topic_path
from anabranch.model.topic_hash import topic_hash
from anabranch.simulation.machine.loop import SimLoop
from anabranch.wire import pulsar_pb2 as pb

WINDOW_S = 0.05


async def anybody() -> None:
    pass


def full(local: str) -> str:
    return f"topic://public/default/{local}"


class ReadHook:
    """The store, with a moment between taking a value and answering in which a test may act."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.reads = 0
        self.watches = 0
        self.after_children: Callable[[], Awaitable[None]] | None = None
        self.after_get: Callable[[str], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def watch(self, prefix: str) -> Watch:
        self.watches += 1
        return self._store.watch(prefix)

    async def children(self, path: str) -> list[str]:
        found = await self._store.children(path)
        if self.after_children is not None:
            act, self.after_children = self.after_children, None
            await act()
        return found

    async def get(self, path: str, *, fresh: bool = False) -> Versioned | None:
        self.reads += 1
        found = await self._store.get(path, fresh=fresh)
        if self.after_get is not None:
            await self.after_get(path)
        return found


class Client:
    """The other end of a connection: applies what it is told, and may stop reading."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.is_writable = True
        self.told: list[tuple[float, pb.CommandWatchScalableTopicsUpdate]] = []
        self.topics: set[str] = set()
        self.bytes = 0
        self.watch: ServedNamespaceWatch

    def send(self, command: pb.BaseCommand) -> None:
        assert command.type == pb.BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE
        data = command.SerializeToString()
        self.bytes += len(data)
        update = pb.BaseCommand.FromString(data).watchScalableTopicsUpdate
        assert (update.WhichOneof("event") is None) == update.HasField("error")
        self.told.append((self._loop.time(), update))
        if update.WhichOneof("event") == "snapshot":
            self.topics = set(update.snapshot.topics)
        elif update.WhichOneof("event") == "diff":
            assert set(update.diff.removed) <= self.topics, "removed what the client never had"
            self.topics -= set(update.diff.removed)
            assert not self.topics & set(update.diff.added), "added what the client had"
            self.topics |= set(update.diff.added)

    @property
    def events(self) -> list[tuple[Any, ...]]:
        """In short: ("snapshot", names), ("diff", added, removed), ("error", code)."""
        return [_short(update) for _, update in self.told]

    @property
    def hash(self) -> str:
        return topic_hash(self.topics)

    def read_again(self) -> None:
        self.is_writable = True
        self.watch.writable()


def _short(update: pb.CommandWatchScalableTopicsUpdate) -> tuple[Any, ...]:
    kind = update.WhichOneof("event")
    if kind is None:
        return ("error", update.error)
    names = [
        [name.removeprefix("topic://public/default/") for name in listed]
        for listed in (
            [update.snapshot.topics] if kind == "snapshot" else [update.diff.added, update.diff.removed]
        )
    ]
    return (kind, *names)


class Rig:
    """A store, one broker's feed over it, and watches."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.metadata = MemoryMetadata(loop.now_ms)
        self.ended: list[ServedNamespaceWatch] = []
        self._generation = 0
        self._watches: list[ServedNamespaceWatch] = []

    async def start(self) -> None:
        self.writer = await self.metadata.connect()
        self.store = await self.metadata.connect()
        self.hook = ReadHook(self.store)
        self.topic_feed = TopicFeed(self.hook)
        self.topic_feed.start()
        self.feed = NamespaceFeed(self.hook, self.topic_feed, retry_s=1.0)
        await self.turns()

    async def close(self) -> None:
        for watch in self._watches:
            watch.close()
        assert (self.feed.listeners, self.feed.namespaces) == (0, 0)
        self.feed.close()
        await self.topic_feed.close()

    def watch(
        self,
        *filters: tuple[str, str],
        client: Client | None = None,
        namespace: NamespaceName = PUBLIC_DEFAULT,
        admit: Callable[[], Awaitable[None]] = anybody,
        **settings: Any,
    ) -> Client:
        """A watch that was just asked for."""
        client = client or Client(self.loop)
        client.watch = ServedNamespaceWatch(
            len(self._watches) + 1,
            namespace,
            self.feed,
            client,
            self.ended.append,
            admit,
            filters=filters,
            **settings,
        )
        self._watches.append(client.watch)
        client.watch.start()
        return client

    async def opened(self, *filters: tuple[str, str], **settings: Any) -> Client:
        client = self.watch(*filters, **settings)
        await self.until(lambda: client.watch.is_live or client.watch.is_closed)
        return client

    # -- topics

    async def make(self, local: str, namespace: NamespaceName = PUBLIC_DEFAULT, **properties: str) -> None:
        self._generation += 1
        record = ScalableTopic(SegmentLayout.initial(1, 0), self._generation, properties)
        await self.writer.put(_path(local, namespace), record.encode())

    async def change(self, local: str, change: Callable[[ScalableTopic], ScalableTopic]) -> None:
        found = await self.writer.get(_path(local))
        assert found is not None
        await self.writer.put(_path(local), change(ScalableTopic.decode(found.value)).encode())

    async def delete(self, local: str) -> None:
        await self.writer.delete(_path(local))

    # -- time

    async def turns(self, number: int = 100) -> None:
        """Everything that can run without time passing has run."""
        for _ in range(number):
            await asyncio.sleep(0)

    async def later(self, seconds: float = 2 * WINDOW_S) -> None:
        await asyncio.sleep(seconds)
        await self.turns()

    async def until(self, met: Callable[[], Any], within_s: float = 30.0) -> None:
        deadline = self.loop.time() + within_s
        while not met():
            assert self.loop.time() < deadline, f"not met within {within_s} s: {inspect.getsource(met)}"
            await asyncio.sleep(0.001)


def _path(local: str, namespace: NamespaceName = PUBLIC_DEFAULT) -> str:
    return topic_path(TopicName.parse(f"topic://{namespace}/{local}"))


def simulated(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs the test on virtual time. What is left behind by it is a fault."""

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        loop = SimLoop()

        async def whole() -> None:
            rig = Rig(loop)
            await rig.start()
            await test(rig, **arguments)
            await rig.close()

        try:
            loop.run_until_complete(whole())
            assert not loop.unhandled, loop.unhandled
        finally:
            loop.close()

    # pytest takes the arguments for fixtures: those but the rig.
    signature = inspect.signature(test)
    del run.__wrapped__
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]  # Read by pytest.
        parameters=[p for name, p in signature.parameters.items() if name != "rig"]
    )
    return run
