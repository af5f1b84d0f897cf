"""`python -m bench.cluster`: several brokers on one machine, case by case, each figure beside its bar."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from bench import usage
from bench.__main__ import machine_to_ourselves
from bench.cluster import cpu, endurance, findings, handover, latency, leader, outage, rolling, starting
from bench.cluster.findings import CaseResult, Finding, Results
from bench.cluster.pulsar_pair import peers
from bench.results import describe_machine

ROOT = Path(__file__).resolve().parents[2]
CASES: dict[str, tuple[str, Callable[[bool], list[Finding]]]] = {
    "start": ("Start", starting.measure),
    "cpu": ("CPU of a message", cpu.measure),
    "latency": ("Publish latency at 1,000 messages a second", latency.measure),
    "handover": ("Hand-over of a bundle under load", handover.measure),
    "transfer": ("Transfer of a bundle by the load balancer, under load", handover.measure_transfers),
    "beside": ("The same transfers beside Pulsar 5.0.0-M1", handover.measure_beside),
    "kill": ("`kill -9` of a broker", outage.measure),
    "leader": ("`kill -9` of the leader while it moves bundles", leader.measure),
    "rolling": ("Rolling restart", rolling.measure),
    "endurance": ("Thousands of hand-overs", endurance.measure),
}
# Only where PEERS_DIR says how Pulsar is started.
OPT_IN = frozenset(() if peers() is not None else ("beside",))


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.cluster", description=__doc__)
    parser.add_argument(
        "--only",
        default=",".join(name for name in CASES if name not in OPT_IN),
        help=f"of {', '.join(CASES)}; the others keep their results (beside needs PEERS_DIR)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="shorter runs, which are not written down without --out"
    )
    parser.add_argument("--hand-overs", type=int, help="of the case endurance; 10,000 unless told")
    parser.add_argument("--out", type=Path, help="the folder of results.json and README.md")
    parser.add_argument("--report", action="store_true", help="only write the page of the results in --out")
    return parser.parse_args(arguments)


def measured(name: str, args: argparse.Namespace) -> CaseResult:
    """A case that breaks off has missed: its error is what it found."""
    title, measure = CASES[name]
    busy, own, began = usage.machine_busy_seconds(), _own(), time.monotonic()
    try:
        found = endurance.measure(args.quick, args.hand_overs) if name == "endurance" else measure(args.quick)
    except Exception as error:
        traceback.print_exc()
        found = [Finding("broke off", 1, most=0, note=f"{error!r}"[:300])]
    others = usage.machine_busy_seconds() - busy - (_own() - own)
    return CaseResult(
        title,
        time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        found,
        round(max(0.0, others) / (time.monotonic() - began), 3),
        args.quick,
        str(describe_machine().get("cpu", "")),
    )


def _own() -> float:
    """CPU seconds of this process and of all that it has started, ended ones included."""
    return usage.cpu_seconds(os.getpid())


def main(arguments: list[str]) -> int:
    args = parse(arguments)
    folder = args.out or (None if args.quick else ROOT / "docs" / "benchmarks" / "cluster")
    saved = None if folder is None else folder / "results.json"
    results = Results.load(saved) if saved is not None and saved.exists() else Results()
    if args.report and folder is not None:
        findings.write(results, folder)
        return 0
    # A terminated run must stop its brokers too; SystemExit unwinds through every `finally`.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    missed = 0
    for name in args.only.split(","):
        with machine_to_ourselves():
            case = measured(name, args)
        for one in case.findings:
            print(one.line(name), flush=True)
            missed += not one.holds
        print(f"{name:<10} others used {case.others_cores:.2f} cores meanwhile", flush=True)
        if not results.machine or len(args.only.split(",")) >= len(CASES) - len(OPT_IN):
            results.machine = describe_machine()
        results.cases[name] = case
        results.cases = {known: results.cases[known] for known in CASES if known in results.cases}
        if saved is not None and folder is not None:
            results.save(saved)
            findings.write(results, folder)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
