"""`python -m bench`: every system, every case, several rounds; then the table and the chart.

Systems take turns within each round, so that a slow minute of the machine does not fall on one of them alone. A lock
file keeps two timed runs apart. Every system is stopped and its data removed, whatever happens.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import report, usage
from bench.cases import CASES, FULL, QUICK, Case, Pace, Session, metrics, produce
from bench.javaclient import JavaClient, LoadFailed
from bench.results import DISTURBED_CORES, Record, Results, describe_machine
from bench.systems import ROOT, SYSTEMS, Settings, System

GIGABYTE = 1024**3


@contextmanager
def machine_to_ourselves() -> Iterator[None]:
    """Holds the lock that every timed run on this machine takes."""
    path = os.environ.get("BENCH_LOCK", str(Path(tempfile.gettempdir()) / "bench.lock"))
    with open(path, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Run:
    def __init__(
        self, java: JavaClient, results: Results, pace: Pace, data_gb_max: float, retries: int
    ) -> None:
        self._java, self._results, self._pace, self._retries = java, results, pace, retries
        self._data_bytes_max = data_gb_max * GIGABYTE

    def take_turn(self, system: System, cases: list[Case], number: int) -> None:
        """One system through every case of one round."""
        try:
            self._start(system, number)
            for case in cases:
                if system.client in case.skips:
                    continue
                # Brokers keep what they were sent; a full disk would end the run, so they start afresh before that.
                if usage.tree_bytes(system.data) > self._data_bytes_max:
                    system.stop()
                    self._start(system, number)
                self._measure(system, case, number)
        finally:
            system.stop()

    def _start(self, system: System, number: int) -> None:
        with machine_to_ourselves():
            busy = usage.machine_busy_seconds()
            system.start(self._java)
            seconds = system.first_publish_seconds
            busy = usage.machine_busy_seconds() - busy
            self._keep(
                Record(system.name, "start", number, {"first_publish_seconds": seconds, "busy_seconds": busy})
            )
            # Brokers on a Java machine compile as they run; small unbatched entries warm them with the fewest bytes.
            warm = Pace(warmup=1, seconds=self._pace.broker_warmup, backlog=0)
            produce("warm", 100, 1_000, batched=False)(Session(system, self._java, warm))

    def _measure(self, system: System, case: Case, number: int) -> None:
        """Runs the case, again if other work disturbed it, and keeps the least disturbed run."""
        best: Record | None = None
        for _ in range(1 + self._retries):
            record = self._once(system, case, number)
            if record.failure:
                best = best or record
                break
            if best is None or record.metrics["others_cores"] < best.metrics["others_cores"]:
                best = record
            if record.metrics["others_cores"] <= DISTURBED_CORES:
                break
        assert best is not None
        self._keep(best)

    def _once(self, system: System, case: Case, number: int) -> Record:
        with machine_to_ourselves():
            # Pages that the last case left unwritten would be charged to this one.
            os.sync()
            watch = usage.PeakWatch(system.pid)
            try:
                figures = metrics(case.run(Session(system, self._java, self._pace)))
                failure = ""
            except LoadFailed as failed:
                figures, failure = {}, str(failed)
            peak = watch.stop()
        figures |= {"rss_mb": peak.rss_mb, "anon_mb": peak.anon_mb}
        return Record(system.name, case.name, number, figures, failure)

    def _keep(self, record: Record) -> None:
        self._results.records.append(record)
        keys = "per_second mb_per_second publish_p50_ms publish_p99_ms end_to_end_p50_ms end_to_end_p99_ms "
        keys += "first_publish_seconds broker_cores client_cores others_cores rss_mb"
        parts = [f"{key} {record.metrics[key]:,.2f}" for key in keys.split() if key in record.metrics]
        what = record.failure.strip() or ", ".join(parts)
        print(f"bench: round {record.round} {record.system} {record.case}: {what}", flush=True)


def parse(arguments: list[str]) -> argparse.Namespace:
    peers = Path(os.environ.get("PEERS_DIR", ROOT.parent / "shared" / "peers"))
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--systems", default=",".join(SYSTEMS), help=f"of {', '.join(SYSTEMS)}")
    parser.add_argument("--cases", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, help="3 unless told; 1 with --quick")
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    parser.add_argument(
        "--peers", type=Path, default=peers, help="scripts that start Pulsar and Kafka (PEERS_DIR)"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks")
    parser.add_argument(
        "--keep", action="store_true", help="add to the results in --out instead of starting anew"
    )
    parser.add_argument(
        "--report", action="store_true", help="only draw the table and chart of the results in --out"
    )
    parser.add_argument(
        "--data-gb-max", type=float, default=25, help="a broker with more on disk is started afresh"
    )
    parser.add_argument(
        "--retries", type=int, default=2, help="for runs that other work on the machine disturbed"
    )
    return parser.parse_args(arguments)


def chosen(known: dict[str, type[System]], names: str, settings: Settings) -> list[System]:
    systems = []
    for name in names.split(","):
        lack = known[name].missing(settings)
        if lack:
            print(f"bench: {name} is left out: {lack}", flush=True)
        else:
            systems.append(known[name](settings))
    return systems


def main(arguments: list[str]) -> int:
    args = parse(arguments)
    saved = args.out / "results.json"
    if args.report:
        report.write(Results.load(saved), args.out)
        return 0
    # A terminated run must stop its brokers too; SystemExit unwinds through every `finally`.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    lacking = [tool for tool in ("java", "mvn") if not shutil.which(tool)]
    if lacking:
        print(
            f"bench: needs {' and '.join(lacking)} on the path (a JDK of 17 or later, Maven)", file=sys.stderr
        )
        return 2
    java = JavaClient()
    java.build()
    results = Results.load(saved) if args.keep and saved.exists() else Results()
    results.machine = describe_machine()
    scratch = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    try:
        systems = chosen(SYSTEMS, args.systems, Settings(args.peers.resolve(), scratch))
        cases = [CASES[name] for name in args.cases.split(",")]
        run = Run(java, results, QUICK if args.quick else FULL, args.data_gb_max, args.retries)
        for number in range(1, (args.rounds or (1 if args.quick else 3)) + 1):
            # Each round starts with another system.
            for turn in range(len(systems)):
                run.take_turn(systems[(turn + number - 1) % len(systems)], cases, number)
    finally:
        results.save(saved)
        shutil.rmtree(scratch, ignore_errors=True)
    report.write(results, args.out)
    print(report.table(results))
    return 1 if any(record.failure for record in results.records) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
