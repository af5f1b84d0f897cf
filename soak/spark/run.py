"""`python -m soak spark`: exactly once through Spark, whichever process is killed.

A producer publishes numbers with few keys, segments split and merge, many of which stay empty, and a driver with
executors reads the topic into a table and, with the sink, into another topic. Only the queries' subscriptions keep the
input. A third query reads topics by a pattern, which come, go, and are created again. The driver, an executor and the
broker are each killed with -9 a number of times, at random, and started again. In the end the tables and the other
topic must equal what was published: every row once, per key in order, by micro-batch and position.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from anabranch import blocking
from anabranch.client.errors import TimedOut
from soak.broker import BrokerProcess
from soak.spark.driver import Setup
from soak.spark.judge import faults, key_of
from soak.spark.outcome import Outcome
from soak.spark.parties import Driver
from soak.spark.parts import PATTERN, Parts
from soak.spark.source import COPY, TOPIC, Source
from soak.spark.warden import watching

# Executors are Python processes then; a task may fail, as it may on a cluster.
MASTER = "local[2,8]"
PER_SECOND = 200.0
ROWS_MAX = 400
PARTIES = ("driver", "executor", "broker")
SETTINGS = {
    "logFileBytes": 8 << 20,
    "retentionCheckIntervalInSeconds": 1,
    "defaultRetentionTimeInMinutes": 0,
    "logLingerSeconds": 0,
}
# How far the table may be behind before the producer waits for it: what is left in the end has to be read, too.
BEHIND_MAX = 4_000
# A query without a batch for this long counts as stuck. A start takes 15 s on two quiet cores.
PATIENCE_S = 300.0
# A run in which drivers end by themselves more often than this per kill has failed, whatever the table says.
OWN_ENDS_MAX = 2.0
SHOWN_MAX = 50
QUIET_MAX_S = 30.0
INTERRUPTED = 130
UNUSABLE = 2


class Stuck(Exception):
    """The run cannot continue."""


@dataclass(frozen=True, slots=True)
class Options:
    kills: int
    seed: int
    folder: Path
    master: str = MASTER
    per_second: float = PER_SECOND
    rows_max: int = ROWS_MAX
    has_sink: bool = True
    patience_s: float = PATIENCE_S


def run(options: Options) -> int:
    """Exit code: 0 if nothing was violated, 1 if something was, 2 or 130 if it did not get that far."""
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        print(f"soak: {folder} holds something already: give an empty folder, or none", flush=True)
        return UNUSABLE
    print(
        f"soak: Spark on {options.master}, {options.kills} kills of each of {', '.join(PARTIES)}, seed "
        f"{options.seed}, notes in {folder}",
        flush=True,
    )
    with watching(uuid4().hex):
        broker = BrokerProcess(folder / "data", SETTINGS)
        copy = COPY if options.has_sink else ""
        setup = Setup(broker.url, TOPIC, copy, PATTERN, str(folder), options.master, options.rows_max)
        conductor = Conductor(options, broker, Driver(setup))
        try:
            found = conductor.run()
        except (Stuck, RuntimeError, TimeoutError) as error:
            # Also if a broker does not come back.
            found = [str(error)]
        except KeyboardInterrupt:
            print(conductor.summary(), flush=True)
            print(f"soak: interrupted, with nothing shown; notes are in {folder}", flush=True)
            return INTERRUPTED
        finally:
            conductor.stop()
        return _verdict(found, conductor, setup)


def _verdict(found: list[str], conductor: Conductor, setup: Setup) -> int:
    for one in found[:SHOWN_MAX]:
        print(f"VIOLATED {one}", flush=True)
    if len(found) > SHOWN_MAX:
        print(f"… and {len(found) - SHOWN_MAX} more", flush=True)
    print(conductor.summary(), flush=True)
    seed = conductor.options.seed
    if not found:
        print(f"soak: every row once and in order, seed {seed}", flush=True)
        return 0
    print(
        f"soak: FAILED, {len(found)} violations, seed {seed}. Look at\n"
        f"  {setup.path('driver.log')}   what the queries said; 'driver:' begins what ended one\n"
        f"  {setup.path('data.log')}   the broker's log\n"
        f"  {setup.path('table')}, parts   a folder for each batch; their offsets are in the checkpoints\n"
        f"  {setup.path('data')}   the topics: anabranch standalone --data-dir serves them\n"
        f"The same choices again, not the same timing: python -m soak spark --kills {conductor.options.kills} "
        f"--seed {seed} --master '{setup.master}'",
        flush=True,
    )
    return 1


class Conductor:
    """Starts all parties, kills them, and checks the results."""

    def __init__(self, options: Options, broker: BrokerProcess, driver: Driver) -> None:
        self.options = options
        self.broker = broker
        self.driver = driver
        self.source = Source(broker, options.seed, options.per_second)
        self.outcomes = {name: Outcome(driver.setup, name) for name in driver.setup.queries}
        # It has a thread of its own, and so its own memory of batches.
        self.parts = Parts(broker, options.seed, Outcome(driver.setup, "parts"))
        self.counts: Counter[str] = Counter()
        self._chance = random.Random(f"{options.seed} conductor")
        self._began = self._said = time.monotonic()

    def run(self) -> list[str]:
        """Returns what is wrong with the results."""
        self.broker.start()
        self.source.prepare()
        self.parts.prepare()
        self.driver.start()
        # By then the subscriptions that keep the input exist.
        self._wait_for_progress(self._numbers)
        self.source.start()
        self.parts.start()
        self._kill_all()
        self.source.finish()
        self.parts.finish()
        self._say("no more kills: what was published is waited for")
        self._wait_until_all_is_there()
        copied = self._copied() if self.options.has_sink else []
        self.driver.kill()
        self._say("all is there, and is compared with the input")
        keys = [key_of(number) for number in range(self.source.published)]
        return [
            *self.source.faults,
            *self.parts.faults,
            *(f"table: {one}" for one in faults(self.outcomes["table"].table(), keys)),
            *(f"parts: {one}" for one in faults(self.outcomes["parts"].table(), self.parts.keys)),
            *(f"copy: {one}" for one in (faults(copied, keys) if self.options.has_sink else ())),
        ]

    @property
    def _numbers(self) -> list[str]:
        """The queries that read the input."""
        return [name for name in self.outcomes if name != "parts"]

    def stop(self) -> None:
        self.source.stop()
        self.parts.stop()

    @property
    def _is_all_there(self) -> bool:
        return self._read == (self.source.published, len(self.parts.keys))

    @property
    def _read(self) -> tuple[int, int]:
        return self.outcomes["table"].rows(), self.outcomes["parts"].rows()

    # -- what is told

    def _say(self, what: str) -> None:
        rows, parts = self._read
        print(
            f"{self._took():5.0f} s  {what}; {self.source.published} published, {rows} in the table; "
            f"{len(self.parts.keys)} to topics that come and go, {parts} read",
            flush=True,
        )
        self._said = time.monotonic()

    def _say_at_times(self, what: str) -> None:
        if time.monotonic() - self._said > QUIET_MAX_S:
            self._say(what)

    def _took(self) -> float:
        return time.monotonic() - self._began

    def summary(self) -> str:
        kills = ", ".join(f"{self.counts[party]} {party}" for party in PARTIES)
        done = ", ".join(f"{one.committed + 1} of {name}" for name, one in self.outcomes.items())
        shapes, parts = self.source.counts, self.parts.counts
        return (
            f"soak: {self._took():.0f} s; killed {kills}, {self.counts['in a batch']} of them within a batch; "
            f"{self.source.published} published, {self.outcomes['table'].rows()} in the table; batches: {done}; "
            f"{shapes['split']} splits, {shapes['merge']} merges; topics that come and go: {parts['made']} made, "
            f"{parts['deleted']} deleted, {parts['made again']} of the names made again, {len(self.parts.keys)} "
            f"messages; {self.driver.starts} drivers, "
            f"{self.counts['own end']} of which ended by themselves"
        )

    # -- killing

    def _kill_all(self) -> None:
        parties = [party for party in PARTIES for _ in range(self.options.kills)]
        self._chance.shuffle(parties)
        for number, party in enumerate(parties, 1):
            self._pause()
            self._kill(party)
            self.counts[party] += 1
            self._say(f"{number}/{len(parties)} killed {party}")

    def _pause(self) -> None:
        """Waits mostly until one of the queries has made progress, else any moment: while they start, too."""
        if self._chance.random() < 0.75:
            # The one that is behind, or it would have to catch up in the end.
            self._wait_for_progress([min(self._numbers, key=lambda name: self.outcomes[name].committed)])
            self._watch(self._chance.uniform(0.0, 2.0))
        else:
            self._watch(self._chance.uniform(0.0, 8.0))

    def _watch(self, seconds: float) -> None:
        """Time passes; a driver that ends by itself is started again."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._keep_driver()
            self.source.allow(self.source.published - self.outcomes["table"].rows() < BEHIND_MAX)
            time.sleep(min(left, 0.1))

    def _keep_driver(self) -> None:
        if not self.driver.is_running:
            self.counts["own end"] += 1
            self._say(f"a driver ended by itself: {self.driver.reason()}")
            if self.counts["own end"] > OWN_ENDS_MAX * max(3, len(PARTIES) * self.options.kills):
                raise Stuck(f"drivers end by themselves again and again: {self.driver.reason()}")
            self.driver.start()

    def _kill(self, party: str) -> None:
        match party:
            case "driver":
                self._count_batch()
                self.driver.kill()
                self.driver.start()
            case "broker":
                self._count_batch()
                self.broker.kill()
                time.sleep(self._chance.uniform(0.0, 2.0))
                self.broker.start()
            case _:
                deadline = time.monotonic() + self.options.patience_s
                # While a driver starts it has none.
                while not self.driver.kill_executor(self._chance):
                    if time.monotonic() > deadline:
                        raise Stuck(f"no executor was there to be killed: {self.driver.reason()}")
                    self._watch(0.1)
                self._count_batch()

    def _count_batch(self) -> None:
        self.counts["in a batch"] += any(one.is_in_batch for one in self.outcomes.values())

    # -- what has come of it

    def _wait_for_progress(self, queries: Iterable[str]) -> None:
        before = {name: self.outcomes[name].committed for name in queries}
        deadline = time.monotonic() + self.options.patience_s
        while waiting := [name for name, last in before.items() if self.outcomes[name].committed <= last]:
            if time.monotonic() > deadline:
                raise Stuck(
                    f"no batch of {', '.join(waiting)} in {self.options.patience_s:.0f} s: {self.driver.reason()}"
                )
            self._watch(0.1)

    def _wait_until_all_is_there(self) -> None:
        read, since = (-1, -1), time.monotonic()
        while not self._is_all_there:
            if (now := self._read) != read:
                read, since = now, time.monotonic()
            elif time.monotonic() - since > self.options.patience_s:
                return  # What is missing counts as lost.
            self._say_at_times("waiting for the tables")
            self._watch(0.5)

    def _copied(self) -> list[tuple[str, int]]:
        """What the sink wrote, in a consumer's order. The query may still be running."""
        found: list[tuple[str, int]] = []
        with (
            blocking.connect(self.broker.url) as client,
            client.checkpoint_consumer(COPY, start="earliest") as consumer,
        ):
            since = time.monotonic()
            # Once all is there, wait a moment longer for surplus rows.
            while time.monotonic() - since < (
                5.0 if len(found) >= self.source.published else self.options.patience_s
            ):
                self._keep_driver()
                self._say_at_times(f"waiting for the copy, which has {len(found)}")
                try:
                    message = consumer.receive(timeout_s=1.0)
                except TimedOut:
                    continue
                found.append(((message.key_bytes or b"").decode(), int(message.payload)))
                since = time.monotonic()
        return found
