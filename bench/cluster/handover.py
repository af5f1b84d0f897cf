"""Hand-over of a bundle under load, to and fro between two brokers: by the hash over brokers, and by the transfers of
the load balancer.

Each topic has a producer and a consumer. Its figure is the longest time that one of its messages waited for its receipt
during the move, where a message is always under way: a producer that has none when its topic is closed sends one then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from statistics import median

from bench.cluster.findings import Finding, percentile
from bench.cluster.running import HALF, Cluster, running
from bench.cluster.swarm import Swarm

TOPICS = (1, 100, 1_000)
LOOKUPS_MAX = 1.0
P50_MS_MAX, P99_MS_MAX, WORST_MS_MAX = 15.0, 100.0, 500.0
# So many messages a second over all topics, as far as one waits for the one before.
RATE = 1_000
FOLLOW_S_MAX = 60.0


async def _moves(cluster: Cluster, namespace: str, topics: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds: the longest wait of each topic in each round; the same without a move; of each whole move; and of
    CPU for each topic."""
    names = cluster.topics_in_half(namespace, topics)
    found: dict[str, list[float]] = {"moved": [], "unmoved": [], "whole": [], "cpu": [], "lookups": []}
    first, second = cluster.addresses()[:2]
    async with Swarm(cluster.port) as swarm:
        await swarm.open(names, pace_s=max(0.002, topics / RATE))
        publishers = list(swarm.publishers.values())
        for number, publisher in enumerate(publishers):
            asyncio.get_running_loop().call_later(number / topics * publisher.pace_s, publisher.begin)
        await asyncio.sleep(min(5.0, 1 + publishers[0].pace_s))
        for number in range(rounds):
            found["unmoved"] += await _longest(swarm, asyncio.sleep(min(5.0, max(0.5, publishers[0].pace_s))))
            target = (first, second)[number % 2]
            whole: dict[str, list[float]] = {"whole": [], "cpu": []}
            lookups = swarm.lookups
            waits = await _longest(swarm, _move(cluster, namespace, target, swarm, whole))
            if number:  # The bundle may have been there already, and the first move opens the link.
                found["moved"] += waits
                found["whole"] += whole["whole"]
                found["cpu"] += whole["cpu"]
                found["lookups"].append((swarm.lookups - lookups) / (2 * topics))
        await swarm.quiet()
        if swarm.errors:
            raise RuntimeError(swarm.errors[0])
    return found


async def _longest(swarm: Swarm, during: object) -> list[float]:
    publishers = swarm.publishers.values()
    for publisher in publishers:
        publisher.longest_wait_s = 0.0
    await during  # type: ignore[misc]
    return [publisher.longest_wait_s * 1000 for publisher in publishers]


async def _move(
    cluster: Cluster, namespace: str, target: str, swarm: Swarm, found: dict[str, list[float]]
) -> None:
    """Returns once every client has followed, and has had a message of each topic confirmed since."""
    began, cpu = time.perf_counter(), cluster.cpu_seconds()
    await asyncio.to_thread(cluster.move, namespace, HALF, target)
    await swarm.at_port(list(swarm.publishers), cluster.port_of(target), FOLLOW_S_MAX)
    found["whole"].append((time.perf_counter() - began) * 1000)
    found["cpu"].append((cluster.cpu_seconds() - cpu) * 1000 / len(swarm.publishers))
    before = [publisher.receipts for publisher in swarm.publishers.values()]
    publishers = list(swarm.publishers.values())
    await swarm.until(
        lambda: all(one.receipts > then for one, then in zip(publishers, before, strict=True)),
        FOLLOW_S_MAX,
        "messages after the move",
    )


def measure(is_quick: bool, sizes: Sequence[int] = TOPICS) -> list[Finding]:
    return _measured(is_quick, sizes, {})


def measure_transfers(is_quick: bool, sizes: Sequence[int] = TOPICS) -> list[Finding]:
    return _measured(is_quick, sizes, {"loadManagerClassName": "balanced"})


def _measured(is_quick: bool, sizes: Sequence[int], settings: Mapping[str, object]) -> list[Finding]:
    findings = []
    with running(2, settings) as cluster:
        for topics in sizes:
            rounds = 4 if is_quick else {1: 100, 100: 20, 1_000: 10}[topics]
            namespace = f"moved-{topics}"
            cluster.namespace(namespace, 2)
            found = asyncio.run(_moves(cluster, namespace, topics, rounds + 1))
            waits, quiet = found["moved"], found["unmoved"]
            whole = (
                f"whole move {median(found['whole']):,.0f} ms, {median(found['cpu']):.2f} ms of CPU a topic"
            )
            still = f"without a move {percentile(quiet, 0.99):.1f} ms"
            what = f"{topics:,} topic{'s' if topics > 1 else ''}: no receipt for, "
            findings += [
                Finding(what + "p50", percentile(waits, 0.5), "ms", P50_MS_MAX, whole),
                Finding(what + "p99", percentile(waits, 0.99), "ms", P99_MS_MAX, still),
                Finding(
                    what + "worst", max(waits), "ms", WORST_MS_MAX, f"without a move {max(quiet):.1f} ms"
                ),
                Finding(
                    f"{topics:,} topic{'s' if topics > 1 else ''}: lookups of a client in a move",
                    max(found["lookups"]),
                    most=LOOKUPS_MAX,
                    note="the mean of all clients, of the worst move",
                ),
            ]
    return findings
