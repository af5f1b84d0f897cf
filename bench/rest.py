"""How fast the admin REST answers beside producers that leave the broker's event loop no time.

    python -m bench.rest [--seconds 30] [--out docs/benchmarks/rest.json]

One broker process, producers (`bench.flood`) that publish single entries of 100 bytes without a pause, and one caller
that asks for a topic's stats, a namespace's policies, a list of topics and a lookup in turn, over one kept connection.
Figures are milliseconds, as the caller sees them. The claim is a 99th percentile under 20 ms on a machine that is not
busy with anything else; `quiet` is the same caller without the producers. `loop_busy` is the share of a core that the
thread of the event loop had: near 1, the load is as much as there can be.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import wire
from bench.systems import Anabranch, Settings
from bench.usage import HZ, cpu_seconds

P99_MS_MAX = 20.0
START_S_MAX = 60.0
PATHS = (
    "/admin/v2/persistent/public/default/load/stats",
    "/admin/v2/namespaces/public/default",
    "/admin/v2/persistent/public/default",
    "/lookup/v2/topic/persistent/public/default/load",
)
PRODUCERS = 2


def ask(port: int, seconds: float) -> list[float]:
    """Milliseconds of each answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    took: list[float] = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        path = PATHS[len(took) % len(PATHS)]
        before = time.perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        took.append((time.perf_counter() - before) * 1000)
        assert answer.status == 200, (path, answer.status)
        # A caller that never pauses would measure how the two share a core, not how long one waits.
        time.sleep(0.01)
    connection.close()
    return took


def percentiles(took: list[float]) -> dict[str, float]:
    ordered = sorted(took)
    return {
        f"p{share}": round(ordered[min(len(ordered) - 1, int(len(ordered) * share / 100))], 2)
        for share in (50, 90, 99)
    } | {"max": round(ordered[-1], 2), "requests": len(ordered)}


def measure(seconds: float) -> dict[str, Any]:
    scratch = Path(tempfile.mkdtemp(prefix="anabranch-rest-"))
    broker = Anabranch(Settings(peers=scratch, scratch=scratch))
    try:
        broker.start(None)  # type: ignore[arg-type]  # Ours needs no Java.
        wire.first_publish(broker.port, "persistent://public/default/load", START_S_MAX)
        _wait_for(broker.web_port)
        ask(broker.web_port, 1.0)
        quiet = percentiles(ask(broker.web_port, seconds / 3))
        load = [sys.executable, "-m", "bench.flood", str(broker.port)]
        with contextlib.ExitStack() as stack:
            producers = [
                stack.enter_context(
                    subprocess.Popen(
                        [*load, f"persistent://public/default/{topic}", str(seconds + 4)],
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                )
                for topic in ("load", *(f"more-{number}" for number in range(1, PRODUCERS)))
            ]
            time.sleep(3)
            before, loop_before = cpu_seconds(broker.pid), _loop_seconds(broker.pid)
            busy = percentiles(ask(broker.web_port, seconds))
            share = (cpu_seconds(broker.pid) - before) / seconds
            loop = (_loop_seconds(broker.pid) - loop_before) / seconds
            published = sum(float(producer.communicate(timeout=60)[0]) for producer in producers)
        return {
            "quiet_ms": quiet,
            "busy_ms": busy,
            "published_per_second": round(published),
            "broker_cores": round(share, 2),
            "loop_busy": round(loop, 2),
            "p99_ms_max": P99_MS_MAX,
        }
    finally:
        broker.stop()
        shutil.rmtree(scratch, ignore_errors=True)


def _loop_seconds(pid: int) -> float:
    """CPU seconds of the process's first thread, in which the event loop runs."""
    stat = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(stat[11]) + int(stat[12])) / HZ


def _wait_for(port: int) -> None:
    """The admin port opens a moment after the binary one."""
    ends = time.monotonic() + START_S_MAX
    while True:
        try:
            http.client.HTTPConnection("127.0.0.1", port, timeout=5).connect()
            return
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found = measure(arguments.seconds)
    text = json.dumps(found, indent=2)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")
    sys.exit(0 if found["busy_ms"]["p99"] < P99_MS_MAX else 1)


if __name__ == "__main__":
    main()
