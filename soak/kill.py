"""kill -9 at random moments under a mixed load, many times in a row, and a judgement of what the clients saw."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import pulsar

from soak.broker import BrokerProcess
from soak.checker import ProducerHistory, Rules, SubscriptionHistory, Violations, audit
from soak.history import Follower
from soak.waiting import Waiting
from soak.wholes import left_in, wholes
from soak.workload import (
    BRIEF,
    BROKER_SETTINGS,
    KEPT,
    LEAN,
    ONCE,
    SubscriptionPlan,
    Topic,
    Workload,
    lane_of,
    mixed,
    read_payload,
)

ROOT = Path(__file__).resolve().parent.parent
# Longer than the longest pause of Pulsar's clients between two attempts to connect, which is a minute.
QUIET_SECONDS_MAX = 90.0
# Percent of rounds in which the broker is killed again while it starts, before it serves.
KILLED_STARTING_PERCENT = 10
# Percent of rounds in which a topic is closed and opened again under load before the kill.
UNLOADED_PERCENT = 30
SABOTAGE_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Options:
    rounds: int
    seed: int
    seconds: float
    folder: Path
    # Cuts the end off the log after each kill, which must not go unnoticed: it tests the judge.
    sabotage: bool = False


class Judge:
    """Follows every history as it grows."""

    def __init__(self, workload: Workload, folder: Path) -> None:
        self.violations = Violations()
        self.workload = workload
        self.producers = {
            plan.name: ProducerHistory(plan.name, self.violations, partial(lane_of, plan))
            for plan in (*workload.producers, *workload.writers)
        }
        self.subscriptions = [
            (plan, SubscriptionHistory(f"{plan.topic.name}/{plan.name}", plan.rules, self.violations))
            for plan in workload.subscriptions
        ]
        self._follow: list[tuple[Follower, ProducerHistory | SubscriptionHistory]] = [
            *((Follower(folder / f"producer-{name}.log"), one) for name, one in self.producers.items()),
            *((Follower(folder / plan.file), one) for plan, one in self.subscriptions),
        ]

    def read(self) -> None:
        for follower, history in self._follow:
            for event in follower.new():
                history.feed(event)

    def of(self, topic: Topic) -> list[ProducerHistory]:
        return [self.producers[plan.name] for plan in self.workload.producers_of(topic)]

    def outstanding(self) -> int:
        """How many messages are still to come or to be acknowledged."""
        return sum(
            sum(1 for _ in history.missing(self.of(plan.topic))) + sum(1 for _ in history.unacked())
            for plan, history in self.subscriptions
        )

    def figures(self) -> str:
        receipts = sum(len(one.receipts) for one in self.producers.values())
        received = sum(history.received for _, history in self.subscriptions)
        answered = sum(history.answered for _, history in self.subscriptions)
        return (
            f"{receipts:,} receipts, {received:,} deliveries, {answered:,} acks answered, "
            f"{self.violations.count} violations"
        )

    def finish(self) -> None:
        for producer in self.producers.values():
            producer.finish()
        for plan, history in self.subscriptions:
            history.finish(self.of(plan.topic))


def prepare(broker: BrokerProcess, workload: Workload) -> None:
    for namespace in (KEPT, ONCE, LEAN, BRIEF):
        broker.rest("PUT", f"namespaces/{namespace}", {})
    unused = {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 1,
        "deleteWhileInactive": True,
    }
    broker.rest("POST", f"namespaces/{BRIEF}/inactiveTopicPolicies", unused)
    for namespace in (KEPT, ONCE, BRIEF):
        keep = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        broker.rest("POST", f"namespaces/{namespace}/retention", keep)
    broker.rest("POST", f"namespaces/{ONCE}/deduplication", True)
    for topic in workload.topics:
        if topic.partitions:
            broker.rest("PUT", f"persistent/{topic.name}/partitions", topic.partitions)


class Worker:
    """A client process, which reports on standard output and ends when its input does."""

    def __init__(self, module: str, url: str, folder: Path, seed: int, *more: str) -> None:
        with (folder / f"{module}.err").open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, url, str(folder), str(seed), *more],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    @property
    def _input(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    def expect(self, word: str) -> list[str]:
        """The lines that it prints up to the one that begins with `word`."""
        assert self._process.stdout is not None
        said: list[str] = []
        for line in self._process.stdout:
            if line.strip() == word:
                return said
            said.append(line.strip())
        raise RuntimeError(f"a client process ended early: {said}")

    def tell(self, word: str) -> None:
        self._input.write(word + "\n")
        self._input.flush()

    def finish(self) -> list[str]:
        self._input.close()
        said = self.expect("done")
        self._process.wait(30)
        return said

    def end(self) -> None:
        # Leaving the context closes both pipes and waits for the process.
        with self._process:
            if self._process.poll() is None:
                self._process.kill()


class Load:
    """The mixed load on a broker, from its first client to the judgement of what all of them saw."""

    def __init__(self, broker: BrokerProcess, folder: Path, seed: int) -> None:
        self.workload = mixed()
        self.judge = Judge(self.workload, folder)
        self._broker = broker
        self._folder = folder
        self._seed = seed
        self._workers: list[Worker] = []

    def start(self) -> None:
        """The broker must be serving."""
        prepare(self._broker, self.workload)
        self._consumers = self._worker("soak.consume")
        self._consumers.expect("ready")
        self._producers = self._worker("soak.produce")
        self._writers = self._worker("soak.hidden", f"http://127.0.0.1:{self._broker.http_port}")
        self._waiting = Waiting(self._broker, self._seed)
        self._waiting.start()

    def _worker(self, module: str, *more: str) -> Worker:
        made = Worker(module, self._broker.url, self._folder, self._seed, *more)
        self._workers.append(made)
        return made

    def finish(self) -> None:
        """Ends the load, waits until everything has come, and judges. The broker must be serving."""
        broker, judge = self._broker, self.judge
        self._waiting.end()
        self._waiting.judge(judge.violations)
        for line in self._writers.finish():
            judge.violations.add(line)
        _settle(broker, judge, self._producers, self._consumers)
        said = self._consumers.finish()
        judge.read()
        for plan, history in judge.subscriptions:
            if plan.is_chunked:
                _read_left_chunks(broker, plan, history)
        judge.finish()
        for topic in self.workload.topics:
            if topic.is_kept:
                _audit(broker, topic, judge)
        for topic in self.workload.brief_topics:
            _audit(broker, topic, judge)
        print(*said, sep="\n", end="\n" if said else "")

    def end(self) -> None:
        for worker in self._workers:
            worker.end()


def run(options: Options) -> int:
    """Returns the exit code: 0 if nothing was violated."""
    options.folder.mkdir(parents=True, exist_ok=True)
    broker = BrokerProcess(options.folder / "data", BROKER_SETTINGS)
    load = Load(broker, options.folder, options.seed)
    print(f"soak: {options.rounds} kills, seed {options.seed}, histories in {options.folder}", flush=True)
    try:
        broker.start()
        load.start()
        slowest = _rounds(broker, load.judge, options)
        load.finish()
        judge = load.judge
        failures = sum(one.failures for one in judge.producers.values())
        print(f"\n{options.rounds} kills, seed {options.seed}: {judge.figures()}")
        print(
            f"slowest restart {slowest:.2f} s; {failures:,} sends given up by closing clients and sent again"
        )
        return summary(judge, options.seed, options.folder)
    finally:
        load.end()
        if broker.is_running:
            broker.kill()


def _rounds(broker: BrokerProcess, judge: Judge, options: Options) -> float:
    chance = random.Random(options.seed)
    slowest = 0.0
    for number in range(1, options.rounds + 1):
        lived = chance.uniform(0.2, options.seconds)
        extra = ""
        if chance.uniform(0, 100) < UNLOADED_PERCENT:
            extra = _unload(broker, judge.workload, chance, lived / 2)
            time.sleep(lived / 2)
        else:
            time.sleep(lived)
        broker.kill()
        if options.sabotage:
            cut_log(broker.data)
        if chance.uniform(0, 100) < KILLED_STARTING_PERCENT:
            broker.spawn()
            time.sleep(chance.uniform(0, 1.0))
            broker.kill()
            extra += " (killed once more while starting)"
        took = broker.start()
        slowest = max(slowest, took)
        judge.read()
        print(
            f"round {number}/{options.rounds}: killed after {lived:.2f} s{extra}, serving again in {took:.2f} s; "
            f"{judge.figures()}",
            flush=True,
        )
    return slowest


def _unload(broker: BrokerProcess, workload: Workload, chance: random.Random, after: float) -> str:
    """Makes the broker unload a topic in the middle of a round; its clients must reconnect by themselves."""
    topic = chance.choice(workload.topics)
    time.sleep(after)
    broker.rest("PUT", f"persistent/{topic.name}/unload")
    return f" ({topic.name} unloaded before)"


def cut_log(data: Path) -> None:
    """Removes the last written bytes, like a disk that lied about a sync."""
    cut_tail((data / "log" / "wal").glob("*/*.wal"))


def cut_tail(files: Iterable[Path]) -> None:
    """The same, in the newest of these files."""
    newest = max(files, key=lambda path: path.stat().st_mtime_ns)
    size = newest.stat().st_size
    written = len(newest.read_bytes().rstrip(b"\0"))
    with newest.open("r+b") as file:
        file.truncate(max(0, written - SABOTAGE_BYTES))
        file.truncate(size)


def _settle(broker: BrokerProcess, judge: Judge, producers: Worker, consumers: Worker) -> None:
    """Ends the load, restarts once more so that everything not acknowledged comes again, and waits for that."""
    for line in producers.finish():
        judge.violations.add(line)
    consumers.tell("drain")
    broker.kill()
    broker.start()
    judge.read()
    before, changed = judge.outstanding(), time.monotonic()
    while before and time.monotonic() - changed < QUIET_SECONDS_MAX:
        time.sleep(1)
        judge.read()
        now = judge.outstanding()
        if now != before:
            before, changed = now, time.monotonic()
    # One more life: nothing whose ack was answered may come back now.
    broker.kill()
    broker.start()
    time.sleep(3)
    judge.read()


def _read_left_chunks(broker: BrokerProcess, plan: SubscriptionPlan, history: SubscriptionHistory) -> None:
    """Reads what Pulsar's consumer left in a subscription of chunked messages.

    If a kill makes a producer begin a message again, the log has its first chunk twice. That consumer then refuses
    every chunk of the message, also when they come again and also after it was opened anew.
    """
    for at, payload in left_in(broker.port, plan.topic.url, plan.name):
        producer, index, key = read_payload(payload)
        where = (str(-1), str(at.ledgerId), str(at.entryId), str(-1))
        history.feed(("m", "left", producer, str(index), key or "-", *where))
        history.feed(("a", "left", *where))


def _audit(broker: BrokerProcess, topic: Topic, judge: Judge) -> None:
    """Reads the whole log with Pulsar's own reader and compares it with every receipt.

    That reader drops a chunked message of which some chunks came before a kill and all came after it, so chunks are
    joined here.
    """
    by_key = any(plan.style == "keyed-batches" for plan in judge.workload.producers_of(topic))
    rules = Rules("key" if by_key else "producer", acks=False, single_place=topic.is_deduplicated)
    stored = SubscriptionHistory(f"log of {topic.name}", rules, judge.violations)
    is_chunked = any(plan.style == "chunked" for plan in judge.workload.producers_of(topic))
    if is_chunked:
        for at, payload in wholes(broker.port, topic.url):
            producer, index, key = read_payload(payload)
            where = (-1, at.ledgerId, at.entryId, -1)
            stored.feed(("m", "audit", producer, str(index), key, *map(str, where)))
    else:
        client = pulsar.Client(
            broker.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, str(broker.log) + ".audit")
        )
        try:
            names = [f"{topic.url}-partition-{n}" for n in range(topic.partitions)] or [topic.url]
            for partition, name in enumerate(names):
                _read_log(client, name, partition if topic.partitions else -1, stored)
        finally:
            client.close()
    stored.finish(judge.of(topic))
    if not is_chunked:
        # A chunked message has the id of its last chunk in one place and of its first in the other.
        audit(stored.name, stored, judge.of(topic), judge.violations)


def _read_log(client: Any, name: str, partition: int, stored: SubscriptionHistory) -> None:
    reader = client.create_reader(name, pulsar.MessageId.earliest)
    with contextlib.closing(reader):
        while reader.has_message_available():
            message = reader.read_next(timeout_millis=10_000)
            at = message.message_id()
            producer, index, key = read_payload(message.data())
            where = (partition, at.ledger_id(), at.entry_id(), at.batch_index())
            stored.feed(("m", "audit", producer, str(index), key, *map(str, where)))


def summary(judge: Judge, seed: int, folder: Path) -> int:
    """Prints what each subscription saw and all violations; returns the exit code."""
    for plan, history in judge.subscriptions:
        wanted = sum(len(one.receipts) for one in judge.of(plan.topic))
        lost = sum(1 for _ in history.missing(judge.of(plan.topic)))
        print(
            f"  {history.name:34} {plan.kind:10} {wanted:9,} receipted {history.received:9,} received "
            f"{history.answered:9,} acks answered {lost} lost"
        )
    for violation in judge.violations.found:
        print(f"VIOLATION {violation}")
    if judge.violations.count:
        print(f"FAILED with seed {seed}: {judge.violations.count} violations; see {folder}")
        return 1
    print("nothing acked was lost, reordered, doubled or skipped")
    return 0
