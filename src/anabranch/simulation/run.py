"""One run of a whole cluster on one seed: `run(seed)` gives a report, whatever happened.

First everything goes wrong that can; then nothing does any more, and the cluster has a bounded (virtual) time to get
everything done: every send answered, every message consumed, no plan pending, nothing left over of what was deleted.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import traceback
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from anabranch.broker.broker import Broker
from anabranch.broker.topic import Topic
from anabranch.client.client import Client
from anabranch.controller.ports import SegmentStatus
from anabranch.controller.service import ScalableTopics
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName
from anabranch.model.scalable import (
    SUBSCRIPTIONS,
    ScalableTopic,
    SubscriptionKind,
    topic_path,
)
from anabranch.model.segments import Segment, SegmentId
from anabranch.simulation import leaks, workload, writers
from anabranch.simulation.brief_topics import BriefTopics
from anabranch.simulation.chunked import Chunked
from anabranch.simulation.cluster import CONFIG, Cluster
from anabranch.simulation.faults import Faults
from anabranch.simulation.groups import Group
from anabranch.simulation.history import History
from anabranch.simulation.key_batches import KeyBatches
from anabranch.simulation.kinds import Kind, drawn
from anabranch.simulation.laws import Laws
from anabranch.simulation.loop import Deadlock, Host, Livelock, SimLoop, context_of
from anabranch.simulation.network import Network
from anabranch.simulation.plays import Play
from anabranch.simulation.sabotage import Sabotage
from anabranch.simulation.spoilt import Planted, Spoilt
from anabranch.simulation.waiting import Waiting
from anabranch.simulation.workload import NAME, Reader
from anabranch.simulation.writers import Job

# Virtual seconds that a calm cluster gets to finish everything.
CALM_MAX_S: Final = 240.0
TRACE_LINES: Final = 120
PLAYS: Final[tuple[type[Play], ...]] = (
    Chunked,
    KeyBatches,
    BriefTopics,
    Waiting,
    Group,
    Spoilt,
)


class Stuck(AssertionError):
    """The faults are over, and something is not getting done."""


@dataclass(slots=True)
class Report:
    seed: int
    problems: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    virtual_s: float = 0.0
    callbacks: int = 0
    sent: int = 0
    delivered: int = 0
    reshapings: int = 0
    faults: int = 0

    @property
    def is_good(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        figures = (
            f"seed {self.seed}: {self.sent} sent, {self.delivered} delivered, {self.reshapings} splits and merges, "
            f"{self.faults} faults in {self.virtual_s:.0f} s"
        )
        if self.is_good:
            return figures
        lines = [figures, *(f"  WRONG: {problem}" for problem in self.problems)]
        return "\n".join([*lines, *(f"    {line}" for line in self.trace[-TRACE_LINES:])])


class World:
    """What the parts of a run share."""

    def __init__(
        self,
        seed: int,
        brokers: int,
        *,
        is_traced: bool = False,
        sabotage: frozenset[Sabotage] = frozenset(),
        kinds: frozenset[Kind] | None = None,
    ) -> None:
        self.seed = seed
        self.kinds = drawn(seed) if kinds is None else kinds
        self.chance = random.Random(seed)
        self.is_traced = is_traced
        self.loop = SimLoop()
        self.network = self.loop.network = Network(self.loop, random.Random(self.chance.random()))
        # Half of the runs keep sealed segments as long as consumed messages linger, which is longer than the trouble
        # lasts. The others delete them in the middle of it, and promise less to producers in doubt.
        self.keeps_sealed = self.chance.random() < 0.5
        self.history = History(is_gone_early=self._is_gone_early)
        self.report = Report(seed)
        names = [f"b{n + 1}" for n in range(brokers)]
        config = CONFIG if self.keeps_sealed else replace(CONFIG, log_linger_seconds=0)
        self.cluster = Cluster(
            self.loop, self.network, self.chance, names, self._look, self.note, sabotage, config
        )
        self.faults = Faults(self)
        self.laws = Laws(self.cluster.metadata.peek, self._opened, self.wrong)
        self.is_calm = False
        self.reshapings = 0
        self.extra: dict[str, SubscriptionKind] = {}  # Subscriptions that come and go, and are there.
        self.doubtful: set[str] = set()
        self.gone: set[str] = set()
        self.client_hosts: dict[str, str] = {}  # The machine on which each client runs now.
        self._hosts: dict[str, Host] = {}  # All machines of clients that have not left.
        self.pace_s = self.chance.uniform(0.02, 0.3)
        self.fault_every_s = self.chance.uniform(0.2, 1.5)
        # In half of the runs somebody writes hidden, too.
        self.hides = self.chance.random() < 0.5
        self.plays = [play(self) for play in PLAYS if play.kind in self.kinds]

    def note(self, text: str) -> None:
        self.report.trace.append(f"{self.loop.time() - 1000:8.3f} {text}")

    def wrong(self, what: str) -> None:
        self.note(f"WRONG: {what}")
        self.report.problems.append(what)

    def _look(self, paths: Any) -> None:
        self.laws.look(paths)

    def _opened(self, name: TopicName) -> list[Topic]:
        found = []
        for node in self.cluster.up:
            topic = node.broker.loaded().get(name)
            if topic is not None and not topic.is_closed and node.broker.owners.is_mine(name):
                found.append(topic)
        return found if len(found) == 1 else []

    def _is_gone_early(self, number: int) -> bool:
        if self.keeps_sealed or self.record is None:
            return False
        segment = self.record.layout.segments.get(SegmentId(number))
        return segment is None or segment.is_deleting

    @property
    def record(self) -> ScalableTopic | None:
        value = self.cluster.metadata.peek(topic_path(NAME))
        return ScalableTopic.decode(value) if value else None

    def client(self) -> Client:
        return Client(
            self.cluster.service_url,
            chance=random.Random(self.chance.random()),
            now_ms=self.loop.now_ms,
        )

    @staticmethod
    def service(broker: Broker) -> ScalableTopics:
        assert broker.scalable is not None
        return broker.scalable

    def on_host(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.client_hosts[name] = name
        return self.loop.create_task(work, name=name, context=context_of(self.host(name)))

    def host(self, name: str) -> Host:
        """A new machine for a client."""
        host = self._hosts[name] = Host(name)
        return host

    def leave(self, name: str) -> None:
        """That machine is switched off."""
        self._hosts.pop(name).is_dead = True
        self.network.host_died(name)

    def everybody_leaves(self) -> None:
        for name in list(self._hosts):
            self.leave(name)

    # -- the run

    async def main(self) -> None:
        chance = self.chance
        for node in self.cluster.nodes:
            await self.cluster.start(node)
        await workload.ask(self, lambda b: self.service(b).create(NAME, chance.choice((1, 2, 3))))
        await self.subscribe("stream", SubscriptionKind.STREAM)
        await self.subscribe("queue", SubscriptionKind.QUEUE)
        for play in self.plays:
            await play.prepare()
        producers = [
            self.on_host(f"producer-{n}", workload.produce(self, f"producer-{n}", chance.randint(15, 40)))
            for n in range(2)
        ]
        if self.hides:
            job = Job("job", workload.TOPIC, self.history)
            producers.append(self.on_host("job", writers.write_batches(self, job, chance.randint(3, 8))))
        readers = [
            self.loop.create_task(Reader(self, kind, name, is_stream=kind == "stream").live(), name=name)
            for kind in ("stream", "queue")
            for name in (f"{kind}-{n}" for n in range(2))
        ]
        for play in self.plays:
            play.start()
        faults = self.faults
        busy = [
            self.loop.create_task(work)
            for work in (faults.run(), workload.reshape(self), workload.make_subscriptions(self))
        ]
        await asyncio.sleep(chance.uniform(3.0, 12.0))
        self.is_calm = True
        self.note("-- all faults end")
        await faults.end()
        self.report.faults = faults.count
        await self._finish(busy, producers, readers)

    async def subscribe(self, name: str, kind: SubscriptionKind) -> None:
        for _ in range(100):
            if await workload.make_subscription(self, name, kind):
                return
            await asyncio.sleep(0.1)
        raise Stuck(f"subscription {name} cannot be made")

    async def _finish(
        self,
        busy: list[asyncio.Task[None]],
        producers: list[asyncio.Task[None]],
        readers: list[asyncio.Task[None]],
    ) -> None:
        deadline = self.loop.time() + CALM_MAX_S
        await asyncio.gather(*busy)
        for name in sorted(self.doubtful):
            # What is in doubt is settled now: it must be possible to get rid of it.
            while not await workload.delete_subscription(self, name):
                self._check_time(deadline, f"{name} cannot be deleted")
                await asyncio.sleep(0.5)
        readers += [
            self.on_host(name, Reader(self, name, name, is_stream=False).live())
            for name in sorted(self.extra)
        ]
        while (left := self._left(producers)) is not None:
            self._check_time(deadline, left)
            await self.cluster.restart_failed()
            await asyncio.sleep(0.5)
            for task in readers:
                if task.done():
                    task.result()
        await self._check_end()
        for play in self.plays:
            await play.check()
        self.judge()
        if Kind.LEAKS in self.kinds:
            for task in readers:
                task.cancel()
            await leaks.check(self)

    def judge(self) -> None:
        """What the histories say, once everything has come that will."""
        for history in dict.fromkeys([self.history, *(play.history for play in self.plays)]):
            for problem in history.check():
                self.wrong(problem)

    def _left(self, producers: list[asyncio.Task[None]]) -> str | None:
        """What is still to be done; None when all is."""
        for task in producers:
            if not task.done():
                return f"{task.get_name()} is not done"
            task.result()
        for play in self.plays:
            if (left := play.left()) is not None:
                return left
        record = self.record
        if record is None or record.plan is not None:
            return f"the record is {record}"
        for name in self.history.subscriptions:
            if owed := self.history.owed(name):
                return f"{len(owed)} messages never came to {name}, such as {min(owed)}"
        if record.layout.sealed:
            return f"nobody needs segments {[s.id for s in record.layout.sealed]} any more, and they are kept"
        return None

    def _check_time(self, deadline: float, left: str) -> None:
        if self.loop.time() > deadline:
            raise Stuck(
                f"after {CALM_MAX_S:.0f} calm seconds {left}\n{self._describe()}\n{self.loop.describe_tasks()}"
            )

    def _describe(self) -> str:
        """What the leaders know of their consumers."""
        lines = [f"  {self.record}"]
        for node in self.cluster.up:
            controller = self.service(node.broker).controllers.get(NAME)
            if controller is None or not controller.is_leader:
                continue
            lines.append(f"  {node} leads, and is at {controller.state and controller.state.doing}")
            for name, coordinator in controller.coordinators.items():
                group = coordinator.group
                lines.append(f"    {name}: epoch {group.layout.epoch}, done {sorted(group.done)}")
                lines += [
                    f"      {s.name}: {list(s.assigned)}{'' if s.is_connected else ', away'}"
                    for s in group.sessions.values()
                ]
        return "\n".join(lines)

    async def _check_end(self) -> None:
        """Nothing is left of what was deleted, and what is there is everywhere it should be."""
        record = self.record
        assert record is not None
        known = set(self.cluster.metadata.names_below(f"{topic_path(NAME)}/{SUBSCRIPTIONS}"))
        for name in self.gone & known:
            self.wrong(f"subscription {name} was deleted and has a record")
        for segment in record.layout.active:
            status = await self._status(segment)
            now = self.record
            # Read again: the topic may have split or merged by itself while its owner was asked.
            if status.is_sealed and now is not None and now.plan is None and now.layout == record.layout:
                self.wrong(f"segment {segment.id} is active in the layout and sealed")
            for name in status.subscriptions.keys() - known:
                self.wrong(f"segment {segment.id} has a cursor of {name}, which has no record")
            for name in set(self.history.subscriptions) - status.subscriptions.keys():
                self.wrong(f"segment {segment.id} has no cursor of {name}")

    async def _status(self, segment: Segment) -> SegmentStatus:
        for _ in range(20):
            try:
                return await workload.ask(self, lambda b: b.segments.status(NAME, segment))
            except workload.EXPECTED as error:
                said = str(error)
                await asyncio.sleep(0.5)
        raise Stuck(f"segment {segment.id} cannot be asked for its status: {said}")


class Complaints(logging.Handler):
    """Errors that somebody logged because they were not expected."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.DEBUG if world.is_traced else logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, AnabranchError | Planted):
            self._world.wrong(f"{record.getMessage()}: {error!r}")
        elif self._world.is_traced:
            self._world.note(f"log: {record.getMessage()}")


@contextmanager
def _surroundings(world: World) -> Iterator[None]:
    """What is chance or output elsewhere comes from the seed, and goes into the report."""
    logger = logging.getLogger("anabranch")
    complaints = Complaints(world)
    was = (logger.level, logger.propagate, secrets.token_hex)
    names = random.Random(world.seed)
    logger.addHandler(complaints)
    logger.propagate = False
    logger.setLevel(complaints.level)
    secrets.token_hex = lambda nbytes=None: f"{names.getrandbits(40):010x}"
    try:
        yield
    finally:
        logger.removeHandler(complaints)
        logger.level, logger.propagate, secrets.token_hex = was
        logger.setLevel(was[0])


def run(
    seed: int,
    *,
    brokers: int = 3,
    is_traced: bool = False,
    sabotage: frozenset[Sabotage] = frozenset(),
    kinds: frozenset[Kind] | None = None,
) -> Report:
    """`is_traced` puts every delivery and log line into the report's trace; it changes nothing else.

    `kinds` are those that the run has beside its main load; those that the seed draws, if none are given."""
    world = World(seed, brokers, is_traced=is_traced, sabotage=sabotage, kinds=kinds)
    report = world.report
    with _surroundings(world):
        try:
            world.loop.run_until_complete(world.main())
        except (Stuck, Deadlock, Livelock) as error:
            # What the histories say of it first: that is what a client would complain of.
            world.judge()
            world.wrong(str(error))
        except (Exception, asyncio.CancelledError):
            world.wrong(f"the run itself failed: {traceback.format_exc()}")
        finally:
            for one in world.loop.unhandled:
                who = one.get("task") or one.get("future") or one.get("handle")
                world.wrong(f"nobody handled {one.get('message')}: {one.get('exception')!r} of {who!r}")
            report.virtual_s = world.loop.time() - 1000
            report.callbacks = world.loop.callbacks
            report.reshapings = world.reshapings
            report.sent, _, report.delivered = world.history.figures
            world.loop.close()
    return report
