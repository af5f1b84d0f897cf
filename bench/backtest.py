"""`python -m bench.backtest`: how long backtests take as fleets grow, and whether the time per topic stays the same.

Each size runs in one Spark session, after a small one that is not counted and starts the workers. Written: the figures
and a line fitted through them, in docs/benchmarks/backtest.json. The aim is 100,000 topics of a day in half an hour on
two cores. CPU time is that of this process and all it has started, Spark's JVM and its Python workers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from anabranch.cli.pipelines.backtest_policies import policies
from anabranch.pipelines.backtest import BacktestPlan, over_fleet
from anabranch.pipelines.replay.synthetic import Fleet
from anabranch.pipelines.session import session
from bench import usage
from bench.results import describe_machine
from bench.systems import ROOT

AIM_TOPICS, AIM_S = 100_000, 1_800


def measure(spark: Any, fleet: Fleet, plan: BacktestPlan, folder: Path) -> dict[str, Any]:
    cpu, busy, began = usage.cpu_seconds(os.getpid()), usage.machine_busy_seconds(), time.monotonic()
    over_fleet(spark, fleet, plan).write.parquet(str(folder / str(fleet.topics)))
    seconds = time.monotonic() - began
    cpu = usage.cpu_seconds(os.getpid()) - cpu
    others = usage.machine_busy_seconds() - busy - cpu
    rows = spark.read.parquet(str(folder / str(fleet.topics)))
    decided = rows.selectExpr("sum(splits + merges)", "sum(evaluations)", "sum(reports)").collect()[0]
    return {
        "topics": fleet.topics,
        "seconds": round(seconds, 1),
        "cpu_s": round(cpu, 1),
        "cpu_ms_per_topic": round(1000 * cpu / fleet.topics, 2),
        "others_cores": round(max(0.0, others / seconds), 2),
        "decisions": int(decided[0]),
        "evaluations": int(decided[1]),
        "reports": int(decided[2]),
    }


def fitted(points: list[dict[str, Any]], key: str) -> dict[str, float]:
    """`seconds = start + each * topics`, weighed so that small fleets count as much as large ones."""
    topics = np.array([point["topics"] for point in points], dtype=float)
    values = np.array([point[key] for point in points], dtype=float)
    if len(points) < 2:
        return {"start_s": 0.0, "ms_per_topic": float(1000 * values[0] / topics[0])}
    each, start = np.polyfit(topics, values, 1, w=1 / values)
    return {"start_s": round(float(start), 2), "ms_per_topic": round(float(1000 * each), 3)}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.backtest", description=__doc__)
    parser.add_argument("--sizes", default="1000,3000,10000,30000,100000", help="numbers of topics")
    parser.add_argument("--days", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--policy", action="append", default=[], help="as `anabranch pipeline backtest` has it"
    )
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks" / "backtest.json")
    args = parser.parse_args(arguments)
    plan = BacktestPlan(policies(args.policy or ["default:"], None))
    folder = Path(tempfile.mkdtemp(prefix="anabranch-backtest-"))
    points: list[dict[str, Any]] = []
    try:
        with session("anabranch backtest", args.master) as spark:
            measure(spark, Fleet(50, args.days, args.seed), plan, folder / "first")
            for size in map(int, args.sizes.split(",")):
                points.append(measure(spark, Fleet(size, args.days, args.seed), plan, folder))
                print(f"backtest: {points[-1]}", flush=True)
                found = {
                    "machine": describe_machine(),
                    "master": args.master,
                    "days": args.days,
                    "seed": args.seed,
                    "policies": list(plan.policies),
                    "points": points,
                    "wall": fitted(points, "seconds"),
                    "cpu": fitted(points, "cpu_s"),
                }
                # After each, so that a run that is cut short leaves what it has.
                args.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    wall, cpu = fitted(points, "seconds"), fitted(points, "cpu_s")
    expected = wall["start_s"] + AIM_TOPICS * wall["ms_per_topic"] / 1000
    print(f"wall {wall}, cpu {cpu}: {AIM_TOPICS:,} topics take {expected:,.0f} s, aim {AIM_S:,} s")
    return 0 if expected <= AIM_S else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
