"""Rolling restart: SIGTERM to each broker in turn, the next one once all serve again, under Java's client, Pulsar's
Python client and ours, with deduplication on.

The log is read afterwards, and compared with the receipts and with what the consumers got.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

from bench.cluster.findings import Finding, percentile
from bench.cluster.running import Cluster, running, until
from bench.cluster.steady import JAVA, OURS, WHEEL, Program, Seen, has_java, judged, programs

BROKERS = 3
TOPICS_PER_CLIENT = 6
RATE = 50
BACK_S_MAX = 60.0


def _restart(cluster: Cluster, name: str) -> None:
    pid = cluster.broker_pids[name]
    os.kill(pid, signal.SIGTERM)
    until(lambda: cluster.broker_pids.get(name, pid) != pid, BACK_S_MAX, f"{name} is started again")
    cluster.wait_ready()
    time.sleep(1)


def _longest_waits(seen: Seen) -> list[float]:
    return [max(receipt - sent for _, sent, receipt in some) for some in seen.receipts.values() if some]


def measure(is_quick: bool) -> list[Finding]:
    rounds = 1 if is_quick else 5
    clients = [JAVA, WHEEL, OURS] if has_java() else [WHEEL, OURS]
    findings = [] if has_java() else [Finding("Java is absent: its client was not run", 0)]
    with (
        tempfile.TemporaryDirectory(prefix="anabranch-cluster-bench-") as scratch,
        running(BROKERS) as cluster,
    ):
        cluster.namespace("rolled", 12)
        cluster.rest("POST", "namespaces/public/rolled/deduplication", True)
        made = []
        for client in clients:
            topics = [
                f"persistent://public/rolled/{client.lower()}-{number}" for number in range(TOPICS_PER_CLIENT)
            ]
            made.append(Program(client, cluster.url, topics, RATE, Path(scratch) / client))
        with programs(made):
            time.sleep(3)
            for _ in range(rounds):
                for name in sorted(cluster.broker_pids):
                    _restart(cluster, name)
            seen = {program.client: program.finish() for program in made}
        for program in made:
            found = judged(program, seen[program.client], cluster.url)
            waits = _longest_waits(seen[program.client])
            who = f"{program.client}: "
            note = f"{found.confirmed:,} messages, {found.delivered_again} delivered again"
            findings += [
                Finding(
                    who + "errors at the application",
                    len(found.errors),
                    most=0,
                    note="; ".join(found.errors[:2])[:200],
                ),
                Finding(who + "lost", found.lost, most=0, note=note),
                Finding(who + "doubled", found.doubled, most=0),
                Finding(who + "reordered", found.reordered, most=0),
                Finding(
                    who + "longest wait for a receipt, median topic",
                    percentile(waits, 0.5) * 1000,
                    "ms",
                    note=f"worst {max(waits) * 1000:.0f} ms",
                ),
            ]
    findings.append(Finding("restarts of a broker", rounds * BROKERS))
    return findings
