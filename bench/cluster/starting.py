"""From the start of the command to the first confirmed message, of four brokers on an empty folder.

One start that is not counted writes the bytecode.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

from bench import wire
from bench.cluster.findings import Finding
from bench.cluster.latency import located
from bench.cluster.running import Cluster

BROKERS = 4
FIRST_S_MAX = 2.0
PATIENCE_S = 120.0


def _first(folder: Path, brokers: int) -> tuple[float, float]:
    """Seconds to the first confirmed message, and until every broker serves."""
    cluster = Cluster(folder / "data", brokers=brokers)
    began = cluster.spawn()
    try:
        while True:
            try:
                link = wire.Blocking(located(cluster.port, "persistent://public/default/first"))
                link.publish("persistent://public/default/first", b"first")
                link.close()
                break
            except (OSError, wire.BrokerRefused) as not_yet:
                if time.monotonic() > began + PATIENCE_S:
                    raise TimeoutError(f"nothing published within {PATIENCE_S:.0f} s") from not_yet
                time.sleep(0.01)
        first = time.monotonic() - began
        cluster.wait_ready()
        return first, time.monotonic() - began
    finally:
        cluster.end()


def measure(is_quick: bool) -> list[Finding]:
    times: dict[int, list[tuple[float, float]]] = {1: [], BROKERS: []}
    for number in range(3 if is_quick else 11):
        for brokers, found in times.items():
            folder = Path(tempfile.mkdtemp(prefix="anabranch-cluster-bench-"))
            try:
                took = _first(folder, brokers)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            if number:
                found.append(took)
    first = [one for one, _ in times[BROKERS]]
    return [
        Finding(
            f"first message, {BROKERS} brokers", median(first), "s", FIRST_S_MAX, f"worst {max(first):.2f} s"
        ),
        Finding(f"all {BROKERS} brokers serve", median(whole for _, whole in times[BROKERS]), "s"),
        Finding("first message, 1 broker", median(one for one, _ in times[1]), "s"),
    ]
