"""`python -m bench.spark`: our Spark source and sink beside Kafka's and Parquet, in one session, in turns.

Each case runs on every system in each round, each time for a third of `--seconds` or longer, so that a slow minute of
the machine does not fall on one of them alone. All of it is warm: a round before the first is not counted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from bench import usage
from bench.__main__ import machine_to_ourselves
from bench.results import describe_machine
from bench.spark import data, queries, report, wide
from bench.spark.data import DataSet
from bench.spark.peers import Kafka, PeersMissing
from bench.spark.queries import Done, Places
from bench.spark.report import DEFAULT, OURS, PARQUET, READY, TUNED, Results, Run
from bench.spark.session import session
from bench.systems import ROOT, Anabranch, Settings

ROUNDS = 3
FIRST = "first"
MANY_TOPICS, MANY_SEGMENTS, IDLE = WIDE = ("many_topics", "many_segments", "idle")
FIRST_QUERIES = 3
SMALL = DataSet("small", 64, 10_000, 0)

Work = Callable[[DataSet], Done]


class Broker(Anabranch):
    """Keeps what it was sent, and its segments unchanged."""

    extra_arguments = (
        *("--set", "scalableTopicAutoScaleEnabled=false"),
        *("--set", "defaultRetentionTimeInMinutes=-1", "--set", "defaultRetentionSizeInMB=-1"),
    )

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.web_port}"


def parse(arguments: list[str]) -> argparse.Namespace:
    peers = os.environ.get("PEERS_DIR")
    parser = argparse.ArgumentParser(prog="bench.spark", description=__doc__)
    parser.add_argument(
        "--peers",
        type=Path,
        default=peers and Path(peers),
        help="scripts that start Kafka and the list of the connector's jars (PEERS_DIR)",
    )
    parser.add_argument("--without-kafka", action="store_true", help="ours and Parquet alone")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks" / "spark")
    parser.add_argument("--scratch", type=Path, help="for jars and data; 25 GB; a new folder unless told")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each case on each system, at least")
    parser.add_argument("--scale", type=float, default=1.0, help="of the data sets; 1 is 3 and 2 GB")
    known = [FIRST, *WIDE, *report.CASES]
    parser.add_argument("--cases", default=",".join(known), help=f"of {', '.join(known)}")
    parser.add_argument("--report", action="store_true", help="only write the page of the results in --out")
    return parser.parse_args(arguments)


class Bench:
    def __init__(
        self, places: Places, broker: Broker, results: Results, seconds: float, kafka_pid: int = 0
    ) -> None:
        self._places, self._broker, self._results, self._seconds = places, broker, results, seconds
        self._kafka_pid = kafka_pid

    def systems(self, case: str) -> dict[str, Work]:
        """The systems that take part in a case, and their work."""
        ours = {OURS: getattr(queries.Ours(self._places), case)}
        if case == "read_all_columns":
            return ours | {READY: queries.Ready(self._places).read_all_columns}
        if case not in ("read", "stream", "write"):
            return ours
        theirs: dict[str, Work] = {}
        if self._places.kafka:
            theirs[DEFAULT] = getattr(queries.Kafka(self._places), case)
            if case != "write":
                theirs[TUNED] = getattr(queries.Kafka(self._places, tuned=True), case)
        if case == "read":
            theirs[PARQUET] = queries.Parquet(self._places).read
            theirs[READY] = queries.Ready(self._places).read
        return ours | theirs

    def measure(self, case: str, one: DataSet) -> None:
        systems = list(self.systems(case).items())
        for _, work in systems:
            work(one)
        for number in range(1, ROUNDS + 1):
            # Each round starts with another system.
            turn = number % len(systems)
            for system, work in systems[turn:] + systems[:turn]:
                run = self._timed(case, one, system, number, work)
                self._results.runs.append(run)
                print(
                    f"{case:<20} {one.name:<6} {system:<12} {run.rate / 1000:8,.0f} k rows/s   "
                    f"broker {run.broker_cores:.1%}   others {run.others_cores:.2f} cores",
                    flush=True,
                )

    def _timed(self, case: str, one: DataSet, system: str, number: int, work: Work) -> Run:
        """Repeats the work until there was enough of it."""
        rows, seconds, wall = 0, 0.0, 0.0
        others, broker, own = self._others(), usage.cpu_seconds(self._broker.pid), self._own()
        while wall < self._seconds / ROUNDS:
            start = time.perf_counter()
            done = work(one)
            spent = time.perf_counter() - start
            rows, wall = rows + done.rows, wall + spent
            seconds += spent if done.seconds is None else done.seconds
        broker = usage.cpu_seconds(self._broker.pid) - broker
        others, own = max(0.0, self._others() - others), self._own() - own
        return Run(case, one.name, system, number, rows, seconds, broker / wall, others / wall, own)

    def _own(self) -> float:
        """CPU seconds of Spark and the brokers."""
        kafka = usage.cpu_seconds(self._kafka_pid) if self._kafka_pid else 0.0
        return usage.cpu_seconds(os.getpid()) + kafka

    def _others(self) -> float:
        return usage.machine_busy_seconds() - self._own()

    def first_queries(self) -> None:
        topic = f"topic://public/default/{SMALL.topic}"
        for _ in range(FIRST_QUERIES):
            self._results.first_query_s.append(self._first_query(topic))
            self._results.first_ready_s.append(self._first_query(""))
        print(
            f"first query of a warm session: {self._results.first_query_s} s, "
            f"of ready rows {self._results.first_ready_s} s",
            flush=True,
        )

    def wide(self, case: str) -> None:
        results = self._results
        if case == MANY_TOPICS:
            results.many_topics_s = wide.many_topics(self._places)
            print(f"a micro-batch over {wide.TOPICS} topics: {results.many_topics_s} s", flush=True)
        elif case == MANY_SEGMENTS:
            results.many_segments_s = wide.many_segments(self._places)
            print(f"a batch over {wide.SEGMENTS} segments: {results.many_segments_s} s", flush=True)
        else:
            for segments in wide.IDLE:
                found = results.idle_cores[str(segments)] = wide.idle(
                    self._places, segments, self._broker.pid
                )
                print(f"an idle query over {segments} segments: {found} cores", flush=True)

    def _first_query(self, topic: str) -> float:
        command = [sys.executable, "-m", "bench.spark.first", self._broker.url, topic, str(self._places.root)]
        told = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
        return float(told.rsplit("first query:", 1)[1])


@contextmanager
def running(broker: Broker) -> Iterator[None]:
    broker.data.mkdir(parents=True, exist_ok=True)
    broker.start(None)  # type: ignore[arg-type]  # Its first publish is not one of the Java client's.
    try:
        yield
    finally:
        broker.stop()


@contextmanager
def started(kafka: Kafka) -> Iterator[None]:
    kafka.start()
    try:
        yield
    finally:
        kafka.stop()


def run(args: argparse.Namespace, scratch: Path, results: Results) -> None:
    kafka = None
    if not args.without_kafka:
        if args.peers is None:
            raise PeersMissing(
                "give --peers DIR (or PEERS_DIR), or --without-kafka for ours and Parquet alone"
            )
        kafka = Kafka(args.peers.resolve(), scratch)
    sets = data.data_sets(args.scale)
    broker = Broker(Settings(scratch, scratch))
    with running(broker), started(kafka) if kafka else nullcontext():
        for one in [*sets, SMALL]:
            data.make(one, scratch)
            data.create_topic(broker.admin_url, one.topic)
            data.load(broker.url, one, scratch)
        bench = Bench(Places(None, broker.url, broker.admin_url, "", scratch), broker, results, args.seconds)
        cases = args.cases.split(",")
        if FIRST in cases:
            bench.first_queries()
        spark = session(kafka.jars() if kafka else [], scratch)
        places = Places(spark, broker.url, broker.admin_url, kafka.servers if kafka else "", scratch)
        bench = Bench(places, broker, results, args.seconds, kafka.pid if kafka else 0)
        try:
            for case in [case for case in cases if case in WIDE]:
                bench.wide(case)
            for one in sets:
                if kafka:
                    queries.Kafka(places).load(one)
                for case in [case for case in cases if case != FIRST and case not in WIDE]:
                    if case == "write":
                        data.make(one, scratch, written=True)
                    bench.measure(case, one)
        finally:
            spark.stop()


def main(arguments: list[str]) -> int:
    args = parse(arguments)
    saved = args.out / "results.json"
    if args.report:
        report.write(Results.load(saved), args.out)
        return 0
    # A terminated run must stop its brokers too; SystemExit unwinds through every `finally`.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = Results(describe_machine())
    scratch = args.scratch or Path(tempfile.mkdtemp(prefix="anabranch-spark-bench-"))
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        with machine_to_ourselves():
            run(args, scratch, results)
    except PeersMissing as missing:
        print(f"bench.spark: {missing}", file=sys.stderr)
        return 2
    finally:
        if results.runs:
            results.save(saved)
            report.write(results, args.out)
        if args.scratch is None:
            shutil.rmtree(scratch, ignore_errors=True)
    print(report.table(results), report.facts(results), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
