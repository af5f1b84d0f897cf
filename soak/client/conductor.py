"""Splits, merges, kills and cuts at random: the operator and the faults of the run."""

from __future__ import annotations

import asyncio
import random
import time
import urllib.error
from dataclasses import dataclass, field
from typing import Any

from soak.client.relay import Relay
from soak.client.target import REST_ERRORS, Target
from soak.client.world import World

MAIN = "main"
BROOKS = ("brook-1", "brook-2")
JOINED = {"read": "yes"}
PARTED = {"read": "no"}
ACTIVE_MAX = 10
BROOK_ACTIVE_MAX = 4
CONFLICT = 409


@dataclass(frozen=True, slots=True)
class Pace:
    """Average seconds between two events of a kind."""

    operation_s: float = 0.3
    fault_s: float = 0.7
    membership_s: float = 8.0
    kill_s: float = 0.0  # 0: never
    # How long sealed segments that every subscription has finished are kept for readers that are behind.
    retention_min: int = 1


@dataclass
class Figures:
    splits: int = 0
    merges: int = 0
    refused: int = 0
    kills: int = 0
    unloads: int = 0
    joins: int = 0
    parts: int = 0
    operation_s: list[float] = field(default_factory=list)

    @property
    def done(self) -> int:
        return self.splits + self.merges


class Conductor:
    def __init__(self, target: Target, world: World, relay: Relay | None, pace: Pace, seed: int) -> None:
        self.figures = Figures()
        self._target = target
        self._world = world
        self._relay = relay
        self._pace = pace
        self._chance = random.Random(f"{seed} conductor")
        # The topics of the namespace that its consumers read now.
        self._brooks: dict[str, bool] = {}
        self._wide: dict[str, str] = {}

    async def prepare(self) -> None:
        namespace, rest = self._world.namespace, self._target.rest
        await rest("PUT", f"namespaces/{namespace}", {})
        await rest("POST", f"namespaces/{namespace}/deduplication", True)
        keep = {"retentionTimeInMinutes": self._pace.retention_min, "retentionSizeInMB": -1}
        await rest("POST", f"namespaces/{namespace}/retention", keep)
        await self.make_topic(MAIN, 2)

    async def make_topic(self, name: str, segments: int) -> None:
        path = self._path(name)
        await self._insist("PUT", f"{path}?numInitialSegments={segments}", JOINED)
        # Only this run changes its layout, however many consumers join.
        await self._insist("POST", f"{path}/autoScalePolicy", {"enabled": False})
        for subscription, kind in self._wide.items():
            await self._insist("PUT", f"{path}/subscriptions/{subscription}?type={kind}")

    async def _insist(self, method: str, path: str, body: object = None) -> None:
        """Repeats the request until it is done: the broker may be killed at any moment, with the request done or
        not."""
        while True:
            try:
                await self._target.rest(method, path, body)
                return
            except urllib.error.HTTPError as error:
                if error.code == CONFLICT:
                    return  # An earlier try has done it.
                if error.code < 500:
                    raise
                self._world.note(f"{path}: {error!r}")
            except REST_ERRORS as error:
                self._world.note(f"{path}: {error!r}")
            await asyncio.sleep(0.2)

    def _path(self, topic: str) -> str:
        return f"scalable/{self._world.namespace}/{topic}"

    async def subscribe(self, name: str, kind: str, *, is_wide: bool) -> None:
        """Creates a subscription before its consumers come, with `is_wide` also on topics that are created later."""
        if is_wide:
            self._wide[name] = kind
        await self._target.rest("PUT", f"{self._path(MAIN)}/subscriptions/{name}?type={kind}")

    # -- splits and merges

    async def reshape(self, operations: int) -> None:
        """Runs until there have been enough operations. The broker may die in the middle of any."""
        told = 0
        while self.figures.done < operations and not self._world.history.violations:
            await asyncio.sleep(self._chance.expovariate(1 / self._pace.operation_s))
            topics = [MAIN, MAIN, MAIN, *self._brooks]
            try:
                await self._reshape_once(self._chance.choice(topics))
            except urllib.error.HTTPError as error:
                self.figures.refused += 1
                self._world.note(f"refused: {error.code} {error.read()[:200]!r}")
            except REST_ERRORS as error:
                self._world.note(f"operation failed: {error!r}")
            if self.figures.done >= told + max(1, operations // 20):
                told = self.figures.done
                print(f"{told}/{operations} operations; {self.summary()}", flush=True)

    async def _reshape_once(self, topic: str) -> None:
        path, chance = self._path(topic), self._chance
        layout = await self._target.rest("GET", path)
        active = sorted(
            (s["hashRange"]["start"], s["segmentId"], s["hashRange"]["end"])
            for s in layout["segments"].values()
            if s["state"] == "ACTIVE"
        )
        most = ACTIVE_MAX if topic == MAIN else BROOK_ACTIVE_MAX
        began = time.monotonic()
        if len(active) == 1 or (len(active) < most and chance.random() < 0.55):
            start, number, end = chance.choice(active)
            if start == end:
                return
            what = f"split/{number}"
            self._world.note(f"{topic}: {what}")
            await self._target.rest("POST", f"{path}/{what}")
            self.figures.splits += 1
        else:
            at = chance.randrange(len(active) - 1)
            what = f"merge/{active[at][1]}/{active[at + 1][1]}"
            self._world.note(f"{topic}: {what}")
            await self._target.rest("POST", f"{path}/{what}")
            self.figures.merges += 1
        self._world.note(f"{topic}: {what} is done")
        self.figures.operation_s.append(time.monotonic() - began)

    # -- bad luck

    async def harm(self) -> None:
        while self._relay is not None:
            await asyncio.sleep(self._chance.expovariate(1 / self._pace.fault_s))
            self._relay.harm()

    async def kill(self) -> None:
        process = self._target.process
        while self._pace.kill_s and process is not None:
            await asyncio.sleep(self._chance.uniform(0.5, 1.5) * self._pace.kill_s)
            self._world.history.all_cut_off(begins=True)
            await asyncio.to_thread(process.kill)
            await asyncio.to_thread(process.start)
            self._world.history.all_cut_off(begins=False)
            self.figures.kills += 1

    async def unload(self) -> None:
        """What an operator does about sealed segments that Pulsar 5.0.0-M1 keeps unavailable."""
        self._world.note("unloading the namespace")
        self.figures.unloads += 1
        self._world.history.all_cut_off(begins=True)
        try:
            await self._target.rest("PUT", f"namespaces/{self._world.namespace}/unload")
        except REST_ERRORS as error:
            self._world.note(f"perhaps not unloaded: {error!r}")
        self._world.history.all_cut_off(begins=False)
        self._world.history.acks_forgotten()

    # -- topics that consumers of the namespace find, and lose sight of

    async def brook(self, name: str) -> None:
        await self.make_topic(name, 1)
        self._brooks[name] = True
        self.figures.joins += 1

    async def change_members(self) -> None:
        """Topics leave the set that the namespace's consumers read, and come back."""
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / self._pace.membership_s))
            if self._brooks:
                name = self._chance.choice(sorted(self._brooks))
                await self._set_joined(name, not self._brooks[name])

    async def rejoin_all(self) -> None:
        for name, is_joined in self._brooks.items():
            while not is_joined:
                await self._set_joined(name, True)
                is_joined = self._brooks[name]

    async def _set_joined(self, name: str, is_joined: bool) -> None:
        try:
            properties = JOINED if is_joined else PARTED
            await self._target.rest("PUT", f"{self._path(name)}/properties", properties)
        except REST_ERRORS as error:
            self._world.note(f"properties of {name} were perhaps not changed: {error!r}")
            return
        self._world.history.all_shaken()  # Its consumers drop it, or find it again.
        self._brooks[name] = is_joined
        self.figures.joins += is_joined
        self.figures.parts += not is_joined

    # -- telling

    def summary(self) -> str:
        sent, receipted, delivered = self._world.history.figures
        took = sorted(self.figures.operation_s) or [0.0]
        faults = sum(self._relay.counts.values()) if self._relay is not None else 0
        return (
            f"{faults} connection faults, {self.figures.kills} kills, {sent:,} sent, {receipted:,} receipts, "
            f"{delivered:,} delivered, {sum(self._world.history.repeats.values()):,} again, "
            f"{len(self._world.history.violations)} violations; "
            f"operation p50 {took[len(took) // 2] * 1000:.0f} ms"
        )


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
