"""The processes of a cluster as values: in which phase each is, how often it failed, what is due when.

A process is restarted at once when it ends, and later each time if it keeps failing. It has stopped failing once it has
served for a while.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Final

# How long a process may take from its start until it serves, and to drain.
START_MAX_S: Final = 60.0
DRAIN_MAX_S: Final = 25.0
# A process that has served for that long has not failed to start.
STEADY_S: Final = 10.0
BACK_OFF_MIN_S: Final = 0.1
BACK_OFF_MAX_S: Final = 10.0
# After so many failures in a row the cluster gives up if it cannot serve without that process.
FAILURES_MAX: Final = 5


class ProcessKind(Enum):
    METADATA = "metadata"
    BROKER = "broker"


class Phase(Enum):
    DEAD = "dead"
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


NEXT: Final[Mapping[Phase, frozenset[Phase]]] = MappingProxyType(
    {
        Phase.DEAD: frozenset({Phase.STARTING}),
        Phase.STARTING: frozenset({Phase.SERVING, Phase.DRAINING, Phase.DEAD}),
        Phase.SERVING: frozenset({Phase.DRAINING, Phase.DEAD}),
        Phase.DRAINING: frozenset({Phase.DEAD}),
    }
)


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One process of the cluster. `due_s`: when a dead one is to be started, or a living one has taken too long."""

    name: str
    kind: ProcessKind
    phase: Phase = Phase.DEAD
    since_s: float = 0.0
    due_s: float | None = None
    failures: int = 0
    has_served: bool = False

    @property
    def is_alive(self) -> bool:
        return self.phase is not Phase.DEAD

    def moved(self, phase: Phase, now_s: float, due_s: float | None = None) -> ProcessState:
        assert phase in NEXT[self.phase], f"{self.name} cannot be {phase.value} after {self.phase.value}"
        has_served = self.has_served or phase is Phase.SERVING
        return replace(self, phase=phase, since_s=now_s, due_s=due_s, has_served=has_served)

    def ended(self, now_s: float, *, is_clean: bool) -> ProcessState:
        """The process after its end, due to be started again."""
        if self.phase is Phase.SERVING and (is_clean or now_s - self.since_s >= STEADY_S):
            failures = 0 if is_clean else 1
        else:
            failures = self.failures + 1
        died = replace(self, failures=failures)
        return died.moved(Phase.DEAD, now_s, now_s + back_off_s(failures))


def back_off_s(failures: int) -> float:
    """How long to wait before the start that follows so many failures in a row."""
    if failures <= 1:
        return 0.0
    # The exponent is bounded: a broker may fail for days.
    return float(min(BACK_OFF_MAX_S, BACK_OFF_MIN_S * 2 ** min(failures - 2, 16)))


class Stage(Enum):
    BEGINNING = "beginning"  # Until every process has served once: an error ends the start.
    RUNNING = "running"
    STOPPING = "stopping"
    KILLING = "killing"


@dataclass(frozen=True, slots=True)
class ClusterState:
    processes: Mapping[str, ProcessState]
    stage: Stage = Stage.BEGINNING
    exit_code: int = 0

    @property
    def all(self) -> list[ProcessState]:
        return list(self.processes.values())

    @property
    def brokers(self) -> list[ProcessState]:
        return [one for one in self.all if one.kind is ProcessKind.BROKER]

    @property
    def metadata(self) -> ProcessState:
        return self.processes[ProcessKind.METADATA.value]

    def having(self, process: ProcessState) -> ClusterState:
        return replace(self, processes={**self.processes, process.name: process})


def broker_name(index: int) -> str:
    return f"broker-{index}"


def new_cluster(brokers: int) -> ClusterState:
    processes = [ProcessState(ProcessKind.METADATA.value, ProcessKind.METADATA)]
    processes += [ProcessState(broker_name(index), ProcessKind.BROKER) for index in range(brokers)]
    return ClusterState({one.name: one for one in processes})
