"""The faults of `soak cluster` with the load balancer of PIP-192, and more of them.

Bundles are moved, unloaded and split, and the leader and the owners of bundles are killed, the leader in the middle of
moves. Besides what clients see, it is judged whether every bundle has an owner (`owners`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final

from soak import cluster
from soak.cluster import REST_ERRORS, Conductor, FaultKind, Options
from soak.owners import Watching

WEIGHTS: Final = {
    FaultKind.MOVE: 30,
    FaultKind.SPLIT_BUNDLE: 8,
    FaultKind.UNLOAD_BUNDLE: 8,
    FaultKind.KILL_LEADER: 14,
    FaultKind.KILL_OWNER: 12,
    FaultKind.DRAIN: 10,
    FaultKind.SHORT_PAUSE: 6,
    FaultKind.LONG_PAUSE: 5,
    FaultKind.KILL_METADATA: 5,
    FaultKind.KILL_ALL: 2,
}
SETTINGS: Final[Mapping[str, object]] = {
    "loadManagerClassName": "balanced",
    # Two and a half minutes without moves after each pause would be most of the time.
    "loadBalancerMetadataStableSeconds": 8,
    # It moves bundles by itself, too.
    "loadBalancerSheddingIntervalMinutes": 0.1,
    "loadBalancerSheddingConditionHitCountThreshold": 1,
    "loadBalanceSheddingDelayInSeconds": 15,
    "loadBalancerSheddingGracePeriodMinutes": 1,
    "loadBalancerBrokerLoadTargetStd": 0.1,
}
# Of a namespace, which begins with 64.
BUNDLES_MAX = 80
ASK_S_MAX = 15.0
# The leader is killed within this time of a move's beginning.
MOVING_S_MAX = 0.15


class BalancedConductor(Conductor):
    weights: ClassVar[Mapping[FaultKind, int]] = WEIGHTS

    def __post_init__(self) -> None:
        super().__post_init__()
        self._do |= {
            FaultKind.MOVE: self._transfer,
            FaultKind.SPLIT_BUNDLE: self._split,
            FaultKind.UNLOAD_BUNDLE: self._unload,
            FaultKind.KILL_LEADER: self._kill_leader,
            FaultKind.KILL_OWNER: self._kill_owner,
        }
        self._watching: Watching | None = None
        self._asking: list[threading.Thread] = []

    def begin(self) -> None:
        namespaces = {topic.name.rpartition("/")[0] for topic in self.load.workload.topics}
        spaces = sorted({*namespaces, "public/default"})
        self._watching = Watching(self.cluster, spaces, self.options.owned_s_max)
        self._watching.start()

    def judged(self) -> list[str]:
        assert self._watching is not None
        self._watching.stop()
        watch, calm, looks = self._watching.watch, self._watching.calm_looks, self._watching.looks
        violations = self.load.judge.violations
        for one in watch.violations:
            violations.add(one)
        if not calm:
            violations.add("owners: the weather was never calm, so nothing of them was judged")
        return [
            f"owners: {calm:,} of {looks:,} looks in calm weather, the longest time without an owner "
            f"{watch.longest_s:.1f} s, {watch.changes:,} changes of {len(self._states())} bundles of the load"
        ]

    def end(self) -> None:
        for thread in self._asking:
            thread.join(ASK_S_MAX)
        super().end()

    # -- faults

    def _transfer(self, _: FaultKind) -> str:
        name, bundle = self._drawn_bundle()
        target = self._target(bundle)
        self._ask_move(bundle, target)
        return f"{bundle} with {name} to {target}"

    def _target(self, bundle: str) -> str:
        """A broker that does not have the bundle."""
        owner = self._states().get(bundle, {}).get("owner")
        return self._chance.choice([one for one in self.cluster.addresses() if one != owner])

    def _ask_move(self, bundle: str, target: str) -> None:
        path = f"namespaces/{bundle}/unload?destinationBroker={target}"
        self.cluster.rest("PUT", path, timeout=ASK_S_MAX)

    def _split(self, _: FaultKind) -> str:
        name, bundle = self._drawn_bundle()
        space = bundle.rpartition("/")[0]
        if sum(1 for one in self._states() if one.startswith(f"{space}/")) >= BUNDLES_MAX:
            return f"{space} has enough bundles"
        unloads = self._chance.choice(("true", "false"))
        self.cluster.rest("PUT", f"namespaces/{bundle}/split?unload={unloads}", timeout=ASK_S_MAX)
        return f"{bundle} with {name}"

    def _unload(self, _: FaultKind) -> str:
        name, bundle = self._drawn_bundle()
        self.cluster.rest("PUT", f"namespaces/{bundle}/unload", timeout=ASK_S_MAX)
        return f"{bundle} with {name}"

    def _kill_leader(self, kind: FaultKind) -> str:
        leader = str(self.cluster.rest("GET", "brokers/leaderBroker", timeout=5)["brokerId"])
        _, bundle = self._drawn_bundle()
        target = self._target(bundle)
        asking = threading.Thread(target=self._ask_and_forget, args=(bundle, target))
        self._asking.append(asking)
        asking.start()
        asking.join(self._chance.uniform(0, MOVING_S_MAX))
        return f"{self._kill_at(leader)}, while {bundle} moves to {target}"

    def _ask_and_forget(self, bundle: str, target: str) -> None:
        try:
            self._ask_move(bundle, target)
        except REST_ERRORS:
            self.refused["move in which the leader is killed"] += 1

    def _kill_owner(self, kind: FaultKind) -> str:
        _, bundle = self._drawn_bundle()
        owner = self._states().get(bundle, {}).get("owner")
        return f"{bundle} had no owner" if owner is None else f"{self._kill_at(owner)}, which had {bundle}"

    def _kill_at(self, address: str) -> str:
        """Kills the broker with that HTTP address; its name."""
        first = int(self.cluster.settings["ANABRANCH_brokersFirstWebPort"])
        name = f"broker-{int(address.rpartition(':')[2]) - first}"
        pid = self.cluster.pids.get(name)
        if pid is None:
            return f"{name} (it was down already)"
        self.kill_one(name, pid)
        return name

    def _pause(self, kind: FaultKind) -> str:
        assert self._watching is not None
        self._watching.paused += 1
        return super()._pause(kind)

    def _continue(self, name: str, pid: int) -> None:
        super()._continue(name, pid)
        if self._watching is not None:
            self._watching.paused -= 1

    def _states(self) -> dict[str, Any]:
        """Every bundle of the load's namespaces, by its path."""
        spaces = sorted({topic.name.rpartition("/")[0] for topic in self.load.workload.topics})
        return {
            f"{space}/{one['bundle']}": one
            for space in spaces
            for one in self.cluster.rest("GET", f"namespaces/{space}/bundleStates", timeout=5)
        }


def run(options: Options) -> int:
    """Returns the exit code: 0 if nothing was violated."""
    return cluster.run(replace(options, settings={**SETTINGS, **options.settings}), BalancedConductor)
