"""`python -m soak client`: every promise of the client, through splits, merges and lost connections, judged in the end.

Our own broker is started for it, or a given one is used, which may be a real Pulsar. Everything is one process on one
loop, so one history holds what the clients saw in the order in which it happened.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anabranch.client import Client, Routing
from anabranch.simulation.world.history import Sent
from soak.client.conductor import BROOKS, JOINED, MAIN, Conductor, Pace, cancel
from soak.client.consumers import Lodger, Member, Subscription
from soak.client.crowds import Crowd
from soak.client.history import ClientHistory
from soak.client.producers import Manner, Producing
from soak.client.readers import Group, LoneReader
from soak.client.relay import Relay
from soak.client.target import Target, own
from soak.client.world import EXPECTED, OwnedLoop, Sabotage, World, sent_of

KINDS = (
    "stream",
    "lodgers",
    "queue",
    "checkpoint",
    "checkpoint-group",
    "namespace-stream",
    "namespace-queue",
)
LODGERS = "lodgers"
LODGER_LIFE_S = (1.0, 6.0)
LOOK_S = 1.0
CROWD_S = 3.0
# How long a broker and its clients may take to settle after a cut.
ECHO_S = 2.0
# When nothing has come from Pulsar 5.0.0-M1 for this long, what is missing may be in segments that it keeps
# unavailable.
M1_QUIET_S = 20.0
M1_BURST_MAX = 100


@dataclass(frozen=True, slots=True)
class Options:
    operations: int
    seed: int
    folder: Path
    kinds: tuple[str, ...] = KINDS
    # None: our own broker, started for the run.
    target: Target | None = None
    routing: Routing = Routing.HIGH
    pace: Pace = field(default_factory=Pace)
    per_second: float = 150.0
    life_s: tuple[float, float] = (2.0, 10.0)
    # How long nothing may come in the end before what is missing counts as lost.
    quiet_s: float = 30.0
    # How long a message may stay the oldest of a stream meanwhile, beyond the grace of members that vanish.
    stall_s: float = 60.0
    has_brooks: bool = True
    has_crowds: bool = True
    # Skip what Pulsar 5.0.0-M1 cannot do, see docs/client/known-peer-limits.md.
    is_m1: bool = False
    sabotage: Sabotage | None = None


def run(options: Options) -> int:
    """Returns the exit code: 0 if nothing was violated."""
    options.folder.mkdir(parents=True, exist_ok=True)
    target = options.target or own(options.folder)
    print(
        f"soak: the client, {options.operations} splits and merges at {target.url}, seed {options.seed}, "
        f"notes in {options.folder}",
        flush=True,
    )
    try:
        if target.process is not None:
            target.process.start()
        with asyncio.Runner(loop_factory=OwnedLoop) as runner:
            return runner.run(_run(options, target))
    finally:
        if target.process is not None and target.process.is_running:
            target.process.kill()


async def _run(options: Options, target: Target) -> int:
    began = time.monotonic()
    loop = asyncio.get_running_loop()
    assert isinstance(loop, OwnedLoop)
    with (options.folder / "notes.log").open("w", buffering=1) as notes:
        may_double: set[str] = set()
        history = ClientHistory(
            lambda: loop.time() - began, may_double=lambda producer: options.is_m1 or producer in may_double
        )
        world = World(
            target.url,
            f"public/soak-{options.seed}-{int(time.time())}",
            options.routing,
            random.Random(f"{options.seed} clients"),
            history,
            target.message_bytes_max,
            note=lambda text: print(f"{time.monotonic() - began:9.3f} {text}", file=notes),
            sabotage=options.sabotage,
            # With M1, a name that does not come back may keep its segments for good.
            has_new_names=not options.is_m1,
            may_double=may_double,
        )

        def cut(ports: list[int], begins: bool) -> None:
            owners = {loop.owners.get(port, "nobody") for port in ports}
            world.note(f"{'harm' if begins else 'over'}: {', '.join(sorted(owners))}")
            history.cut_off(owners, begins=begins)

        async with _relay(target, options.seed, cut) as relay:
            conductor = Conductor(target, world, relay, options.pace, options.seed)
            await conductor.prepare()
            cast = Cast(options, target, world, conductor)
            try:
                await cast.play()
            except EXPECTED as error:
                history.fail(f"the run did not end: {error!r}")
            finally:
                await cast.end()
            return _report(options, conductor, world, cast, relay, time.monotonic() - began)


@asynccontextmanager
async def _relay(
    target: Target, seed: int, told: Callable[[list[int], bool], None]
) -> AsyncIterator[Relay | None]:
    if target.behind is None:
        yield None
        return
    async with Relay(target.address, target.behind, random.Random(f"{seed} relay"), told) as relay:
        yield relay


class Cast:
    """All participants, and when they act."""

    def __init__(self, options: Options, target: Target, world: World, conductor: Conductor) -> None:
        self._options = options
        self._target = target
        self._world = world
        self._conductor = conductor
        self._tasks: list[asyncio.Task[Any]] = []
        self._sending: list[asyncio.Task[None]] = []
        self._readers: list[LoneReader | Group] = []
        self._house: Client | None = None  # The client that the lodgers share.

    def _start(self, living: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(living)  # Ended by `end`.
        self._tasks.append(task)
        return task

    async def play(self) -> None:
        options, conductor = self._options, self._conductor
        await self._consume()
        self._produce()
        others = [self._start(conductor.harm()), self._start(conductor.kill())]
        if not options.is_m1:
            others.append(self._start(self._watch_progress()))
            if options.has_crowds:
                others.append(self._start(Crowd(self._world, CROWD_S).live()))
        if options.has_brooks:
            others.append(self._start(self._brooks()))
            if not options.is_m1:
                others.append(self._start(conductor.change_members()))
        reshaping = self._start(conductor.reshape(options.operations))
        await self._unless_somebody_fails(reshaping)
        if self._world.history.violations:
            return  # The first violations are enough.
        for task in others:
            await cancel(task)
        await conductor.rejoin_all()
        self._world.is_calm = True
        await self._unless_somebody_fails(*self._sending)
        await self._settle()
        await self._explain()

    async def _unless_somebody_fails(self, *wanted: asyncio.Task[None]) -> None:
        waiting = set(wanted)
        while waiting:
            watched = [task for task in self._tasks if not task.done()]
            done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled():
                    task.result()
            waiting = {task for task in waiting if not task.done()}

    async def _consume(self) -> None:
        options, world, kinds = self._options, self._world, self._options.kinds
        topic = world.topic(MAIN)
        members = {"stream": 3, "queue": 2, "namespace-stream": 2, "namespace-queue": 2}
        for kind, count in members.items():
            if kind not in kinds:
                continue
            is_stream, is_wide = kind.endswith("stream"), kind.startswith("namespace")
            subscription = Subscription(kind, is_stream, None if is_wide else topic, JOINED)
            if options.is_m1 or not is_wide:
                await self._conductor.subscribe(kind, "STREAM" if is_stream else "QUEUE", is_wide=is_wide)
            world.history.expect(
                kind,
                (lambda producer: True) if is_wide else is_main,
                keeps_order=is_stream and not options.is_m1,
                has_moves=is_stream,
                echo_s=ECHO_S + (self._target.grace_s if is_stream else 0.0),
            )
            for n in range(count):
                self._start(Member(world, subscription, f"{kind}-{n}", options.life_s).live())
        if LODGERS in kinds and not options.is_m1:
            await self._lodge(topic)
        if "checkpoint" in kinds:
            self._readers.append(LoneReader(world, topic, "checkpoint", options.life_s))
        if "checkpoint-group" in kinds:
            self._readers.append(Group(world, topic, "group", options.life_s))
        for reader in self._readers:
            self._start(reader.live())

    async def _lodge(self, topic: str) -> None:
        world = self._world
        await self._conductor.subscribe(LODGERS, "STREAM", is_wide=False)
        echo_s = ECHO_S + self._target.grace_s
        world.history.expect(LODGERS, is_main, keeps_order=True, echo_s=echo_s)
        self._house = world.client()
        subscription = Subscription(LODGERS, True, topic)
        for n in range(4):
            self._start(Lodger(world, subscription, f"lodger-{n}", LODGER_LIFE_S, self._house).live())

    async def _watch_progress(self) -> None:
        """A stall is a violation while it lasts, not only what is missing in the end."""
        watched = [kind for kind in ("stream", LODGERS) if kind in self._options.kinds]
        limit_s = self._options.stall_s + 2 * self._target.grace_s
        while not self._world.history.violations:
            await asyncio.sleep(LOOK_S)
            for name in watched:
                self._world.history.check_progress(name, limit_s)

    def _produce(self) -> None:
        rate, large = self._options.per_second, self._target.message_bytes_max
        # The more writes are under way when a segment is sealed, the more often M1 keeps it unavailable.
        most = M1_BURST_MAX if self._options.is_m1 else 4000
        manners = {
            "main-named": Manner(rate, most // 2, is_named=True, life_s=self._options.life_s),
            "main-fast": Manner(rate * 2, most, compression="lz4"),
            "main-large": Manner(
                rate / 2, min(most, 200), is_named=True, compression="zstd", large_bytes=large
            ),
        }
        for name, manner in manners.items():
            self._send(MAIN, name, manner)

    def _send(self, topic: str, name: str, manner: Manner) -> None:
        producing = Producing(self._world, self._world.topic(topic), name, manner)
        self._sending.append(self._start(producing.live()))

    async def _brooks(self) -> None:
        """Creates topics while the namespace is being read."""
        for name in BROOKS:
            await asyncio.sleep(self._world.chance.uniform(0.5, 4.0))
            await self._conductor.brook(name)
            self._send(name, name, Manner(self._options.per_second / 2, 300, is_named=True))

    # -- the end

    async def _settle(self) -> None:
        """Waits until every expected message has come, as long as anything still comes."""
        before, changed, is_unloaded = -1, time.monotonic(), not self._options.is_m1
        while True:
            began = time.monotonic()
            owed = sum(len(missing) for missing in self.missing().values())
            looked = time.monotonic()
            if owed == 0:
                return
            if owed != before:
                before, changed = owed, looked
            elif not is_unloaded and looked - changed > M1_QUIET_S:
                await self._conductor.unload()
                is_unloaded, changed = True, time.monotonic()
            elif looked - changed > self._options.quiet_s:
                return
            # A check goes through everything that was sent, and the clients that it waits for run on the same loop.
            await asyncio.sleep(max(0.25, 3 * (looked - began)))

    def missing(self) -> dict[str, set[Any]]:
        history = self._world.history
        found = {name: history.owed(name) for name in history.subscriptions}
        found |= {reader.reader: history.unread(reader.reader, is_main) for reader in self._readers}
        return found

    async def _explain(self) -> None:
        """Notes whether missing messages are stored: a reader reads the whole log."""
        missing = {lost for all_lost in self.missing().values() for lost in all_lost}
        for topic in sorted({MAIN if is_main(lost.producer) else lost.producer for lost in missing}):
            try:
                await self._look_for(topic, missing)
            except EXPECTED as error:
                self._world.note(f"{topic} cannot be looked through: {error!r}")

    async def _look_for(self, topic: str, missing: set[Sent]) -> None:
        world = self._world
        async with (
            world.client() as client,
            client.checkpoint_consumer(world.topic(topic), start="earliest") as reader,
        ):
            with suppress(TimeoutError):
                while message := await reader.receive(timeout_s=min(3.0, self._options.quiet_s)):
                    if (sent := sent_of(message)) in missing:
                        before = "" if message.index <= 0 else f", {message.index} before it in its batch"
                        world.note(f"{sent} is stored in {topic} at {message.id}{before}")

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._house is not None:
            self._house.crash()


def is_main(producer: str) -> bool:
    return producer.startswith(MAIN)


def _report(
    options: Options, conductor: Conductor, world: World, cast: Cast, relay: Relay | None, took_s: float
) -> int:
    history, figures = world.history, conductor.figures
    for name, missing in cast.missing().items():
        if missing and not history.violations:
            story = history.story(name, min(missing))
            history.fail(
                f"{name}: {story} and {len(missing) - 1} more have receipts and were never dealt with"
            )
    took = sorted(figures.operation_s) or [0.0]
    print(
        f"\n{figures.splits} splits and {figures.merges} merges in {took_s:.0f} s, seed {options.seed}: "
        f"{conductor.summary()}, p99 {took[len(took) * 99 // 100] * 1000:.0f} ms, {figures.refused} refused; "
        f"topics joined {figures.joins} times and left {figures.parts} times; {figures.unloads} unloads; "
        f"{history.unanswered} without a receipt"
    )
    print(f"faults: {dict(relay.counts) if relay is not None else 'no relay'}")
    print(f"clients: {dict(world.counts)}; came again: {dict(history.repeats)}")
    for violation in history.violations:
        print(f"VIOLATION {violation}")
    if history.violations:
        print(f"FAILED with seed {options.seed}; see {options.folder}")
        return 1
    print(
        "nothing was lost, no key's order was broken, nothing was stored twice, nothing came again without reason"
    )
    return 0
