"""What a message costs the brokers, with one, two and four of them, all on one core.

Every thread of the brokers is pinned to one core; the clients, the metadata process and the supervisor are on another.
So each of N brokers has the Nth part of a core. Each has the same load as one broker alone: as many topics, producers,
consumers, connections and messages under way. The clients cost little (`flood.py`) and always have more to send than
the brokers can serve: how busy both cores were stands beside each figure. A message costs more the less a broker finds
to do in a turn of its loop; with a fixed rate, or with clients that are the limit, that would be measured instead.

The figure is the CPU time of the brokers' processes over a fixed span, all threads, user and system, divided by the
messages that were published, confirmed and delivered in it. At the end everything is counted: as many receipts as
deliveries, and no backlog, so every message is acknowledged. The numbers of brokers take turns within each round. A
ratio is the median of the rounds' ratios, so that a machine that gets slower meanwhile counts for both sides.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench import usage
from bench.cluster.findings import Finding
from bench.cluster.flood import Flood
from bench.cluster.running import Cluster, running, until

BROKERS = (1, 2, 4)
TOPICS_PER_BROKER = 8
BUNDLES = 16
RATIO_MAX = 1.10
WARM_UP_S = 3.0
ACKED_S_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Reading:
    """Microseconds of CPU for a message, messages a second, and how much of their core brokers and clients used."""

    cost_us: float
    rate: float
    brokers_cores: float
    clients_cores: float


def _two_cores() -> tuple[int, int]:
    """For the brokers, and for everything else."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise RuntimeError("brokers and clients need a core each")
    return usable[0], usable[1]


def _pin(pids: Iterable[int], core: int) -> None:
    """Every thread of these processes; threads that they start later stay there, too."""
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {core})


@contextmanager
def _apart(cluster: Cluster) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    for_brokers, for_others = _two_cores()
    _pin({cluster.pid, os.getpid(), *cluster.pids.values()}, for_others)
    _pin(cluster.broker_pids.values(), for_brokers)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _topics(cluster: Cluster) -> list[tuple[str, int]]:
    """The same number of topics for each broker, with its port."""
    found: dict[int, list[str]] = {port: [] for port in cluster.ports.values()}
    number = 0
    while any(len(some) < TOPICS_PER_BROKER for some in found.values()):
        topic = f"public/spread/t-{number}"
        port = cluster.port if cluster.brokers == 1 else cluster.owner_port(topic)
        if len(found[port]) < TOPICS_PER_BROKER:
            found[port].append(f"persistent://{topic}")
        number += 1
    return [(topic, port) for port, some in found.items() for topic in some]


def _brokers_cpu(cluster: Cluster) -> float:
    return sum(usage.cpu_seconds(pid) for pid in cluster.broker_pids.values())


async def _load(cluster: Cluster, seconds: float) -> Reading:
    flood = Flood()
    topics = _topics(cluster)
    for topic, port in topics:
        await flood.open(topic, port)
    with _apart(cluster):
        flood.begin()
        await asyncio.sleep(WARM_UP_S)
        began, clients = time.monotonic(), time.process_time()
        cpu, delivered = _brokers_cpu(cluster), flood.delivered
        await asyncio.sleep(seconds)
        cpu, delivered = _brokers_cpu(cluster) - cpu, flood.delivered - delivered
        took, clients = time.monotonic() - began, time.process_time() - clients
        await flood.stop()
    if flood.errors:
        raise RuntimeError(flood.errors[0])
    if flood.receipts != flood.delivered:
        raise RuntimeError(f"{flood.receipts} receipts and {flood.delivered} deliveries")
    await asyncio.to_thread(_check_acknowledged, cluster, [topic for topic, _ in topics])
    return Reading(cpu / delivered * 1e6, delivered / took, cpu / took, clients / took)


def _check_acknowledged(cluster: Cluster, topics: Iterable[str]) -> None:
    for topic in topics:
        path = f"{topic.replace('://', '/')}/stats"
        until(
            lambda path=path: cluster.rest("GET", path)["subscriptions"]["flood"]["msgBacklog"] == 0,  # type: ignore[misc]
            ACKED_S_MAX,
            f"all messages of {topic} are acknowledged",
        )


def _measured(brokers: int, seconds: float) -> Reading:
    with running(brokers) as cluster:
        cluster.namespace("spread", BUNDLES)
        cluster.spread("spread")
        return asyncio.run(_load(cluster, seconds))


def measure(is_quick: bool) -> list[Finding]:
    rounds, seconds = (1, 3.0) if is_quick else (7, 8.0)
    readings: dict[int, list[Reading]] = {brokers: [] for brokers in BROKERS}
    for number in range(rounds):
        turn = number % len(BROKERS)
        for brokers in BROKERS[turn:] + BROKERS[:turn]:
            readings[brokers].append(_measured(brokers, seconds))
    findings = []
    for brokers, some in readings.items():
        note = (
            f"{median(one.rate for one in some):,.0f} msg/s; of their core the brokers used "
            f"{median(one.brokers_cores for one in some):.0%}, the clients of theirs "
            f"{median(one.clients_cores for one in some):.0%}"
        )
        name = f"CPU a message, {brokers} broker{'s' if brokers > 1 else ''}"
        findings.append(Finding(name, median(one.cost_us for one in some), "µs", note=note))
    for brokers in BROKERS[1:]:
        ratios = sorted(
            some.cost_us / one.cost_us for some, one in zip(readings[brokers], readings[1], strict=True)
        )
        note = f"rounds {ratios[0]:.2f} to {ratios[-1]:.2f}"
        findings.append(Finding(f"{brokers} brokers to one", median(ratios), "x", RATIO_MAX, note))
    return findings
