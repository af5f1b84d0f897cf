"""Faults of single processes of `anabranch standalone --brokers N` under the mixed load, and the same judgement.

Every few seconds a broker is killed, paused for longer or shorter than its metadata session lives, or told to stop; the
metadata process is killed, a bundle is moved, or, now and then, the supervisor is killed and with it everything.
"""

from __future__ import annotations

import contextlib
import enum
import http.client
import os
import random
import signal
import threading
import time
import urllib.error
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from soak import scalable, tier
from soak.cluster_process import METADATA, ClusterProcesses, stop_to_cut
from soak.gaps import FaultMoment, receipt_times, table
from soak.kill import Load, cut_tail, summary
from soak.scalable_beside import ScalableBeside
from soak.workload import BROKER_SETTINGS

REST_ERRORS = (urllib.error.URLError, http.client.HTTPException, OSError)


class FaultKind(enum.Enum):
    KILL = "kill -9 of a broker"
    SHORT_PAUSE = "short pause of a broker"
    LONG_PAUSE = "long pause of a broker"
    DRAIN = "SIGTERM to a broker"
    KILL_METADATA = "kill -9 of the metadata"
    MOVE = "move of a bundle"
    KILL_ALL = "kill -9 of the supervisor"
    # Only with the load balancer (`cluster_balanced`).
    KILL_LEADER = "kill -9 of the leader in a move"
    KILL_OWNER = "kill -9 of a bundle's owner"
    SPLIT_BUNDLE = "split of a bundle"
    UNLOAD_BUNDLE = "unload of a bundle"


WEIGHTS = {
    FaultKind.KILL: 30,
    FaultKind.SHORT_PAUSE: 10,
    FaultKind.LONG_PAUSE: 10,
    FaultKind.DRAIN: 15,
    FaultKind.KILL_METADATA: 10,
    FaultKind.MOVE: 22,
    FaultKind.KILL_ALL: 3,
}
# A broker that says nothing for 6 s loses its metadata session.
PAUSE_SECONDS = {FaultKind.SHORT_PAUSE: (0.2, 3.0), FaultKind.LONG_PAUSE: (7.0, 12.0)}


@dataclass(frozen=True, slots=True)
class Options:
    seconds: float
    every: float
    seed: int
    folder: Path
    brokers: int = 3
    # These faults and no others, in this order; `seconds` is not looked at.
    plan: tuple[FaultKind, ...] = ()
    # More settings of the brokers.
    settings: Mapping[str, object] = field(default_factory=dict)
    # Cuts the end off the log of each broker that is killed, which must not go unnoticed: it tests the judge.
    sabotage: bool = False
    # Whether files of the log move to an object store. Sabotage deletes one of the objects then.
    has_tier: bool = False
    # How long a bundle may be without an owner in calm weather, where that is judged.
    owned_s_max: float = 5.0


@dataclass
class Conductor:
    """Does the faults."""

    options: Options
    cluster: ClusterProcesses
    load: Load
    faults: list[FaultMoment] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    weights: ClassVar[Mapping[FaultKind, int]] = WEIGHTS

    def __post_init__(self) -> None:
        self._chance = random.Random(self.options.seed)
        self._pauses: list[threading.Timer] = []
        self._do: dict[FaultKind, Callable[[FaultKind], str]] = {
            FaultKind.KILL: self._kill,
            FaultKind.SHORT_PAUSE: self._pause,
            FaultKind.LONG_PAUSE: self._pause,
            FaultKind.DRAIN: self._drain,
            FaultKind.KILL_METADATA: self._kill_metadata,
            FaultKind.MOVE: self._move,
            FaultKind.KILL_ALL: self._kill_all,
        }

    def run(self) -> None:
        ends = time.monotonic() + self.options.seconds
        plan = iter(self.options.plan)
        while True:
            time.sleep(self._chance.uniform(0.5, 1.5) * self.options.every)
            is_over = time.monotonic() > ends
            kind = next(plan, None) if self.options.plan else None if is_over else self._drawn()
            if kind is None:
                break
            began_ms = time.monotonic_ns() // 1_000_000
            try:
                told = self._do[kind](kind)
            except REST_ERRORS as error:
                self.refused[kind.value] += 1
                print(f"{kind.value} not done: {error!r}", flush=True)
                continue
            self.faults.append(FaultMoment(kind.value, began_ms))
            self.load.judge.read()
            print(f"{kind.value}: {told}; {self.load.judge.figures()}", flush=True)
        for timer in self._pauses:
            timer.join()
        self.cluster.wait_ready()

    def _drawn(self) -> FaultKind:
        return self._chance.choices(list(self.weights), list(self.weights.values()))[0]

    def begin(self) -> None:
        """The load has begun."""

    def judged(self) -> list[str]:
        """What else there is to tell in the end; violations go to the load's judge."""
        return []

    def _victim(self) -> tuple[str, int]:
        while not (found := sorted((n, pid) for n, pid in self.cluster.pids.items() if n != METADATA)):
            time.sleep(0.05)
        return self._chance.choice(found)

    def _kill(self, _: FaultKind) -> str:
        name, pid = self._victim()
        self.kill_one(name, pid)
        return name

    def kill_one(self, name: str, pid: int) -> None:
        if self.options.sabotage and not self.options.has_tier:
            stop_to_cut(pid)
            if files := self.cluster.log_files(pid):
                cut_tail(files)
        self.cluster.signal_one(name, pid, signal.SIGKILL)

    def _pause(self, kind: FaultKind) -> str:
        name, pid = self._victim()
        seconds = self._chance.uniform(*PAUSE_SECONDS[kind])
        self.cluster.signal_one(name, pid, signal.SIGSTOP)
        # It may be killed meanwhile, also with the supervisor.
        timer = threading.Timer(seconds, self._continue, (name, pid))
        self._pauses.append(timer)
        timer.start()
        return f"{name} for {seconds:.1f} s"

    def _continue(self, name: str, pid: int) -> None:
        self.cluster.signal_one(name, pid, signal.SIGCONT)

    def _drain(self, _: FaultKind) -> str:
        name, pid = self._victim()
        self.cluster.signal_one(name, pid, signal.SIGTERM)
        return name

    def _kill_metadata(self, _: FaultKind) -> str:
        pid = self.cluster.pids.get(METADATA)
        if pid is None:
            return "it was down already"
        self.cluster.signal_one(METADATA, pid, signal.SIGKILL)
        return "done"

    def _move(self, _: FaultKind) -> str:
        name, bundle = self._drawn_bundle()
        target = self._chance.choice(self.cluster.addresses())
        self.cluster.rest("PUT", f"namespaces/{bundle}/unload?destinationBroker={target}", timeout=10)
        return f"{bundle} with {name} to {target}"

    def _drawn_bundle(self) -> tuple[str, str]:
        """A topic of the load, and the bundle with it as paths name it."""
        topic = self._chance.choice(self.load.workload.topics)
        name = (
            f"{topic.name}-partition-{self._chance.randrange(topic.partitions)}"
            if topic.partitions
            else topic.name
        )
        return name, f"{topic.name.rpartition('/')[0]}/{self.cluster.bundle_of(name)}"

    def _kill_all(self, _: FaultKind) -> str:
        self.cluster.kill()
        return f"all serve again in {self.cluster.start():.2f} s"

    def end(self) -> None:
        for timer in self._pauses:
            timer.cancel()
        if self.cluster.is_running:
            for pid in self.cluster.pids.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


def run(options: Options, conducts: type[Conductor] = Conductor) -> int:
    """Returns the exit code: 0 if nothing was violated."""
    options.folder.mkdir(parents=True, exist_ok=True)
    settings = {**scalable.SETTINGS, **BROKER_SETTINGS, **options.settings}
    if options.has_tier:
        settings |= tier.settings(options.folder)
    cluster = ClusterProcesses(options.folder / "data", settings, brokers=options.brokers)
    load = Load(cluster, options.folder, options.seed)
    conductor = conducts(options, cluster, load)
    print(
        f"soak: {options.brokers} brokers, a fault about every {options.every:.0f} s, seed {options.seed}, "
        f"histories in {options.folder}",
        flush=True,
    )
    try:
        cluster.start()
        load.start()
        beside = ScalableBeside(cluster, options.folder, options.seed)
        beside.prepare()
        beside.start()
        conductor.begin()
        conductor.run()
        end_ms = time.monotonic_ns() // 1_000_000
        print(*conductor.judged(), beside.finish(load.judge.violations), sep="\n", flush=True)
        load.finish()
        if options.has_tier:
            _judge_tier(options, cluster, load)
        print(f"\n{len(conductor.faults)} faults, seed {options.seed}: {load.judge.figures()}")
        print(*table(receipt_times(load.workload, options.folder), conductor.faults, end_ms), sep="\n")
        for kind, count in conductor.refused.items():
            print(f"  {kind}: {count} refused or not answered")
        return summary(load.judge, options.seed, options.folder)
    finally:
        conductor.end()
        load.end()
        if cluster.is_running:
            cluster.kill()


def _judge_tier(options: Options, cluster: ClusterProcesses, load: Load) -> None:
    cluster.kill()
    if options.sabotage and not tier.lose_one(options.folder):
        print("nothing was moved, so nothing was lost on purpose", flush=True)
    told, wrong = tier.faults(options.folder)
    print(told, flush=True)
    for one in wrong:
        load.judge.violations.add(one)
