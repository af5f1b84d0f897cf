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
from bench.cluster.pulsar_pair import PulsarPair, peers, pulsar_pair
from bench.cluster.running import HALF, Cluster, running
from bench.cluster.swarm import Swarm

TOPICS = (1, 100, 1_000)
LOOKUPS_MAX = 1.0
P50_MS_MAX, P99_MS_MAX, WORST_MS_MAX = 15.0, 100.0, 500.0
# Of the longest gap of Pulsar, where it is measured beside ours.
OF_PULSAR_MAX = 0.5
# So many messages a second over all topics, as far as one waits for the one before.
RATE = 1_000
FOLLOW_S_MAX = 60.0


async def _moves(
    cluster: Cluster | PulsarPair, namespace: str, topics: int, rounds: int
) -> dict[str, list[float]]:
    """Milliseconds: the longest wait of each topic in each round; the same without a move; of each whole move; and of
    CPU for each topic."""
    names = cluster.topics_in_half(namespace, topics)
    found: dict[str, list[float]] = {"moved": [], "unmoved": [], "whole": [], "cpu": [], "lookups": []}
    async with Swarm(cluster.port) as swarm:
        await swarm.open(names, pace_s=max(0.002, topics / RATE))
        # A broker that has the bundle is refused as its destination.
        owner = await asyncio.to_thread(cluster.owner_port, names[0].removeprefix("persistent://"))
        targets = sorted(cluster.addresses()[:2], key=lambda one: cluster.port_of(one) == owner)
        publishers = list(swarm.publishers.values())
        for number, publisher in enumerate(publishers):
            asyncio.get_running_loop().call_later(number / topics * publisher.pace_s, publisher.begin)
        await asyncio.sleep(min(5.0, 1 + publishers[0].pace_s))
        for number in range(rounds):
            found["unmoved"] += await _longest(swarm, asyncio.sleep(min(5.0, max(0.5, publishers[0].pace_s))))
            target = targets[number % 2]
            whole: dict[str, list[float]] = {"whole": [], "cpu": []}
            lookups = swarm.lookups
            waits = await _longest(swarm, _move(cluster, namespace, target, swarm, whole))
            if number:  # The first move opens the link.
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
    cluster: Cluster | PulsarPair, namespace: str, target: str, swarm: Swarm, found: dict[str, list[float]]
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


def measure_beside(is_quick: bool, sizes: Sequence[int] = TOPICS) -> list[Finding]:
    """The same transfers, by the same clients, of two brokers of Pulsar and of two of ours."""
    scripts = peers()
    if scripts is None:
        raise RuntimeError("PEERS_DIR names the scripts that find Pulsar")
    with pulsar_pair(scripts) as pair:
        theirs = {topics: _moved_beside(pair, topics, is_quick) for topics in sizes}
    with running(2, {"loadManagerClassName": "balanced"}) as cluster:
        ours = {topics: _moved_beside(cluster, topics, is_quick) for topics in sizes}
    findings = []
    for topics in sizes:
        what = f"{topics:,} topic{'s' if topics > 1 else ''}: "
        for share, name in ((0.5, "p50"), (0.99, "p99")):
            mine, other = percentile(ours[topics]["moved"], share), percentile(theirs[topics]["moved"], share)
            still = percentile(theirs[topics]["unmoved"], share)
            findings += [
                Finding(f"{what}no receipt for, {name}, Pulsar", other, "ms", note=f"unmoved {still:.1f} ms"),
                Finding(f"{what}no receipt for, {name}, ours", mine, "ms"),
                Finding(f"{what}ours to Pulsar's", mine / other, "x", OF_PULSAR_MAX, name),
            ]
        findings.append(
            Finding(
                f"{what}whole move, ours to Pulsar's",
                median(ours[topics]["whole"]) / median(theirs[topics]["whole"]),
                "x",
                note=f"{median(ours[topics]['whole']):,.0f} and {median(theirs[topics]['whole']):,.0f} ms; "
                f"{len(theirs[topics]['whole'])} moves",
            )
        )
    return findings


def _moved_beside(cluster: Cluster | PulsarPair, topics: int, is_quick: bool) -> dict[str, list[float]]:
    rounds = {1: 8, 100: 6}.get(topics, 4) if is_quick else {1: 30, 100: 12}.get(topics, 6)
    namespace = f"beside-{topics}"
    cluster.namespace(namespace, 2)
    return asyncio.run(_moves(cluster, namespace, topics, rounds + 1))
