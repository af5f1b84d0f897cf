"""Producers and consumers that an application would have, in a process of their own, while brokers end and come back.

A program gets its topics and a file. It makes a producer and a consumer of each topic with default settings, says that
it is ready, and sends numbered messages at a fixed rate until its standard input ends; then it waits for receipts and
for its consumers. Each line of the file is one of

    r TOPIC NUMBER SENT_US RECEIPT_US     a receipt, with the times of day in microseconds
    x TOPIC NUMBER TEXT                   a message whose sending failed
    m TOPIC NUMBER                        a received message
    e TEXT                                any other error that the application sees

where TOPIC is the topic's place among those given. `bench/java` has the program for Java's client, `steady_wheel` for
Pulsar's Python client, `steady_ours` for ours.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulsar

from bench.javaclient import QUIET, JavaClient

ROOT = Path(__file__).resolve().parents[2]
JAVA, WHEEL, OURS = "Java", "wheel", "ours"
END_S_MAX = 120.0
READY_S_MAX = 60.0


def has_java() -> bool:
    return bool(shutil.which("java") and shutil.which("mvn"))


def command(client: str, url: str, topics: Sequence[str], rate: int, out: Path) -> list[str]:
    if client == JAVA:
        java = JavaClient()
        java.build()
        return java.command("steady", url=url, topics=",".join(topics), rate=rate, out=out)
    module = {WHEEL: "bench.cluster.steady_wheel", OURS: "bench.cluster.steady_ours"}[client]
    return [sys.executable, "-m", module, url, ",".join(topics), str(rate), str(out)]


@dataclass(slots=True)
class Seen:
    """What one program noted, by topic."""

    # Number, time of sending and time of the receipt, in seconds, in the order of the receipts.
    receipts: dict[int, list[tuple[int, float, float]]] = field(default_factory=lambda: defaultdict(list))
    received: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Seen:
        seen = cls()
        for line in path.read_text(errors="replace").splitlines():
            kind, _, rest = line.partition(" ")
            words = rest.split(" ")
            if kind == "r":
                seen.receipts[int(words[0])].append((int(words[1]), int(words[2]) / 1e6, int(words[3]) / 1e6))
            elif kind == "m":
                seen.received[int(words[0])].append(int(words[1]))
            elif kind in ("x", "e"):
                seen.errors.append(rest)
        return seen


class Program:
    def __init__(self, client: str, url: str, topics: Sequence[str], rate: int, out: Path) -> None:
        self.client, self.topics, self.out = client, list(topics), out
        self._process = subprocess.Popen(
            command(client, url, topics, rate, out),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(out.parent / f"{out.name}.err").open("wb"),
            text=True,
            cwd=ROOT,
            env=os.environ | QUIET,
        )

    def wait_ready(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if "ready" in line:
                return
        raise RuntimeError(f"{self.client} did not start:\n{self._complaints()}")

    def _complaints(self) -> str:
        return (self.out.parent / f"{self.out.name}.err").read_text(errors="replace")[-3000:]

    def finish(self) -> Seen:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.stdin = None
        self._process.communicate(timeout=END_S_MAX)
        seen = Seen.read(self.out)
        if self._process.returncode:
            seen.errors.append(f"ended with {self._process.returncode}: {self._complaints()}")
        return seen

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@contextmanager
def programs(made: Sequence[Program]) -> Iterator[None]:
    """Ready when the block begins, ended with it in any case."""
    try:
        for program in made:
            program.wait_ready()
        yield
    finally:
        for program in made:
            program.end()


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of one program's messages."""

    confirmed: int
    errors: list[str]
    # Confirmed and not in the log, or not delivered.
    lost: int
    # More than once in the log.
    doubled: int
    # In the log, or among what was delivered for the first time, behind one with a higher number.
    reordered: int
    delivered_again: int


def judged(program: Program, seen: Seen, url: str) -> Judgement:
    client: Any = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    lost = doubled = reordered = again = confirmed = 0
    try:
        for place, topic in enumerate(program.topics):
            stored = list(_stored(client, topic))
            sent = {number for number, _, _ in seen.receipts[place]}
            received = seen.received[place]
            confirmed += len(sent)
            lost += len(sent - set(stored)) + len(sent - set(received))
            doubled += len(stored) - len(set(stored))
            reordered += _out_of_order(stored) + _out_of_order(received)
            again += len(received) - len(set(received))
    finally:
        client.close()
    return Judgement(confirmed, seen.errors, lost, doubled, reordered, again)


def _stored(client: Any, topic: str) -> Iterator[int]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    while reader.has_message_available():
        yield int(reader.read_next(timeout_millis=30_000).data())
    reader.close()


def _out_of_order(numbers: Sequence[int]) -> int:
    """How many come for the first time behind a higher one."""
    highest, count, known = -1, 0, set[int]()
    for number in numbers:
        if number not in known:
            known.add(number)
            count += number < highest
            highest = max(highest, number)
    return count
