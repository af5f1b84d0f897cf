"""A scalable topic with our own client, split and merged now and then, as a part of another load."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from pathlib import Path

from soak.broker import BrokerProcess
from soak.checker import Violations
from soak.scalable import TOPIC, Conductor, Options, cancel, settle
from soak.scalable_clients import EXPECTED, LoneReader, Member, Producing, World

RESHAPE_SECONDS = 2.0
END_SECONDS_MAX = 300.0


class ScalableBeside(threading.Thread):
    """Its clients live on an event loop of this thread, from `start` to `finish`."""

    def __init__(self, broker: BrokerProcess, folder: Path, seed: int) -> None:
        super().__init__(name="scalable", daemon=True)
        self._folder = folder
        self._options = Options(1 << 30, seed, folder, pause_s=RESHAPE_SECONDS, operations_per_kill=0)
        self._broker = broker
        self._world = World(broker.url, f"topic://{TOPIC}", random.Random(f"{seed} clients"))
        self._conductor = Conductor(self._options, broker, self._world)
        self._loop = asyncio.new_event_loop()
        self._ending = asyncio.Event()

    def prepare(self) -> None:
        """Makes the topic and its subscriptions."""
        asyncio.run(self._conductor.prepare())

    def run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._live())

    async def _live(self) -> None:
        world = self._world
        with (self._folder / "scalable.log").open("w", buffering=1) as notes:
            began = time.monotonic()
            world.note = lambda text: print(f"{time.monotonic() - began:9.3f} {text}", file=notes)
            producers = [
                Producing(world, f"producer-{n}", self._options.per_second, is_restless=n == 0)
                for n in range(2)
            ]
            consumers = [
                *(Member(world, "stream", f"stream-{n}", is_stream=True).live() for n in range(2)),
                Member(world, "queue", "queue-0", is_stream=False).live(),
                LoneReader(world).live(),
            ]
            living = [asyncio.create_task(one) for one in consumers]
            sending = [asyncio.create_task(one.live()) for one in producers]
            reshaping = asyncio.create_task(self._conductor.reshape())
            try:
                await self._ending.wait()
                await cancel(reshaping)
                world.is_calm = True
                await asyncio.gather(*sending)
                await settle(world, self._options.quiet_s)
            except EXPECTED as error:
                world.history.violations.append(f"its load did not end: {error!r}")
            finally:
                for task in (*living, *sending, reshaping):
                    await cancel(task)

    def finish(self, violations: Violations) -> str:
        """Ends the load, waits until everything has come, and judges. Returns what it comes to."""
        try:
            self._loop.call_soon_threadsafe(self._ending.set)
        except RuntimeError:
            violations.add(f"{TOPIC}: its load ended early")
        self.join(END_SECONDS_MAX)
        if self.is_alive():
            violations.add(f"{TOPIC}: its load did not end in {END_SECONDS_MAX:.0f} s")
        for violation in self._world.history.check():
            violations.add(f"{TOPIC}: {violation}")
        figures = self._conductor.figures
        return f"{TOPIC}: {figures.splits} splits, {figures.merges} merges; {self._conductor.summary()}"
