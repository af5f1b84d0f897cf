"""What a message costs the brokers, with one, two and four of them.

Each broker has as many topics, with a producer and a consumer each, and as many messages a second: with N brokers N
times as many are published. The rate is one that the clients and four brokers reach together on two cores: at full
speed the clients would limit it, and the more brokers there are, the less each has to do in a turn. CPU is that of all
processes of the cluster, read around a fixed span. The numbers of brokers take turns within each round. Each figure is
the median of the rounds.
"""

from __future__ import annotations

import asyncio
import time
from itertools import cycle
from statistics import median

from bench.cluster.findings import Finding
from bench.cluster.running import Cluster, running
from bench.cluster.swarm import Publisher, Swarm

BROKERS = (1, 2, 4)
TOPICS_PER_BROKER = 8
# To each topic so many messages at once, so often: 3,000 a second for each broker.
BURST, BURST_EVERY_S = 15, 0.04
RATIO_MAX = 1.10


async def _load(cluster: Cluster, seconds: float) -> tuple[float, float]:
    """Microseconds of CPU for each message that was published and delivered, and messages a second."""
    topics = [
        f"persistent://public/spread/t-{number}" for number in range(TOPICS_PER_BROKER * cluster.brokers * 8)
    ]
    async with Swarm(cluster.port) as swarm:
        chosen = _even(cluster, topics)
        await swarm.open(chosen, pace_s=0.0, window=0)
        bursts = asyncio.create_task(_bursts(list(swarm.publishers.values())))
        await asyncio.sleep(seconds / 3)
        began, cpu, before = time.monotonic(), cluster.cpu_seconds(), _delivered(swarm)
        await asyncio.sleep(seconds)
        spent, cpu, messages = (
            time.monotonic() - began,
            cluster.cpu_seconds() - cpu,
            _delivered(swarm) - before,
        )
        if bursts.done():
            bursts.result()
        bursts.cancel()
        await swarm.quiet()
        if swarm.errors:
            raise RuntimeError(swarm.errors[0])
        return cpu / messages * 1e6, messages / spent


async def _bursts(publishers: list[Publisher]) -> None:
    """The topics one after the other, evenly over the time."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    for publisher in cycle(publishers):
        due += BURST_EVERY_S / len(publishers)
        await asyncio.sleep(max(0.0, due - loop.time()))
        for _ in range(BURST):
            publisher.send()


def _delivered(swarm: Swarm) -> int:
    return sum(one.messages for one in swarm.consumers.values())


def _even(cluster: Cluster, topics: list[str]) -> list[str]:
    """As many topics for each broker."""
    found: dict[int, list[str]] = {port: [] for port in cluster.ports.values()}
    for topic in topics:
        port = cluster.port if cluster.brokers == 1 else cluster.owner_port(topic.partition("://")[2])
        if len(found[port]) < TOPICS_PER_BROKER:
            found[port].append(topic)
        if all(len(some) == TOPICS_PER_BROKER for some in found.values()):
            break
    return [topic for some in found.values() for topic in some]


def measure(is_quick: bool) -> list[Finding]:
    rounds, seconds = (1, 3.0) if is_quick else (5, 6.0)
    costs: dict[int, list[float]] = {brokers: [] for brokers in BROKERS}
    rates: dict[int, list[float]] = {brokers: [] for brokers in BROKERS}
    for number in range(rounds):
        turn = number % len(BROKERS)
        for brokers in BROKERS[turn:] + BROKERS[:turn]:
            with running(brokers) as cluster:
                cluster.namespace("spread", 16)
                cluster.spread("spread")
                cost, rate = asyncio.run(_load(cluster, seconds))
                costs[brokers].append(cost)
                rates[brokers].append(rate)
    one = median(costs[1])
    findings = [Finding("CPU a message, 1 broker", one, "µs", note=f"{median(rates[1]):,.0f} msg/s")]
    for brokers in BROKERS[1:]:
        cost = median(costs[brokers])
        note = f"{median(rates[brokers]):,.0f} msg/s"
        findings.append(Finding(f"CPU a message, {brokers} brokers", cost, "µs", note=note))
        findings.append(Finding(f"{brokers} brokers to one", cost / one, "x", RATIO_MAX))
    return findings
