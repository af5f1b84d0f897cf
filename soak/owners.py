"""Watches the bundles of several brokers with the load balancer: in calm weather none is without an owner for long.

The weather is calm while the leader may act: it is not when a process is paused, when sessions with the metadata are in
doubt, or when most brokers are down. A broker that is killed, the leader too, is no excuse.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from soak.cluster_process import ClusterProcesses

OWNED_S_MAX = 5.0
LOOK_S = 0.2
ANSWER_S_MAX = 1.0
# A bundle that nobody has asked for since it was unloaded needs no owner, and one that was split is no more.
NEEDS_NONE = frozenset(("unassigned", "freed", "deleted"))
# A broker in doubt answers 503, one that is stuck says nothing, and one that is killed stops in the middle.
UNSURE = (OSError, http.client.HTTPException)


@dataclass
class OwnerWatch:
    """Judges what is seen of the bundles. Pure: times are given."""

    owned_s_max: float = OWNED_S_MAX
    violations: list[str] = field(default_factory=list)
    longest_s: float = 0.0
    # The sum over all bundles of how often their states have changed.
    changes: int = 0
    _without_since: dict[str, float] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)

    def see(self, now_s: float, bundles: Mapping[str, Mapping[str, Any]]) -> None:
        """What a broker says of every bundle in calm weather."""
        self.changes = max(self.changes, sum(one.get("version", 0) for one in bundles.values()))
        without = {
            name: one for name, one in bundles.items() if not one["owner"] and one["state"] not in NEEDS_NONE
        }
        for name in self._without_since.keys() - without.keys():
            del self._without_since[name]
            self._told.discard(name)
        for name, one in without.items():
            since_s = self._without_since.setdefault(name, now_s)
            self.longest_s = max(self.longest_s, now_s - since_s)
            if now_s - since_s > self.owned_s_max and name not in self._told:
                self._told.add(name)
                self.violations.append(f"{name}: without an owner for {now_s - since_s:.1f} s: {dict(one)}")

    def storm(self) -> None:
        """The weather is not calm, or nothing is known: all times begin again."""
        self._without_since.clear()
        self._told.clear()


class Watching(threading.Thread):
    """Looks at the bundles of these namespaces until `stop`."""

    def __init__(
        self, cluster: ClusterProcesses, namespaces: Sequence[str], owned_s_max: float = OWNED_S_MAX
    ) -> None:
        super().__init__(daemon=True)
        self.watch = OwnerWatch(owned_s_max)
        self.looks = self.calm_looks = 0
        # Set from outside: how many processes are paused.
        self.paused = 0
        self._brokers = cluster.brokers
        first = int(cluster.settings["ANABRANCH_brokersFirstWebPort"])
        self._ports = range(first, first + cluster.brokers)
        self._namespaces = namespaces
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(LOOK_S):
            self.looks += 1
            found = None if self.paused else self._look()
            if found is None or self.paused:
                self.watch.storm()
            else:
                self.calm_looks += 1
                self.watch.see(time.monotonic(), found)

    def stop(self) -> None:
        self._is_over.set()
        self.join()

    def _look(self) -> dict[str, Any] | None:
        """All bundles, as one of the brokers knows them; None if the weather is not calm."""
        answers: dict[int, Any] = {}
        for port in self._ports:
            try:
                answers[port] = _get(port, "load-manager")
            except ConnectionError:
                continue  # It is down, or is being started.
            except UNSURE as error:
                if isinstance(error, urllib.error.URLError) and isinstance(error.reason, ConnectionError):
                    continue
                return None
        if len(answers) * 2 <= self._brokers or any(map(_is_unsure, answers.values())):
            return None
        try:
            return dict(self._bundles(next(iter(answers))))
        except UNSURE:
            return None

    def _bundles(self, port: int) -> Iterable[tuple[str, Any]]:
        for namespace in self._namespaces:
            for one in _get(port, f"namespaces/{namespace}/bundleStates"):
                yield f"{namespace}/{one['bundle']}", one


def _is_unsure(answer: Mapping[str, Any]) -> bool:
    """A leader that may not act, or a broker that does not follow the states of bundles."""
    return (answer["isLeader"] and answer["safeMode"] is not None) or not answer["isFollowing"]


def _get(port: int, path: str) -> Any:
    url = f"http://127.0.0.1:{port}/admin/v2/{path}"
    with urllib.request.urlopen(url, timeout=ANSWER_S_MAX) as response:
        return json.load(response)
