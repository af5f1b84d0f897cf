"""`kill -9` of one broker of three: how long until its topics take messages again, at a client with default settings.

A topic is back with the first receipt of a message that was sent after the kill. Each broker is killed in turn, and the
next one once all serve again and the topics are divided evenly again.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

from bench.cluster.findings import Finding, percentile
from bench.cluster.running import Cluster, running, until
from bench.cluster.steady import JAVA, WHEEL, Program, Seen, has_java, programs

BROKERS = 3
TOPICS = 12
RATE = 50
P50_S_MAX, P99_S_MAX = 1.2, 3.0
BACK_S_MAX = 30.0


def _kill(cluster: Cluster, name: str) -> float:
    """The time of day of the kill. Returns once the broker serves again."""
    pid = cluster.broker_pids[name]
    at = time.time()
    os.kill(pid, signal.SIGKILL)
    until(lambda: cluster.broker_pids.get(name, pid) != pid, BACK_S_MAX, f"{name} is started again")
    cluster.wait_ready()
    time.sleep(2)  # Topics return to it, and clients settle.
    return at


def _back(seen: Seen, place: int, at: float) -> float:
    """Seconds from the kill to the first receipt of a message that was sent after it."""
    return (
        min((receipt for _, sent, receipt in seen.receipts[place] if sent > at), default=at + BACK_S_MAX) - at
    )


def measure(is_quick: bool) -> list[Finding]:
    kills = 3 if is_quick else 30
    client = JAVA if has_java() else WHEEL
    note = f"{client} client" if client == JAVA else "Java is absent: Pulsar's Python client instead"
    moments: list[tuple[float, list[int]]] = []
    with (
        tempfile.TemporaryDirectory(prefix="anabranch-cluster-bench-") as scratch,
        running(BROKERS) as cluster,
    ):
        cluster.namespace("killed", TOPICS)
        topics = [f"public/killed/t-{number}" for number in range(TOPICS)]
        program = Program(
            client, cluster.url, [f"persistent://{one}" for one in topics], RATE, Path(scratch) / "seen"
        )
        with programs([program]):
            time.sleep(3)
            for number in range(kills):
                cluster.spread("killed")
                time.sleep(1)
                name = f"broker-{number % BROKERS}"
                port = cluster.ports[name]
                hit = [place for place, topic in enumerate(topics) if cluster.owner_port(topic) == port]
                moments.append((_kill(cluster, name), hit))
            seen = program.finish()
    times = [_back(seen, place, at) for at, hit in moments for place in hit]
    others = [_back(seen, place, at) for at, hit in moments for place in range(TOPICS) if place not in hit]
    return [
        Finding("topics of the killed broker back, p50", percentile(times, 0.5), "s", P50_S_MAX, note),
        Finding(
            "topics of the killed broker back, p99",
            percentile(times, 0.99),
            "s",
            P99_S_MAX,
            f"worst {max(times):.2f} s",
        ),
        Finding("topics of the other brokers, p99", percentile(others, 0.99), "s"),
        Finding("kills", kills),
        Finding("errors at the application", len(seen.errors), most=0, note="; ".join(seen.errors[:2])[:200]),
    ]
