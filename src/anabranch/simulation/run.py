"""One run of a whole cluster on one seed: `run(seed)` returns a report, whatever happened.

First there are faults of every kind; then there are none, and the cluster has a bounded (virtual) time to get
everything done: every send answered, every message consumed, no plan pending, nothing left over of deleted things.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from anabranch.controller.ports import SegmentStatus
from anabranch.errors import AnabranchError
from anabranch.model.scalable import (
    SUBSCRIPTIONS,
    SubscriptionKind,
    topic_path,
)
from anabranch.model.segments import Segment
from anabranch.simulation.cluster.sabotage import Sabotage
from anabranch.simulation.cluster.sharing import watched_sharing
from anabranch.simulation.machine.loop import Deadlock, Livelock
from anabranch.simulation.plays.brief_topics import BriefTopics
from anabranch.simulation.plays.checkpoint_groups import CheckpointGroups
from anabranch.simulation.plays.chunked import Chunked
from anabranch.simulation.plays.groups import GroupPlay
from anabranch.simulation.plays.in_doubt import Bursts
from anabranch.simulation.plays.key_batches import KeyBatches
from anabranch.simulation.plays.play import Play
from anabranch.simulation.plays.spoilt import Planted, Spoilt
from anabranch.simulation.plays.waiting import Waiting
from anabranch.simulation.world import leaks, workload, writers
from anabranch.simulation.world.bystander import Bystander
from anabranch.simulation.world.faults import Faults
from anabranch.simulation.world.kinds import TroubleKind
from anabranch.simulation.world.older import Knowledge
from anabranch.simulation.world.workload import RoamingReader
from anabranch.simulation.world.world import NAME, TOPIC, Report, Stuck, World
from anabranch.simulation.world.writers import WriterJob

# The virtual seconds that a calm cluster has to finish everything, since the layout last changed by itself, and in all:
# segments are split for consumers once a minute until each of them has something.
CALM_MAX_S: Final = 240.0
CALM_WHOLE_MAX_S: Final = 900.0
PLAYS: Final[tuple[type[Play], ...]] = (
    Chunked,
    Bursts,
    KeyBatches,
    BriefTopics,
    Waiting,
    GroupPlay,
    Spoilt,
    CheckpointGroups,
)


class ClusterRun:
    """One run of a world: first its faults and plays, then the calm in which everything must get done."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.faults = Faults(world)
        self.bystander = Bystander(world.cluster)
        self.plays = [play(world, self.faults) for play in PLAYS if play.kind in world.kinds]
        self.calm_since_s = 0.0
        # The last epoch of the layout, and since when it is.
        self._last_epoch, self._changed_s = -1, 0.0

    async def main(self) -> None:
        chance = self.world.chance
        for node in self.world.cluster.nodes:
            await self.world.cluster.start(node)
        await workload.ask(self.world, lambda b: self.world.service(b).create(NAME, chance.choice((1, 2, 3))))
        await workload.subscribe(self.world, "stream", SubscriptionKind.STREAM)
        await workload.subscribe(self.world, "queue", SubscriptionKind.QUEUE)
        for play in self.plays:
            await play.prepare()
        producers = [
            self.world.on_host(
                f"producer-{n}",
                workload.produce(self.world, f"producer-{n}", chance.randint(15, 40), knowledge=knowledge),
            )
            for n, knowledge in enumerate(self.world.crowd.producers)
        ]
        if self.world.hides:
            job = WriterJob("job", TOPIC, self.world.history)
            producers.append(
                self.world.on_host("job", writers.write_batches(self.world, job, chance.randint(3, 8)))
            )
        readers = [
            self.world.loop.create_task(
                RoamingReader(
                    self.world, kind, f"{kind}-{n}", is_stream=kind == "stream", knowledge=knowledge
                ).live(),
                name=f"{kind}-{n}",
            )
            for kind, known in (("stream", self.world.crowd.readers), ("queue", [Knowledge.ALL] * 2))
            for n, knowledge in enumerate(known)
        ]
        for play in self.plays:
            play.start()
        faults = self.faults
        busy = [
            self.world.loop.create_task(work)
            for work in (faults.run(), workload.reshape(self.world), workload.make_subscriptions(self.world))
        ]
        await asyncio.sleep(chance.uniform(3.0, 12.0))
        self.world.is_calm = self.world.cluster.is_calm = True
        self.world.note("-- all faults end")
        await faults.end()
        self.world.report.faults = faults.count
        self.calm_since_s = self.world.loop.time()
        await self._finish(busy, producers, readers)

    async def _finish(
        self,
        busy: list[asyncio.Task[None]],
        producers: list[asyncio.Task[None]],
        readers: list[asyncio.Task[None]],
    ) -> None:
        await asyncio.gather(*busy)
        for name in sorted(self.world.doubtful):
            # A subscription in doubt is settled now: its deletion must succeed.
            while not await workload.delete_subscription(self.world, name):
                self._check_time(f"{name} cannot be deleted")
                await self.world.cluster.restart_failed()
                await asyncio.sleep(0.5)
        readers += [
            self.world.on_host(name, RoamingReader(self.world, name, name, is_stream=False).live())
            for name in sorted(self.world.extra)
        ]
        while (left := self._left(producers)) is not None:
            self._check_time(left)
            await self.world.cluster.restart_failed()
            await asyncio.sleep(0.5)
            self._check_bundles()
            for task in readers:
                if task.done():
                    task.result()
        while self._check_bundles() is not None:
            await self.world.cluster.restart_failed()
            await asyncio.sleep(0.5)
        await self._check_end()
        for play in self.plays:
            await play.check()
        self.judge()
        if TroubleKind.LEAKS in self.world.kinds:
            for task in readers:
                task.cancel()
            await leaks.check(self.world)
        for problem in await self.bystander.unreadable():
            self.world.wrong(problem)

    def judge(self) -> None:
        """Adds the violations in the histories, once everything that can be delivered has been."""
        for history in dict.fromkeys([self.world.history, *(play.history for play in self.plays)]):
            for problem in history.check():
                self.world.wrong(problem)

    def _left(self, producers: list[asyncio.Task[None]]) -> str | None:
        """What is still to be done; None when everything is done."""
        for task in producers:
            if not task.done():
                return f"{task.get_name()} is not done"
            task.result()
        for play in self.plays:
            if (left := play.left()) is not None:
                return left
        record = self.world.record
        if record is None or record.plan is not None:
            return f"the record is {record}"
        for name in self.world.history.subscriptions:
            if owed := self.world.history.owed(name):
                return f"{len(owed)} messages never came to {name}, such as {min(owed)}"
        if record.layout.sealed:
            return f"nobody needs segments {[s.id for s in record.layout.sealed]} any more, and they are kept"
        return None

    def _check_bundles(self) -> str | None:
        """What is not yet well with the bundles of a run with the load balancer. Stuck if it should be."""
        channel, loop, record = self.world.channel, self.world.loop, self.world.record
        if channel is None:
            return None
        since_s = max(self.calm_since_s, self.world.cluster.last_start_s)
        channel.calm_since_ms = loop.now_ms() - int((loop.time() - since_s) * 1000)
        used = [] if record is None else [segment.topic(NAME) for segment in record.layout.active]
        left, calm_s = channel.unsettled(used), loop.time() - since_s
        if left is not None and calm_s > self.world.waits.until_owned_s:
            raise Stuck(f"after {calm_s:.0f} calm seconds {left}")
        return left

    def _check_time(self, left: str) -> None:
        record, now_s = self.world.record, self.world.loop.time()
        epoch = -1 if record is None else record.layout.epoch
        if epoch != self._last_epoch:
            self._last_epoch, self._changed_s = epoch, now_s
        if now_s > min(self._changed_s + CALM_MAX_S, self.calm_since_s + CALM_WHOLE_MAX_S):
            said = f"after {now_s - self.calm_since_s:.0f} calm seconds {left}"
            raise Stuck(f"{said}\n{self._describe()}\n{self.world.loop.describe_tasks()}")

    def _describe(self) -> str:
        """The leaders' knowledge of their consumers."""
        lines = [f"  {self.world.record}"]
        for node in self.world.cluster.up:
            controller = self.world.service(node.broker).controllers.get(NAME)
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
        """Nothing is left of deleted things, and everything else is complete."""
        record = self.world.record
        assert record is not None
        known = set(self.world.cluster.metadata.names_below(f"{topic_path(NAME)}/{SUBSCRIPTIONS}"))
        for name in self.world.gone & known:
            self.world.wrong(f"subscription {name} was deleted and has a record")
        for segment in record.layout.active:
            status = await self._status(segment)
            now = self.world.record
            # The record is read again: the topic may have split or merged automatically while its owner was asked.
            if status.is_sealed and now is not None and now.plan is None and now.layout == record.layout:
                self.world.wrong(f"segment {segment.id} is active in the layout and sealed")
            for name in status.subscriptions.keys() - known:
                self.world.wrong(f"segment {segment.id} has a cursor of {name}, which has no record")
            for name in set(self.world.history.subscriptions) - status.subscriptions.keys():
                self.world.wrong(f"segment {segment.id} has no cursor of {name}")

    async def _status(self, segment: Segment) -> SegmentStatus:
        for _ in range(20):
            try:
                return await workload.ask(self.world, lambda b: b.segments.status(NAME, segment))
            except workload.EXPECTED as error:
                said = str(error)
                await asyncio.sleep(0.5)
        raise Stuck(f"segment {segment.id} cannot be asked for its status: {said}")


class Complaints(logging.Handler):
    """Unexpected errors that were logged."""

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
    """Within the block, random names come from the seed, and log lines go into the report."""
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
    kinds: frozenset[TroubleKind] | None = None,
) -> Report:
    """Runs one seed. `is_traced` puts every delivery and log line into the report's trace; it changes nothing else.

    `kinds` are the kinds of trouble beside the main load; by default those that the seed draws.
    """
    world = World(seed, brokers, is_traced=is_traced, sabotage=sabotage, kinds=kinds)
    report, whole = world.report, ClusterRun(world)
    with _surroundings(world), watched_sharing(report.sharing, report.groups, sabotage):
        try:
            world.loop.run_until_complete(whole.main())
        except (Stuck, Deadlock, Livelock) as error:
            # The histories are judged first: they have what a client would complain about.
            whole.judge()
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
            report.rebuckets = world.rebuckets
            if world.cluster.bucket is not None:
                report.space = dict(world.cluster.bucket.space)
            report.sent, _, report.delivered = world.history.figures
            world.loop.close()
    return report
