"""`python -m soak spark`: exactly once through Spark, whoever is killed.

A producer publishes numbers, segments split and merge, and a driver with executors reads the topic into a table and,
with the sink, into another topic. The driver, an executor and the broker are each killed with -9 so many times, at
random, and started again. In the end the table and the other topic must equal the input: every row once, per key in
order, by micro-batch and position.
"""

from __future__ import annotations

import http.client
import random
import threading
import time
import urllib.error
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anabranch import blocking
from anabranch.client.errors import TimedOut
from anabranch.errors import AnabranchError
from soak.broker import BrokerProcess
from soak.spark.driver import Setup
from soak.spark.judge import faults, key_of
from soak.spark.parties import Driver

NAMESPACE = "public/spark-soak"
TOPIC = f"topic://{NAMESPACE}/input"
COPY = f"topic://{NAMESPACE}/copy"
MASTER = "local-cluster[2,1,768]"
PER_SECOND = 200.0
ROWS_MAX = 400
PARTIES = ("driver", "executor", "broker")
ACTIVE_MAX = 8
REST_ERRORS = (urllib.error.URLError, http.client.HTTPException, OSError, TimeoutError)
SETTINGS = {"logFileBytes": 8 << 20, "retentionCheckIntervalInSeconds": 1, "logLingerSeconds": 0}
# After a start of the driver, before it counts as one that does not get anywhere.
PROGRESS_MAX_S = 600.0
# A run in which drivers end by themselves more often than this for each kill is no good, whatever the table says.
OWN_ENDS_MAX = 2.0
SHOWN_MAX = 50


@dataclass(frozen=True, slots=True)
class Options:
    kills: int
    seed: int
    folder: Path
    master: str = MASTER
    per_second: float = PER_SECOND
    rows_max: int = ROWS_MAX
    has_sink: bool = True


def run(options: Options) -> int:
    """Exit code: 0 if nothing was violated."""
    options.folder.mkdir(parents=True, exist_ok=True)
    print(
        f"soak: Spark on {options.master}, {options.kills} kills of each of {', '.join(PARTIES)}, seed "
        f"{options.seed}, notes in {options.folder}",
        flush=True,
    )
    broker = BrokerProcess(options.folder / "data", SETTINGS)
    setup = Setup(
        broker.url,
        TOPIC,
        COPY if options.has_sink else "",
        str(options.folder),
        options.master,
        options.rows_max,
    )
    driver = Driver(setup)
    conductor = Conductor(options, broker, driver)
    try:
        return conductor.run()
    finally:
        conductor.stop()
        driver.end()
        if broker.is_running:
            broker.kill()


class Conductor:
    """Starts all parties, kills them, and looks at what is left."""

    def __init__(self, options: Options, broker: BrokerProcess, driver: Driver) -> None:
        self.options = options
        self.broker = broker
        self.driver = driver
        self.published = 0
        self.counts: Counter[str] = Counter()
        self._chance = random.Random(f"{options.seed} conductor")
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._produce, name="producer", daemon=True),
            threading.Thread(target=self._reshape, name="reshaping", daemon=True),
        ]
        self._faults: list[str] = []

    def run(self) -> int:
        began = time.monotonic()
        self.broker.start()
        self._prepare()
        self.driver.start()
        self._wait_for_progress()
        for thread in self._threads:
            thread.start()
        self._kill_all()
        self.stop()
        self._wait_until_all_is_there()
        copied = self._copied() if self.options.has_sink else []
        self.driver.kill()
        found = [*self._faults, *(f"table: {one}" for one in faults(self._table(), self.published))]
        if self.options.has_sink:
            found += [f"copy: {one}" for one in faults(copied, self.published)]
        for one in found[:SHOWN_MAX]:
            print(f"VIOLATED {one}", flush=True)
        took = time.monotonic() - began
        verdict = "every row once and in order" if not found else f"{len(found)} violations"
        print(f"soak: {verdict}; {self.summary()}, {took:.0f} s, seed {self.options.seed}", flush=True)
        return 1 if found else 0

    def stop(self) -> None:
        """No more messages, splits and merges."""
        self._stopping.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(120)

    def summary(self) -> str:
        kills = ", ".join(f"{self.counts[party]} {party}" for party in PARTIES)
        return (
            f"killed {kills}; {self.published} published, {self._rows()} in the table, {self._batches()} batches, "
            f"{self.counts['split']} splits, {self.counts['merge']} merges, {self.driver.starts} drivers of which "
            f"{self.counts['own end']} ended by themselves"
        )

    # -- the topic

    def _prepare(self) -> None:
        self.broker.rest("PUT", f"namespaces/{NAMESPACE}", {})
        self.broker.rest("POST", f"namespaces/{NAMESPACE}/deduplication", True)
        keep = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        self.broker.rest("POST", f"namespaces/{NAMESPACE}/retention", keep)
        for topic in (TOPIC, COPY):
            path = f"scalable/{NAMESPACE}/{topic.rpartition('/')[2]}"
            self.broker.rest("PUT", f"{path}?numInitialSegments=2")
            self.broker.rest("POST", f"{path}/autoScalePolicy", {"enabled": False})

    def _produce(self) -> None:
        """Numbers from 0 on. With a name and deduplication, what is sent again is not stored again."""
        try:
            with (
                blocking.connect(self.broker.url) as client,
                client.producer(TOPIC, name="input", send_timeout_s=None) as producer,
            ):
                while not self._stopping.wait(0.05):
                    for _ in range(max(1, round(self.options.per_second * 0.05))):
                        producer.post(b"%d" % self.published, key=key_of(self.published))
                        self.published += 1
                producer.flush()
        except AnabranchError as error:
            self._faults.append(f"the producer failed: {error!r}")

    def _reshape(self) -> None:
        chance = random.Random(f"{self.options.seed} reshaping")
        while not self._stopping.wait(chance.expovariate(1 / 5.0)):
            for name in ("input", "copy"):
                try:
                    self._reshape_once(f"scalable/{NAMESPACE}/{name}", chance)
                except REST_ERRORS:
                    self.counts["refused"] += 1

    def _reshape_once(self, path: str, chance: random.Random) -> None:
        segments = self.broker.rest("GET", path)["segments"].items()
        active = sorted((s["hashRange"]["start"], int(n)) for n, s in segments if s["state"] == "ACTIVE")
        at = chance.randrange(len(active))
        if len(active) >= ACTIVE_MAX or (at + 1 < len(active) and chance.random() < 0.5):
            at = min(at, len(active) - 2)
            self.broker.rest("POST", f"{path}/merge/{active[at][1]}/{active[at + 1][1]}")
            self.counts["merge"] += 1
        else:
            self.broker.rest("POST", f"{path}/split/{active[at][1]}")
            self.counts["split"] += 1

    # -- killing

    def _kill_all(self) -> None:
        parties = [party for party in PARTIES for _ in range(self.options.kills)]
        self._chance.shuffle(parties)
        for number, party in enumerate(parties, 1):
            self._pause()
            self._kill(party)
            self.counts[party] += 1
            print(f"{number}/{len(parties)} {party}; {self.summary()}", flush=True)

    def _pause(self) -> None:
        """Mostly until the queries have got on a little, else any moment: while they start, too."""
        if self._chance.random() < 0.75:
            self._wait_for_progress()
            self._watch(self._chance.uniform(0.0, 3.0))
        else:
            self._watch(self._chance.uniform(0.0, 8.0))

    def _watch(self, seconds: float) -> None:
        """Time passes; a driver that ends by itself is started again."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._keep_driver()
            time.sleep(min(left, 0.1))

    def _keep_driver(self) -> None:
        if not self.driver.is_running:
            self.counts["own end"] += 1
            if self.counts["own end"] > OWN_ENDS_MAX * max(3, len(PARTIES) * self.options.kills):
                raise RuntimeError(f"drivers end by themselves again and again: {self.driver.reason()}")
            self.driver.start()

    def _kill(self, party: str) -> None:
        match party:
            case "driver":
                self.driver.kill()
                self.driver.start()
            case "broker":
                self.broker.kill()
                time.sleep(self._chance.uniform(0.0, 2.0))
                self.broker.start()
            case _:
                deadline = time.monotonic() + PROGRESS_MAX_S
                # While a driver starts it has none.
                while not self.driver.kill_executor(self._chance):
                    if time.monotonic() > deadline:
                        raise RuntimeError(f"no executor was there to be killed: {self.driver.reason()}")
                    self._watch(0.2)

    # -- what has come of it

    def _batches(self) -> int:
        return len(list(self.driver.setup.path("table-checkpoint/commits").glob("[0-9]*")))

    def _wait_for_progress(self) -> None:
        names = ["table", *(["copy"] if self.options.has_sink else [])]
        folders = [self.driver.setup.path(f"{name}-checkpoint/commits") for name in names]
        before = [len(list(folder.glob("[0-9]*"))) for folder in folders]
        deadline = time.monotonic() + PROGRESS_MAX_S
        while any(len(list(f.glob("[0-9]*"))) <= n for f, n in zip(folders, before, strict=True)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"no batch in {PROGRESS_MAX_S:.0f} s: {self.driver.reason()}")
            self._watch(0.2)

    def _wait_until_all_is_there(self) -> None:
        rows, since = -1, time.monotonic()
        while (now := self._rows()) < self.published:
            if now != rows:
                rows, since = now, time.monotonic()
            elif time.monotonic() - since > PROGRESS_MAX_S:
                return  # What is missing counts as lost.
            self._watch(1.0)

    def _files(self) -> Iterator[tuple[int, Path]]:
        for folder in sorted(self.driver.setup.path("table").glob("batch=*")):
            # Without the mark it is half written.
            if (folder / "_SUCCESS").exists():
                for file in sorted(folder.glob("*.parquet")):
                    yield int(folder.name.partition("=")[2]), file

    def _rows(self) -> int:
        from pyarrow import parquet

        try:
            return sum(parquet.read_metadata(file).num_rows for _, file in self._files())
        except OSError:  # A batch is being replaced.
            return -1

    def _table(self) -> list[tuple[str, int]]:
        """By batch and position."""
        from pyarrow import parquet

        found: list[tuple[int, Any, str, int]] = []
        for batch, file in self._files():
            for row in parquet.ParquetFile(file).read().to_pylist():
                place = row["position"]
                at = (place["segment"], place["ledger"], place["entry"], place["index"])
                found.append((batch, at, row["key"], row["number"]))
        return [(key, number) for _, _, key, number in sorted(found)]

    def _copied(self) -> list[tuple[str, int]]:
        """What the sink wrote, in a consumer's order. The query may still be at it."""
        found: list[tuple[str, int]] = []
        with (
            blocking.connect(self.broker.url) as client,
            client.checkpoint_consumer(COPY, start="earliest") as consumer,
        ):
            since = time.monotonic()
            # Once all is there, a moment more for what should not be.
            while time.monotonic() - since < (5.0 if len(found) >= self.published else PROGRESS_MAX_S):
                self._keep_driver()
                try:
                    message = consumer.receive(timeout_s=1.0)
                except TimedOut:
                    continue
                found.append(((message.key_bytes or b"").decode(), int(message.payload)))
                since = time.monotonic()
        return found
