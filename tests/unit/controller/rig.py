"""Several brokers' controllers over one store, with owners in memory, on a loop whose time jumps to the next timer."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from anabranch.controller.core.errors import SegmentGone, SegmentRefused, SegmentUnavailable
from anabranch.controller.ports import Assignment, Candidates, CursorStatus, SegmentStatus
from anabranch.controller.records import Records
from anabranch.controller.service import ScalableTopics
from anabranch.controller.settings import Classic, ControllerSettings
from anabranch.metadata.memory import MemoryMetadata, MemoryStore
from anabranch.metadata.port import MetadataStore
from anabranch.model.names import TopicName
from anabranch.model.scalable import InitialPosition, SubscriptionKind
from anabranch.model.segments import Segment, SegmentId
from anabranch.simulation.machine.loop import SimLoop

TOPIC = TopicName.parse("topic://public/default/orders")
GRACE_S = 60.0


@dataclass
class Log:
    """A segment's storage: how many messages it holds, and how many of them each cursor has behind it."""

    generation: int
    messages: int = 0
    is_sealed: bool = False
    cursors: dict[str, int] = field(default_factory=dict)
    finished_readers: set[str] = field(default_factory=set)


class Owners:
    """Every segment's owner: reads the topic's record before it creates, seals or deletes."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._records = Records(metadata)
        self.logs: dict[str, Log] = {}
        self.calls: list[tuple[str, int]] = []
        self.unavailable: set[SegmentId] = set()
        # Called before each call takes place: where a test makes something happen in between.
        self.before: Callable[[str, Segment], Awaitable[None]] | None = None

    def log(self, segment: Segment) -> Log:
        return self.logs[str(segment.topic(TOPIC))]

    async def _called(self, what: str, segment: Segment) -> None:
        self.calls.append((what, segment.id))
        if self.before is not None:
            await self.before(what, segment)
        if segment.id in self.unavailable:
            raise SegmentUnavailable(f"nobody owns segment {segment.id}")

    def _found(self, topic: TopicName, segment: Segment) -> Log:
        found = self.logs.get(str(segment.topic(topic)))
        if found is None:
            raise SegmentGone(f"segment {segment.id} has no storage")
        return found

    async def create(self, topic: TopicName, segment: Segment, subscriptions: Sequence[str]) -> None:
        await self._called("create", segment)
        found = await self._records.topic(topic)
        if found is None or not found[0].may_create(segment.id, segment.range):
            raise SegmentRefused(f"the record does not call for segment {segment.id}")
        name = str(segment.topic(topic))
        if name in self.logs and self.logs[name].generation != found[0].generation:
            del self.logs[name]
        log = self.logs.setdefault(name, Log(found[0].generation))
        for subscription in subscriptions:
            log.cursors.setdefault(subscription, 0)

    async def seal(self, topic: TopicName, segment: Segment) -> None:
        await self._called("seal", segment)
        found = await self._records.topic(topic)
        if found is None or not found[0].may_seal(segment.id):
            raise SegmentRefused(f"the record does not seal segment {segment.id}")
        self._found(topic, segment).is_sealed = True

    async def delete(self, topic: TopicName, segment: Segment) -> None:
        await self._called("delete", segment)
        found = await self._records.topic(topic)
        if found is not None and not found[0].may_delete(segment.id):
            raise SegmentRefused(f"the record keeps segment {segment.id}")
        self.logs.pop(str(segment.topic(topic)), None)

    async def create_subscription(
        self, topic: TopicName, segment: Segment, subscription: str, initial: InitialPosition
    ) -> None:
        await self._called("create-cursor", segment)
        log = self._found(topic, segment)
        at = 0 if initial is InitialPosition.EARLIEST else log.messages
        log.cursors.setdefault(subscription, at)

    async def delete_subscription(self, topic: TopicName, segment: Segment, subscription: str) -> None:
        await self._called("delete-cursor", segment)
        self._found(topic, segment).cursors.pop(subscription, None)

    async def seek(self, topic: TopicName, segment: Segment, subscription: str, timestamp_ms: int) -> None:
        await self._called("seek", segment)
        self._found(topic, segment).cursors[subscription] = 0

    async def skip_all(self, topic: TopicName, segment: Segment, subscription: str) -> None:
        await self._called("skip-all", segment)
        log = self._found(topic, segment)
        log.cursors[subscription] = log.messages

    async def status(self, topic: TopicName, segment: Segment) -> SegmentStatus:
        await self._called("status", segment)
        log = self._found(topic, segment)
        cursors = {
            name: CursorStatus(log.messages - at, log.is_sealed and at >= log.messages)
            for name, at in log.cursors.items()
        }
        return SegmentStatus(log.is_sealed, cursors, frozenset(log.finished_readers))


class Link:
    """A consumer's connection, which remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, Assignment]] = []

    def send_assignment(self, topic: TopicName, consumer_id: int, assignment: Assignment) -> None:
        self.told.append((consumer_id, assignment))


class HeldStore:
    """A store some of whose calls wait before they take place, or lose their answers, as a test likes."""

    def __init__(self, inner: MetadataStore) -> None:
        self._inner = inner
        # Called with the verb and the path, before and after.
        self.before: Callable[[str, str], Awaitable[None]] | None = None
        self.after: Callable[[str, str], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in ("get", "create", "put", "delete"):
            return found

        async def call(path: str, *arguments: Any, **options: Any) -> Any:
            if self.before is not None:
                await self.before(name, path)
            result = await found(path, *arguments, **options)
            if self.after is not None:
                await self.after(name, path)
            return result

        return call


class Rig:
    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.metadata = MemoryMetadata(loop.now_ms)
        self.settings = ControllerSettings(session_grace_s=GRACE_S)
        self.stores: list[MemoryStore] = []
        self.held: list[HeldStore] = []  # The same stores, as the brokers have them.
        self.services: list[ScalableTopics] = []
        self.owners: Owners

    async def broker(
        self, classic: Classic | None = None, candidates: Candidates | None = None, **changed: Any
    ) -> ScalableTopics:
        """One more broker."""
        store = await self.metadata.connect()
        if not self.stores:
            self.owners = Owners(await self.metadata.connect())
        self.held.append(HeldStore(store))
        service = ScalableTopics(
            cast(MetadataStore, self.held[-1]),
            self.owners,
            service_url=f"pulsar://broker-{len(self.services)}:6650",
            settings=replace(self.settings, **changed),
            classic=classic,
            candidates=candidates,
        )
        await service.start()
        self.stores.append(store)
        self.services.append(service)
        return service

    async def close(self) -> None:
        for service in self.services:
            await service.close()

    async def joined(
        self,
        service: ScalableTopics,
        name: str,
        subscription: str = "billing",
        kind: SubscriptionKind = SubscriptionKind.STREAM,
        link: Link | None = None,
    ) -> tuple[Link, Assignment]:
        link = link or Link()
        return link, await service.register(TOPIC, subscription, name, kind, 1, link)

    async def until(self, met: Callable[[], Any], within_s: float = 30.0) -> None:
        """Lets virtual time pass until `met`, and fails when it has not by then."""
        import asyncio

        deadline = self.loop.time() + within_s
        while not met():
            assert self.loop.time() < deadline, f"not met within {within_s} s: {inspect.getsource(met)}"
            await asyncio.sleep(0.01)


def simulated(test: Callable[[Rig], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Runs the test on virtual time. What is left behind by it is a fault."""

    @functools.wraps(test)
    def run() -> None:
        loop = SimLoop()
        rig = Rig(loop)

        async def whole() -> None:
            await test(rig)
            await rig.close()

        try:
            loop.run_until_complete(whole())
            assert not loop.unhandled, loop.unhandled
        finally:
            loop.close()

    # pytest would take the argument for a fixture.
    del run.__wrapped__
    return run
