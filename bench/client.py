"""`python -m bench.client`: our Python client beside Pulsar's wheel, on our broker, client and broker on a core each.

Rounds take turns, so that a slow minute of the machine is shared. `send` counts from the first call to the last
receipt; `receive` reads one by one from a topic that the peer filled, so both read the same entries.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from bench import report, usage
from bench.__main__ import machine_to_ourselves
from bench.javaclient import JavaClient
from bench.results import Results, describe_machine
from bench.systems import ROOT, SYSTEMS, Settings, System

BROKER_CORE, CLIENT_CORE = 0, 1


class Bench:
    def __init__(self, system: System, scale: float) -> None:
        self._system = system
        self._scale = scale
        self._topics = 0

    def topic(self, scheme: str) -> str:
        self._topics += 1
        return f"{scheme}://public/default/client-{self._topics}"

    def run(self, kind: str, topic: str, count: int, **options: int) -> dict[str, float]:
        pin(self._system.pid, BROKER_CORE)
        flags = [text for key, value in options.items() for text in (f"--{key}", str(value))]
        web = f"http://127.0.0.1:{self._system.web_port}"
        exact = kind == "our-gap"
        scaled = count if exact else int(count * self._scale)
        before = usage.cpu_seconds(self._system.pid)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "bench.clientload", kind, self._system.url, topic),
                *("--web", web, "--count", str(scaled), "--core", str(CLIENT_CORE), *flags),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{kind} failed:\n{done.stderr[-2000:]}")
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        found["broker_us"] = 1e6 * (usage.cpu_seconds(self._system.pid) - before) / max(1, scaled)
        return found

    def round(self) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        regular, scalable = self.topic("persistent"), self.topic("topic")
        found["wheel-send"] = self.run("wheel-send", regular, 400_000)
        found["our-send"] = self.run("our-send", scalable, 600_000)
        found["our-blocking-send"] = self.run("our-blocking-send", self.topic("topic"), 400_000)
        found["wheel-receive"] = self.run("wheel-receive", regular, 400_000)
        found["our-receive"] = self.run("our-receive", regular, 400_000)
        found["our-blocking-receive"] = self.run("our-blocking-receive", regular, 400_000)
        acked, acked_ours = self.topic("persistent"), self.topic("persistent")
        for topic in (acked, acked_ours):
            self.run("wheel-send", topic, 400_000)
        found["wheel-receive-ack"] = self.run("wheel-receive", acked, 400_000, ack=1)
        found["our-receive-ack"] = self.run("our-receive", acked_ours, 400_000, ack=1)
        for size, count in ((100, 12_000_000), (1024, 2_000_000)):
            columns = self.topic("topic")
            found[f"our-send-batch-{size}"] = self.run("our-send-batch", columns, count, size=size)
            found[f"our-receive-arrow-{size}"] = self.run("our-receive-arrow", columns, count, size=size)
        found["our-gap"] = self.run("our-gap", self.topic("topic"), 10)
        return found


def pin(pid: int, core: int) -> None:
    for member in usage.family(pid):
        for task in Path(f"/proc/{member}/task").iterdir():
            try:
                os.sched_setaffinity(int(task.name), {core})
            except OSError:
                continue  # It has ended meanwhile.


def rows(rounds: list[dict[str, dict[str, float]]]) -> list[dict[str, Any]]:
    def middle(case: str, key: str) -> float:
        return median(one[case][key] for one in rounds)

    def against(what: str, ours: str, peer: str, aim: str) -> dict[str, Any]:
        mine, theirs = middle(ours, "msg_s"), middle(peer, "msg_s")
        figure = f"{mine / 1000:,.0f} k msg/s"
        return {
            "what": what,
            "wheel": f"{theirs / 1000:,.0f} k msg/s",
            "ours": figure,
            "ratio": f"{mine / theirs:.1f}x",
            "aim": aim,
        }

    def alone(what: str, case: str, aim: str) -> dict[str, Any]:
        figure = f"{middle(case, 'msg_s') / 1e6:.2f} M msg/s, {middle(case, 'mb_s'):,.0f} MB/s"
        return {"what": what, "wheel": "", "ours": figure, "ratio": "", "aim": aim}

    return [
        against("`post` 100 B in a loop, batched", "our-send", "wheel-send", "≥ 2x"),
        against("`receive` one by one, 100 B", "our-receive", "wheel-receive", "≥ 1.5x"),
        against(
            "`receive` and a cumulative ack each, 100 B", "our-receive-ack", "wheel-receive-ack", "≥ 1.5x"
        ),
        against("blocking `post` 100 B in a loop, batched", "our-blocking-send", "wheel-send", "≥ 2x"),
        against("blocking `receive` one by one, 100 B", "our-blocking-receive", "wheel-receive", "≥ 1.5x"),
        alone("tables of Arrow (`post_batch`, then `flush`), 100 B", "our-send-batch-100", "≥ 3 M msg/s"),
        alone("tables of Arrow (`post_batch`, then `flush`), 1 KB", "our-send-batch-1024", "≥ 400 MB/s"),
        alone("`receive_arrow`, 100 B", "our-receive-arrow-100", "≥ 3 M msg/s"),
        alone("`receive_arrow`, 1 KB", "our-receive-arrow-1024", "≥ 600 MB/s"),
        {
            "what": "longest time without a receipt through a split at 1,000 msg/s (median of 10 splits, worst)",
            "wheel": "Java V5: 111 ms",
            "ours": f"{middle('our-gap', 'gap_ms'):.0f} ms, {middle('our-gap', 'gap_max_ms'):.0f} ms",
            "ratio": "",
            "aim": "≤ 30 ms",
        },
    ]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.client", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of messages")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks")
    args = parser.parse_args(arguments)
    scratch = Path(tempfile.mkdtemp(prefix="anabranch-client-"))
    rounds = []
    try:
        with machine_to_ourselves():
            for number in range(args.rounds):
                system = SYSTEMS["anabranch"](Settings(scratch, scratch))
                system.start(JavaClient())
                try:
                    rounds.append(Bench(system, args.scale).round())
                finally:
                    system.stop()
                for case, figures in rounds[-1].items():
                    shown = ", ".join(f"{key} {value:,.1f}" for key, value in figures.items())
                    print(f"client: round {number + 1}: {case}: {shown}", flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    saved = args.out / "results.json"
    results = Results.load(saved) if saved.exists() else Results(describe_machine())
    results.client = rows(rounds)
    for row in results.client:
        print(
            f"client: {row['what']}: wheel {row['wheel']}, ours {row['ours']} {row['ratio']} (aim {row['aim']})"
        )
    results.save(saved)
    report.write(results, args.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
