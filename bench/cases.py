"""The loads: what each case does to a broker, and which of its figures the table shows.

Every case runs on topics of its own. Client settings are those of a user who wants throughput: entries of up to 128 KB
(the client's default), a publish delay long enough for them to fill, and enough messages outstanding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.javaclient import JavaClient, Outcome, run_python
from bench.systems import System

LINGER_US = 10_000


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things take: the full run and the quick one differ in nothing else."""

    warmup: float
    seconds: float
    backlog: int
    """Messages of 1 KB in a catch-up run."""

    broker_warmup: float = 0.0
    """Seconds of small entries after each start."""


FULL = Pace(warmup=4, seconds=8, backlog=2_000_000, broker_warmup=12)
QUICK = Pace(warmup=3, seconds=5, backlog=1_000_000, broker_warmup=8)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a case's result, by its key, and what a broker should reach compared with Pulsar."""

    key: str
    title: str
    unit: str
    lower_is_better: bool = False
    scale: float = 1.0
    digits: int = 0


@dataclass(frozen=True, slots=True)
class Session:
    """A running system and everything a case needs to load it."""

    system: System
    java: JavaClient
    pace: Pace
    unique: Callable[[], int] = itertools.count(1).__next__

    def topic(self, case: str) -> str:
        name = f"{case}-{self.unique()}"
        return name if self.system.client == "kafka" else f"persistent://public/default/{name}"

    def load(self, kind: str, timeout: float = 120.0, **options: object) -> Outcome:
        where = {"system": self.system.client, "url": self.system.url}
        return self.java.run(self.system.pid, timeout, kind, **where, **options)

    def load_v5(self, kind: str, timeout: float = 120.0, **options: object) -> Outcome:
        """The same through Pulsar's V5 client, on a scalable topic."""
        where = {"system": "v5", "url": self.system.url, "web": f"http://127.0.0.1:{self.system.web_port}"}
        return self.java.run(self.system.pid, timeout, kind, **where, **options)

    def scalable_topic(self, case: str) -> str:
        return f"topic://public/default/{case}-{self.unique()}"


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    title: str
    run: Callable[[Session], Outcome]
    figures: tuple[Figure, ...]
    skips: tuple[str, ...] = ()
    """Kinds of client this case does not exist for."""


def produce(name: str, size: int, pending: int, batched: bool = True) -> Callable[[Session], Outcome]:
    def run(session: Session) -> Outcome:
        return session.load(
            "produce",
            topic=session.topic(name),
            size=size,
            pending=pending,
            batched=batched,
            linger_us=LINGER_US,
            io_threads=1 if batched else 2,
            warmup=session.pace.warmup,
            seconds=session.pace.seconds,
        )

    return run


def fill(session: Session, case: str, count: int) -> str:
    """A topic with a backlog that each of the subscriptions of this file has still to read."""
    topic = session.topic(case)
    session.load("fill", topic=topic, count=count, size=1024, linger_us=LINGER_US, subscriptions="java,raw")
    return topic


def consume_java(session: Session) -> Outcome:
    warm_count = session.pace.backlog // 4
    warm = fill(session, "warm", warm_count)
    topic = fill(session, "backlog", session.pace.backlog)
    return session.load(
        "consume",
        topic=topic,
        count=session.pace.backlog,
        warm_topic=warm,
        warm_count=warm_count,
        subscription="java",
    )


def consume_raw(session: Session) -> Outcome:
    topic = fill(session, "raw", session.pace.backlog)
    where = ["--port", str(session.system.port), "--topic", topic, "--subscription", "raw"]
    return run_python(
        session.system.pid, 120, "bench.rawreader", *where, "--count", str(session.pace.backlog)
    )


def latency(batched: bool) -> Callable[[Session], Outcome]:
    def run(session: Session) -> Outcome:
        return session.load(
            "latency",
            topic=session.topic("latency"),
            rate=1_000,
            size=1024,
            batched=batched,
            # Pulsar's client waits this long for more messages by default; Kafka's does not wait.
            linger_us=1_000 if session.system.client == "pulsar" else 0,
            warmup=session.pace.warmup,
            seconds=session.pace.seconds + 2,
        )

    return run


def latency_raw(session: Session) -> Outcome:
    where = ["--port", str(session.system.port), "--topic", session.topic("latency")]
    pace = ["--warmup", str(session.pace.warmup), "--seconds", str(session.pace.seconds + 2)]
    return run_python(session.system.pid, 120, "bench.rawlatency", *where, *pace)


def v5_produce(session: Session) -> Outcome:
    return session.load_v5(
        "produce",
        topic=session.scalable_topic("v5-produce"),
        segments=4,
        size=1024,
        pending=20_000,
        linger_us=LINGER_US,
        warmup=session.pace.warmup,
        seconds=session.pace.seconds,
    )


def v5_fill(session: Session, count: int) -> str:
    topic = session.scalable_topic("v5-backlog")
    sizes = {"segments": 4, "count": count, "size": 1024, "linger_us": LINGER_US}
    session.load_v5("fill", topic=topic, subscriptions="java", **sizes)
    return topic


def v5_consume(session: Session) -> Outcome:
    count, warm_count = session.pace.backlog, session.pace.backlog // 4
    warm = v5_fill(session, warm_count)
    return session.load_v5(
        "consume",
        topic=v5_fill(session, count),
        count=count,
        warm_topic=warm,
        warm_count=warm_count,
        subscription="java",
    )


def v5_split(session: Session) -> Outcome:
    rounds = max(3, round(session.pace.seconds))
    return session.load_v5(
        "split",
        timeout=180,
        topic=session.scalable_topic("v5-split"),
        segments=1,
        rate=1_000,
        rounds=rounds,
        warmup=session.pace.warmup,
    )


def v5_leave(session: Session) -> Outcome:
    return session.load_v5(
        "leave", timeout=180, topic=session.scalable_topic("v5-leave"), segments=4, rate=1_000
    )


RATE = Figure("per_second", "messages", "k msg/s", scale=1e-3)
MEGABYTES = Figure("mb_per_second", "bytes", "MB/s")
CPU = Figure("broker_cpu_us", "broker CPU per message", "µs", lower_is_better=True, digits=2)
LATENCIES = (
    Figure("publish_p50_ms", "publish p50", "ms", lower_is_better=True, digits=2),
    Figure("publish_p99_ms", "publish p99", "ms", lower_is_better=True, digits=2),
    Figure("end_to_end_p50_ms", "end to end p50", "ms", lower_is_better=True, digits=2),
    Figure("end_to_end_p99_ms", "end to end p99", "ms", lower_is_better=True, digits=2),
)
SPLITS = (
    Figure("call_p50_ms", "admin call", "ms", lower_is_better=True, digits=1),
    Figure(
        "child_async_p50_ms", "first publish on a child, asynchronous", "ms", lower_is_better=True, digits=1
    ),
    Figure(
        "child_sync_p50_ms", "first publish on a child, synchronous", "ms", lower_is_better=True, digits=1
    ),
)
MOVED = Figure("moved_seconds", "its segments move", "s", lower_is_better=True, digits=2)
CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("produce-1k", "produce 1 KB, batched", produce("p1k", 1024, 20_000), (RATE, CPU)),
        Case("produce-10k", "produce 10 KB, batched", produce("p10k", 10_240, 2_000), (MEGABYTES, CPU)),
        Case("produce-100b", "produce 100 B, batched", produce("p100", 100, 50_000), (RATE, CPU)),
        Case(
            "produce-1k-unbatched",
            "produce 1 KB, unbatched, 1,000 pending",
            produce("pun", 1024, 1_000, batched=False),
            (RATE, CPU),
        ),
        Case("consume-1k", "catch-up 1 KB, batched, Java client", consume_java, (RATE, CPU)),
        Case(
            "consume-1k-raw",
            "catch-up 1 KB, batched, raw reader",
            consume_raw,
            (MEGABYTES, RATE, CPU),
            ("kafka",),
        ),
        Case("latency-1k", "1,000 msg/s of 1 KB", latency(batched=True), LATENCIES),
        Case("latency-1k-unbatched", "1,000 msg/s of 1 KB, unbatched", latency(batched=False), LATENCIES),
        Case("latency-1k-raw", "1,000 msg/s of 1 KB, plain sockets", latency_raw, LATENCIES, ("kafka",)),
        Case(
            "v5-produce-1k",
            "V5 client, produce 1 KB keyed, 4 segments",
            v5_produce,
            (RATE, CPU),
            ("kafka",),
        ),
        Case(
            "v5-consume-1k",
            "V5 client, stream consumer, 1 KB, 4 segments",
            v5_consume,
            (RATE, CPU),
            ("kafka",),
        ),
        Case("v5-split", "V5 client, split at 1,000 msg/s", v5_split, SPLITS, ("kafka",)),
        Case("v5-leave", "V5 client, a stream consumer leaves", v5_leave, (MOVED,), ("kafka",)),
    )
}


def metrics(outcome: Outcome) -> dict[str, float]:
    """The flat numbers of an outcome: nested latency figures get their parent's name in front."""
    flat: dict[str, float] = {}
    for key, value in outcome.result.items():
        if isinstance(value, dict):
            flat |= {f"{key}_{name}": float(figure) for name, figure in value.items()}
        elif isinstance(value, (int, float)):
            flat[key] = float(value)
    messages: Any = outcome.result["messages"]
    flat["broker_cpu_us"] = outcome.broker_cpu_seconds * 1e6 / messages
    flat["client_cpu_us"] = outcome.client_cpu_seconds * 1e6 / messages
    flat["broker_cores"] = outcome.broker_cpu_seconds / outcome.timed_seconds
    flat["client_cores"] = outcome.client_cpu_seconds / outcome.timed_seconds
    flat["others_cores"] = outcome.others_cores
    return flat
