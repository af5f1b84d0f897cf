"""`python -m soak tables`: two writers, a broker and a reader are killed with `kill -9` while a topic is written,
splits and merges; every answer of the reader is judged.

- Each answer has no message twice, and every message that had a receipt when it was asked for.
- What is read on from its cut has nothing of it.
- At the end the answer is what was sent, and so is the table alone, once a writer has caught up.

Freshness is how long an answer took: at its end it has everything that was confirmed when it was asked for, so nothing
that it lacks is older than that. Answers during which the broker was away are counted apart.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
import time
import urllib.error
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anabranch import blocking
from soak.broker import REST_ERRORS, BrokerProcess, command

TOPIC = "topic://public/default/soak"
PATH = "scalable/public/default/soak"
PARTIES = ("writer", "other writer", "broker", "reader")


@dataclass(frozen=True)
class Options:
    kills: int  # Of each party.
    seed: int
    folder: Path
    rate: float = 400.0
    fresh_s_max: float = 2.0
    sabotage: bool = False


@dataclass
class Load:
    """Sends numbered messages, and knows when each had its receipt."""

    url: str
    rate: float
    confirmed_s: list[float] = field(default_factory=list)  # By number; 0 until then.
    stopping: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None

    def run(self) -> None:
        try:
            with (
                blocking.connect(self.url) as client,
                client.producer(TOPIC, name="soak", send_timeout_s=None) as producer,
            ):
                began = time.monotonic()
                while not self.stopping.is_set():
                    number = len(self.confirmed_s)
                    self.confirmed_s.append(0.0)
                    future = producer.post(b"%d" % number, key=f"key-{number % 61}")
                    future.add_done_callback(partial(self._confirmed, number))
                    ahead = number / self.rate - (time.monotonic() - began)
                    if ahead > 0.01:
                        time.sleep(ahead)
                    elif ahead < -1.0:
                        began = time.monotonic() - number / self.rate  # No rush after an outage.
                producer.flush()
        except BaseException as error:
            self.failure = error

    def _confirmed(self, number: int, done: Any) -> None:
        if done.exception() is None:
            self.confirmed_s[number] = time.monotonic()

    def confirmed_before(self, moment_s: float) -> Any:
        times = np.array(self.confirmed_s)
        return np.flatnonzero((times > 0) & (times <= moment_s))


class Child:
    """A process of the soak, started again after each kill."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self._arguments, self._log = arguments, log
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def keep_alive(self) -> None:
        """Starts it again if it has ended by itself, as it does while there is no broker."""
        if self._process.poll() is not None:
            self.start()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclass
class Judge:
    folder: Path
    load: Load
    fresh_s_max: float
    violations: list[str] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)
    took_in_outages_s: list[float] = field(default_factory=list)
    outages: list[tuple[float, float]] = field(default_factory=list)
    answers: int = 0
    with_tail: int = 0
    followed: int = 0

    def look(self) -> None:
        for path in sorted(self.folder.glob("*.json")):
            told = json.loads(path.read_text())
            with np.load(path.with_suffix(".npz")) as found:
                answer, followed = found["answer"], found["followed"]
            self._judge(path.stem, told, answer, followed)
            path.unlink()
            path.with_suffix(".npz").unlink()

    def _judge(self, name: str, told: dict[str, Any], answer: Any, followed: Any) -> None:
        self.answers += 1
        self.with_tail += told["tail"] > 0
        self.followed += len(followed)
        numbers, counts = np.unique(answer, return_counts=True)
        if (counts > 1).any():
            self._wrong(f"{name} {told}: twice: {numbers[counts > 1][:10].tolist()}")
        lacking = np.setdiff1d(self.load.confirmed_before(told["began"]), numbers)
        if len(lacking):
            self._wrong(f"{name} {told}: {len(lacking)} confirmed and not there: {lacking[:10].tolist()}")
        both = np.intersect1d(numbers, followed)
        if len(both):
            self._wrong(f"{name} {told}: read again from its cut: {both[:10].tolist()}")
        took = told["ended"] - told["began"]
        is_calm = all(end < told["began"] or start > told["ended"] for start, end in self.outages)
        (self.took_s if is_calm else self.took_in_outages_s).append(took)

    def _wrong(self, text: str) -> None:
        self.violations.append(text)
        print(f"VIOLATION {text}", flush=True)


def run(options: Options) -> int:
    chance = random.Random(options.seed)
    folder = options.folder
    answers = folder / "answers"
    answers.mkdir(parents=True)
    settings = {
        "tablesUrl": str(folder / "tables"),
        "tablesCommitSeconds": 1,
        "tablesWriterEnabled": False,
        "brokerDeduplicationEnabled": True,
    }
    broker = BrokerProcess(folder / "data", settings)
    print(
        f"soak tables: seed {options.seed}, {options.kills} kills of each of {', '.join(PARTIES)}", flush=True
    )
    broker.start()
    broker.rest("PUT", f"{PATH}?numInitialSegments=1")
    broker.rest("POST", f"{PATH}/autoScalePolicy", {"enabled": False})
    broker.rest("POST", f"{PATH}/table", "raw")
    load = Load(broker.url, options.rate)
    judge = Judge(answers, load, options.fresh_s_max)
    sending = threading.Thread(target=load.run, daemon=True)
    sending.start()
    admin = f"http://127.0.0.1:{broker.http_port}"
    writing = [command(), "tables", "run", "--admin-url", admin, "--service-url", broker.url]
    reading = [sys.executable, "-m", "soak.tables.reader", broker.url, TOPIC, str(answers)]
    children = {
        "writer": Child(writing, folder / "writer.log"),
        "other writer": Child(writing, folder / "other-writer.log"),
        "reader": Child(reading, folder / "reader.log"),
    }
    order = [party for party in PARTIES for _ in range(options.kills)]
    chance.shuffle(order)
    try:
        for number, party in enumerate(order, 1):
            _live(chance.uniform(0.5, 3.0), judge, children)
            if party == "broker":
                began = time.monotonic()
                broker.kill()
                broker.start()
                judge.outages.append((began, time.monotonic() + 1.0))
            else:
                children[party].kill()
                children[party].start()
            _reshape(chance, broker)
            if number % 10 == 0:
                print(f"{number} of {len(order)} kills, {judge.answers} answers", flush=True)
            if load.failure is not None:
                raise load.failure
        _live(3.0, judge, children)
        load.stopping.set()
        sending.join(120)
        if sending.is_alive() or load.failure is not None:
            judge.violations.append(f"the producer did not end: {load.failure}")
    finally:
        for child in children.values():
            child.kill()
    judge.look()
    _end(judge, load, broker, writing, options)
    broker.terminate()
    return _told(judge, load, options)


def _live(seconds: float, judge: Judge, children: dict[str, Child]) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.1)
        for child in children.values():
            child.keep_alive()
        judge.look()


def _reshape(chance: random.Random, broker: BrokerProcess) -> None:
    """Splits a segment, or merges two."""
    with contextlib.suppress(*REST_ERRORS, urllib.error.HTTPError):
        found = broker.rest("GET", PATH)["segments"].items()
        active = sorted((one["hashRange"]["start"], int(n)) for n, one in found if one["state"] == "ACTIVE")
        at = chance.randrange(len(active))
        if len(active) > 5 or (at + 1 < len(active) and chance.random() < 0.5):
            at = min(at, len(active) - 2)
            broker.rest("POST", f"{PATH}/merge/{active[at][1]}/{active[at + 1][1]}")
        else:
            broker.rest("POST", f"{PATH}/split/{active[at][1]}")


def _end(judge: Judge, load: Load, broker: BrokerProcess, writing: list[str], options: Options) -> None:
    """The last answer, and the table alone once a writer has caught up."""
    from soak.tables.reader import numbers

    sent = list(range(len(load.confirmed_s)))
    with blocking.connect(broker.url) as client:
        if options.sabotage:
            with client.producer(TOPIC) as producer:
                producer.send(b"0", key="again")
        whole = client.table(TOPIC)
        if sorted(numbers(whole.to_arrow(["value"]).column("value")).tolist()) != sent:
            judge.violations.append("the last answer is not what was sent")
        subprocess.run([*writing, "--once"], check=True, timeout=120, capture_output=True)
        alone = client.table(TOPIC, part="history")
        if sorted(numbers(alone.to_arrow(["value"]).column("value")).tolist()) != sent:
            judge.violations.append("the table alone is not what was sent")
        print(f"the table: version {alone.version}, {len(alone.files)} files", flush=True)


def _told(judge: Judge, load: Load, options: Options) -> int:
    def of(times: list[float]) -> str:
        if not times:
            return "none"
        found = np.array(times)
        return f"{len(found)}: p50 {np.median(found):.2f}, p99 {np.quantile(found, 0.99):.2f}, max {found.max():.2f} s"

    print(
        f"{len(load.confirmed_s)} messages sent; {judge.answers} answers, {judge.with_tail} of them with a tail, "
        f"{judge.followed} messages read on from their cuts"
    )
    print(f"freshness of answers: {of(judge.took_s)}")
    print(f"of answers while the broker was away or just back: {of(judge.took_in_outages_s)}")
    late = sum(took > options.fresh_s_max for took in judge.took_s)
    if late:
        print(f"{late} answers took more than {options.fresh_s_max:g} s")
    print(f"{len(judge.violations)} violations")
    for one in judge.violations[:20]:
        print(f"  {one}")
    return 1 if judge.violations else 0
