"""What follows from each event in the life of a cluster's processes. A shell performs the effects.

Rules: metadata and brokers start at the same time. Whatever ends is started again, with a growing pause if it keeps
failing; before a broker is started again, the metadata session of its former run is ended, so that the others take its
topics over at once. An error before every process has served once ends the start. A stop drains the brokers first and
the metadata last; a second one kills. A cluster that cannot serve gives up: without metadata, or when every broker
keeps failing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, assert_never

from anabranch.supervisor.core.processes import (
    DRAIN_MAX_S,
    FAILURES_MAX,
    START_MAX_S,
    ClusterState,
    Phase,
    ProcessKind,
    ProcessState,
    Stage,
)

# -- events


@dataclass(frozen=True, slots=True)
class Began:
    """The folder and the ports are this cluster's."""


@dataclass(frozen=True, slots=True)
class Served:
    """The process answers its clients."""

    name: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The process is gone. `code` as the system gives it: 0 for a clean end, negative for a signal."""

    name: str
    code: int


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The supervisor got a signal that asks it to stop."""

    signal: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The time that `wake_s` named has come, or any other."""


Event = Began | Served | Ended | StopAsked | TimePassed

# -- effects


@dataclass(frozen=True, slots=True)
class StartProcess:
    name: str


@dataclass(frozen=True, slots=True)
class DrainProcess:
    """Ask the process to end cleanly. The others stop too: it gives nothing away."""

    name: str


@dataclass(frozen=True, slots=True)
class KillProcess:
    name: str


@dataclass(frozen=True, slots=True)
class EndSession:
    """Tell the metadata that the last run of this broker is over."""

    name: str


@dataclass(frozen=True, slots=True)
class AnnounceCluster:
    """Say that clients can connect."""


@dataclass(frozen=True, slots=True)
class Say:
    level: Literal["info", "warning", "error"]
    text: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Every process is gone; end with this exit code."""

    code: int


Effect = StartProcess | DrainProcess | KillProcess | EndSession | AnnounceCluster | Say | Finish


def step(cluster: ClusterState, event: Event, now_s: float) -> tuple[ClusterState, list[Effect]]:
    match event:
        case Began():
            return _started(cluster, [one.name for one in cluster.all], now_s)
        case Served(name):
            return _served(cluster, name, now_s)
        case Ended(name, code):
            return _ended(cluster, cluster.processes[name], code, now_s)
        case StopAsked(signal):
            return _stop_asked(cluster, signal, now_s)
        case TimePassed():
            return _time_passed(cluster, now_s)
        case _:
            assert_never(event)


def wake_s(cluster: ClusterState) -> float | None:
    """When `TimePassed` will next have an effect."""
    return min((one.due_s for one in cluster.all if one.due_s is not None), default=None)


def _started(cluster: ClusterState, names: list[str], now_s: float) -> tuple[ClusterState, list[Effect]]:
    effects: list[Effect] = []
    for name in names:
        cluster = cluster.having(
            cluster.processes[name].moved(Phase.STARTING, now_s, due_s=now_s + START_MAX_S)
        )
        effects.append(StartProcess(name))
    return cluster, effects


def _served(cluster: ClusterState, name: str, now_s: float) -> tuple[ClusterState, list[Effect]]:
    process = cluster.processes[name]
    if process.phase is not Phase.STARTING:
        return cluster, []  # It was asked to drain meanwhile.
    cluster = cluster.having(process.moved(Phase.SERVING, now_s))
    if cluster.stage is Stage.BEGINNING and all(one.has_served for one in cluster.all):
        return replace(cluster, stage=Stage.RUNNING), [AnnounceCluster()]
    if cluster.stage is Stage.RUNNING:
        return cluster, [Say("info", f"{name} serves again")]
    return cluster, []


def _ended(
    cluster: ClusterState, process: ProcessState, code: int, now_s: float
) -> tuple[ClusterState, list[Effect]]:
    was = process.phase
    process = process.ended(now_s, is_clean=code == 0)
    is_broker = process.kind is ProcessKind.BROKER
    effects: list[Effect] = [EndSession(process.name)] if is_broker else []
    if cluster.stage in (Stage.STOPPING, Stage.KILLING):
        # Brokers need the metadata to close their topics; nothing else is started any more.
        is_needed = not is_broker and cluster.stage is Stage.STOPPING and was is not Phase.DRAINING
        is_needed = is_needed and any(one.is_alive for one in cluster.brokers)
        cluster = cluster.having(process if is_needed else replace(process, due_s=None))
        return _stopped_further(cluster, effects, now_s)
    cluster = cluster.having(process)
    if cluster.stage is Stage.BEGINNING and code > 0:
        # The process has said why.
        return _stop(cluster, effects, now_s, exit_code=1)
    if _is_hopeless(cluster):
        told = f"{process.name} {_how(code)}, and failed {process.failures} times in a row: giving up"
        return _stop(cluster, [*effects, Say("error", told)], now_s, exit_code=1)
    effects.append(_told_end(process, code, now_s))
    cluster, more = _time_passed(cluster, now_s)
    return cluster, effects + more


def _how(code: int) -> str:
    return (
        "ended" if code == 0 else f"was ended by signal {-code}" if code < 0 else f"failed with code {code}"
    )


def _told_end(process: ProcessState, code: int, now_s: float) -> Say:
    wait_s = (process.due_s or now_s) - now_s
    when = "starting it again" if wait_s <= 0 else f"starting it again in {wait_s:.1f} s"
    return Say("info" if code == 0 else "warning", f"{process.name} {_how(code)}: {when}")


def _is_hopeless(cluster: ClusterState) -> bool:
    return cluster.metadata.failures >= FAILURES_MAX or all(
        one.failures >= FAILURES_MAX for one in cluster.brokers
    )


def _stop_asked(cluster: ClusterState, signal: int, now_s: float) -> tuple[ClusterState, list[Effect]]:
    if cluster.stage in (Stage.STOPPING, Stage.KILLING):
        # Killing loses nothing that was acknowledged.
        at_rest = {one.name: replace(one, due_s=None) for one in cluster.all}
        cluster = replace(cluster, processes=at_rest, stage=Stage.KILLING, exit_code=128 + signal)
        killed: list[Effect] = [KillProcess(one.name) for one in cluster.all if one.is_alive]
        return cluster, killed
    return _stop(cluster, [Say("info", "stopping")], now_s, exit_code=0)


def _stop(
    cluster: ClusterState, effects: list[Effect], now_s: float, exit_code: int
) -> tuple[ClusterState, list[Effect]]:
    cluster = replace(cluster, stage=Stage.STOPPING, exit_code=exit_code)
    for one in cluster.brokers:
        if one.is_alive:
            cluster = cluster.having(one.moved(Phase.DRAINING, now_s, due_s=now_s + DRAIN_MAX_S))
            effects = [*effects, DrainProcess(one.name)]
        else:
            cluster = cluster.having(replace(one, due_s=None))
    return _stopped_further(cluster, effects, now_s)


def _stopped_further(
    cluster: ClusterState, effects: list[Effect], now_s: float
) -> tuple[ClusterState, list[Effect]]:
    """Drains the metadata once no broker is left, and finishes once nothing is."""
    metadata = cluster.metadata
    if any(one.is_alive for one in cluster.brokers):
        return cluster, effects
    if not metadata.is_alive:
        cluster = cluster.having(replace(metadata, due_s=None))
        return cluster, [*effects, Finish(cluster.exit_code)]
    if cluster.stage is Stage.STOPPING and metadata.phase is not Phase.DRAINING:
        cluster = cluster.having(metadata.moved(Phase.DRAINING, now_s, due_s=now_s + DRAIN_MAX_S))
        return cluster, [*effects, DrainProcess(metadata.name)]
    return cluster, effects


def _time_passed(cluster: ClusterState, now_s: float) -> tuple[ClusterState, list[Effect]]:
    effects: list[Effect] = []
    for one in cluster.all:
        if one.due_s is None or one.due_s > now_s:
            continue
        if not one.is_alive:
            cluster, more = _started(cluster, [one.name], now_s)
            effects += more
        else:
            # Its end is heard of as every other.
            cluster = cluster.having(replace(one, due_s=None))
            effects.append(Say("warning", f"{one.name} has taken too long ({one.phase.value}): killing it"))
            effects.append(KillProcess(one.name))
    return cluster, effects
