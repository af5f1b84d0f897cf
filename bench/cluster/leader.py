"""`kill -9` of the load balancer's leader while it moves bundles: how long until every bundle has one owner again.

A bundle has an owner once both brokers that are left name the same living one, and nothing of it is under way. The
leader is killed at a random moment of the moves; the next one, elected meanwhile, finishes or undoes them. Kills follow
each other as soon as all brokers serve again, so that the next leader has often been started just before.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from bench.cluster.findings import Finding, percentile
from bench.cluster.running import Cluster, running, until

BROKERS = 3
BUNDLES = 12
OWNED_S_MAX = 5.0
BACK_S_MAX = 60.0
STEP_S_MAX = 0.15
LOOK_S = 0.01
NAMESPACE = "led"
NOTHING: Final[Mapping[str, tuple[str, Any, int]]] = {}


def _states(cluster: Cluster, address: str) -> dict[str, tuple[str, Any, int]]:
    """State, owner and version of each bundle, as that broker has read them."""
    found = cluster.get(address, f"admin/v2/namespaces/public/{NAMESPACE}/bundleStates")
    return {one["bundle"]: (one["state"], one["owner"], one["version"]) for one in found}


def _owned(
    cluster: Cluster,
    addresses: list[str],
    leader: str = "",
    before: Mapping[str, tuple[str, Any, int]] = NOTHING,
) -> bool:
    """Whether the brokers at these addresses agree on an owner of every bundle: not the run of the leader that had it
    `before`, when it was killed."""
    try:
        first, *others = [_states(cluster, one) for one in addresses]
    except OSError:
        return False
    return all(one == first for one in others) and all(
        state == "assigned" and owner and (owner != leader or version > before[bundle][2])
        for bundle, (state, owner, version) in first.items()
    )


def _move_all(cluster: Cluster, chance: random.Random) -> list[threading.Thread]:
    """Asks for a move of every bundle, each to a broker by lot; what becomes of it is not asked."""

    def move(bundle: str, target: str) -> None:
        with contextlib.suppress(RuntimeError, OSError):
            cluster.move(NAMESPACE, bundle, target)

    targets = cluster.addresses()
    moves = [
        threading.Thread(target=move, args=(bundle, chance.choice(targets)))
        for bundle in cluster.bundles(NAMESPACE)
    ]
    for one in moves:
        one.start()
    return moves


def measure(is_quick: bool) -> list[Finding]:
    kills, chance = 5 if is_quick else 20, random.Random(1)
    times: list[float] = []
    with running(BROKERS, {"loadManagerClassName": "balanced"}) as cluster:
        cluster.namespace(NAMESPACE, BUNDLES)
        names = dict(zip(cluster.addresses(), cluster.ports, strict=True))
        for _ in range(kills):
            for one in _move_all(cluster, chance):
                one.join()
            until(lambda: _owned(cluster, list(names)), BACK_S_MAX, "every bundle has an owner")
            leader = str(cluster.rest("GET", "brokers/leaderBroker")["brokerId"])
            moves = _move_all(cluster, chance)
            time.sleep(chance.uniform(0, STEP_S_MAX))
            pid = cluster.broker_pids[names[leader]]
            os.kill(pid, signal.SIGKILL)
            began = time.perf_counter()
            left = [one for one in names if one != leader]
            before = _states(cluster, left[0])
            while not _owned(cluster, left, leader, before):
                if time.perf_counter() - began > BACK_S_MAX:
                    raise RuntimeError(f"no owner of every bundle within {BACK_S_MAX:g} s")
                time.sleep(LOOK_S)
            times.append(time.perf_counter() - began)
            for one in moves:
                one.join()
            until(
                lambda pid=pid, leader=leader: cluster.broker_pids.get(names[leader], pid) != pid,  # type: ignore[misc]
                BACK_S_MAX,
                f"{names[leader]} is started again",
            )
            cluster.wait_ready()
    return [
        Finding("every bundle has one owner, p50", percentile(times, 0.5), "s", note=f"{BUNDLES} bundles"),
        Finding("every bundle has one owner, worst", max(times), "s", OWNED_S_MAX),
        Finding("kills of the leader", kills),
    ]
