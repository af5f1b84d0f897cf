"""`python -m bench.growth`: whether the cost of an entry stays the same as topics and consumers grow. Ours only.

Three series, each on a fresh broker: topics with a producer and a tailing consumer each; consumers sharing one
subscription; consumers with a subscription each. The figure that must stay flat is broker CPU per delivery.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import report, usage
from bench.__main__ import machine_to_ourselves
from bench.javaclient import JavaClient, run_python
from bench.results import Results, describe_machine
from bench.systems import ROOT, SYSTEMS, Settings, System


@dataclass(frozen=True, slots=True)
class Point:
    what: str
    count: int
    topics: int
    consumers: int
    kind: str
    entries: int


def points(most: int) -> list[Point]:
    """The series up to `most` topics; the consumer series end at a tenth of that, as the aims do."""
    counts = [count for count in (1, 100, 1_000, 10_000) if count <= most]
    few = [count for count in counts if count <= 1_000]
    return [
        *(Point("topics, one consumer each", n, n, 1, "own", 30_000) for n in counts),
        *(Point("consumers of one shared subscription", n, 1, n, "shared", 30_000) for n in few),
        # Every entry goes to every subscription: fewer entries keep the number of deliveries alike.
        *(Point("subscriptions of one topic", n, 1, n, "own", max(60, 30_000 // n)) for n in few),
    ]


def measure(system: System, point: Point, number: int) -> dict[str, Any]:
    words = {
        "port": system.port,
        "prefix": f"growth-{number}",
        "topics": point.topics,
        "consumers": point.consumers,
        "kind": point.kind,
        "entries": point.entries,
        # Never more outstanding than a fan-out can drain between two readings of the clock.
        "pending": 200 if point.kind == "shared" or point.consumers == 1 else max(2, 200 // point.consumers),
    }
    arguments = [part for key, value in words.items() for part in (f"--{key}", str(value))]
    watch = usage.PeakWatch(system.pid)
    outcome = run_python(system.pid, 300, "bench.loadgen", *arguments)
    peak = watch.stop()
    result = outcome.result
    return {
        "what": point.what,
        "count": point.count,
        "per_second": round(result["per_second"]),
        "broker_cpu_us": round(outcome.broker_cpu_seconds * 1e6 / result["messages"], 2),
        "p50_ms": round(result["p50_ms"], 3),
        "p99_ms": round(result["p99_ms"], 3),
        "rss_mb": round(peak.rss_mb),
        "others_cores": round(outcome.others_cores, 2),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.growth", description=__doc__)
    parser.add_argument("--system", default="anabranch", choices=[s for s in SYSTEMS if s != "kafka"])
    parser.add_argument("--most", type=int, default=10_000, help="the largest number of topics")
    parser.add_argument("--peers", type=Path, default=ROOT.parent / "shared" / "peers")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks")
    args = parser.parse_args(arguments)
    scratch = Path(tempfile.mkdtemp(prefix="anabranch-growth-"))
    system = SYSTEMS[args.system](Settings(args.peers.resolve(), scratch))
    found = []
    try:
        for number, point in enumerate(points(args.most)):
            with machine_to_ourselves():
                system.start(JavaClient())
                try:
                    found.append(measure(system, point, number))
                finally:
                    system.stop()
            print(f"growth: {found[-1]}", flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    saved = args.out / "results.json"
    results = Results.load(saved) if saved.exists() else Results(describe_machine())
    results.growth = found
    results.save(saved)
    report.write(results, args.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
