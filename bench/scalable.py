"""`python -m bench.scalable`: what idle scalable topics cost our broker, and how fast a consumer that leaves is
replaced.

Two figures that need no peer: many topics on one broker, made and then published to once each (memory, CPU while
nothing happens); and a stream consumer that says it leaves, over plain sockets, until the other has its segments.
"""

from __future__ import annotations

import argparse
import http.client
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from bench import report, usage, wire
from bench.__main__ import machine_to_ourselves
from bench.javaclient import JavaClient
from bench.results import Results, describe_machine
from bench.systems import ROOT, SYSTEMS, Settings, System

SCALABLE_SUBSCRIBE, SCALABLE_SUBSCRIBED, ASSIGNMENT = 73, 74, 75
SEGMENTS = 4
CREATORS = 4
SETTLE_S = 150.0


def create(system: System, names: list[str], segments: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", system.web_port, timeout=60)
    try:
        for name in names:
            path = f"/admin/v2/scalable/public/default/{name}?numInitialSegments={segments}"
            connection.request("PUT", path, None, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            body = answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{name}: {answer.status} {body.decode(errors='replace')}")
    finally:
        connection.close()


# -- many topics


def many(system: System, count: int, idle_s: float) -> list[dict[str, Any]]:
    names = [f"many-{n:05d}" for n in range(count)]
    began = time.monotonic()
    with ThreadPoolExecutor(CREATORS) as pool:
        list(pool.map(lambda at: create(system, names[at::CREATORS], 1), range(CREATORS)))
    took = time.monotonic() - began
    made = _at_rest(system, f"{count:,} scalable topics", idle_s)
    link = wire.Blocking(system.port)
    try:
        for number, name in enumerate(names, 1):
            topic = f"segment://public/default/{name}/0000-ffff-0"
            data, start, end = link.ask(wire.producer(topic, number, number), wire.PRODUCER_SUCCESS)
            producer = next(bytes(data[a:b]).decode() for f, a, b in wire.fields(data, start, end) if f == 2)
            link.ask(wire.send(number, 0, producer, b"once"), wire.SEND_RECEIPT)
    finally:
        link.close()
    # Load reports include the publishing for a minute after it, and each topic's first evaluation of them follows.
    time.sleep(SETTLE_S)
    used = _at_rest(system, f"{count:,} scalable topics, each published to", idle_s)
    return [_row(f"making {count:,} scalable topics", round(took, 1), "s", ""), *made, *used]


def _at_rest(system: System, what: str, idle_s: float) -> list[dict[str, Any]]:
    time.sleep(2)  # The requests are done; their background work may not be.
    before = usage.cpu_seconds(system.pid)
    time.sleep(idle_s)
    share = 100 * (usage.cpu_seconds(system.pid) - before) / idle_s
    return [
        _row(f"{what}: memory", round(usage.memory(system.pid).rss_mb), "MB", "≤ 1,000 MB"),
        _row(f"{what}: idle CPU", round(share, 1), "% of a core", "≤ 5 %"),
    ]


def _row(what: str, figure: float, unit: str, aim: str) -> dict[str, Any]:
    return {"what": what, "figure": figure, "unit": unit, "aim": aim}


# -- leaving


class Member:
    """A stream consumer's session and nothing else: no consumer at any segment."""

    def __init__(self, port: int, topic: str, name: str) -> None:
        self.link = wire.Blocking(port)
        body = wire.number(1, 1) + wire.text(2, topic) + wire.text(3, "s") + wire.text(4, name)
        request = wire.frame(SCALABLE_SUBSCRIBE, body + wire.number(5, 1) + wire.number(6, 0))
        self.segments = _segments(*self.link.ask(request, SCALABLE_SUBSCRIBED), 4)

    def wait_for(self, segments: int) -> None:
        while self.segments != segments:
            self.segments = _segments(*self.link.ask(b"", ASSIGNMENT), 2)

    def leave(self) -> None:
        self.link.sock.sendall(wire.frame(wire.CLOSE_CONSUMER, wire.number(1, 1) + wire.number(2, 2)))


def _segments(data: bytes, start: int, end: int, field: int) -> int:
    """How many segments the assignment in this field of a command names."""
    for number, a, b in wire.fields(data, start, end):
        if number == field:
            return sum(1 for inner, _, _ in wire.fields(data, a, b) if inner == 2)
    raise wire.BrokerRefused(wire.explain(data, start, end))


def leave(system: System, rounds: int) -> list[dict[str, Any]]:
    took = []
    for number in range(rounds):
        name = f"leave-{number}"
        create(system, [name], SEGMENTS)
        topic = f"topic://public/default/{name}"
        stays, leaves = Member(system.port, topic, "stays"), Member(system.port, topic, "leaves")
        stays.wait_for(SEGMENTS // 2)
        began = time.monotonic()
        leaves.leave()
        stays.wait_for(SEGMENTS)
        took.append(1000 * (time.monotonic() - began))
        stays.link.close()
        leaves.link.close()
    return [
        _row(
            "a stream consumer says that it leaves: its segments move", round(median(took), 2), "ms", "< 1 s"
        )
    ]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.scalable", description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--idle", type=float, default=60.0, help="seconds over which CPU at rest is measured")
    parser.add_argument("--rounds", type=int, default=20, help="consumers that leave")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks")
    args = parser.parse_args(arguments)
    scratch = Path(tempfile.mkdtemp(prefix="anabranch-scalable-"))
    system = SYSTEMS["anabranch"](Settings(scratch, scratch))
    try:
        with machine_to_ourselves():
            system.start(JavaClient())
            try:
                found = leave(system, args.rounds) + many(system, args.topics, args.idle)
            finally:
                system.stop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    for row in found:
        print(f"scalable: {row['what']}: {row['figure']:,} {row['unit']}", flush=True)
    saved = args.out / "results.json"
    results = Results.load(saved) if saved.exists() else Results(describe_machine())
    results.scalable = found
    results.save(saved)
    report.write(results, args.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
