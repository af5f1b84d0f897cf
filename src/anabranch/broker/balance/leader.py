"""What the elected leader does by itself: repairs, moves from brokers that are about to end, first assignments.

It looks when it begins, when brokers come or go, and at intervals. It changes nothing while the metadata store is in
doubt (`safe_mode`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from anabranch.balance.core.orphans import Repair, RepairKind, RepairScope, RepairTimes, repairs
from anabranch.balance.core.serving import is_free, is_living
from anabranch.balance.core.states import BrokerRun, BundleState
from anabranch.broker.balance.assigning import Assigning
from anabranch.broker.balance.bundle_owners import BundleOwners
from anabranch.broker.balance.channel.state_log import StateLog
from anabranch.broker.balance.leader_changes import LeaderChanges
from anabranch.broker.balance.leading import Leading
from anabranch.broker.balance.safe_mode import SafeMode
from anabranch.broker.catalog.registry import BrokerRegistry
from anabranch.broker.errors import NotReadyError
from anabranch.errors import AnabranchError
from anabranch.model.bundles import BundleName

log = logging.getLogger(__name__)

# A leader that has just started may see the other brokers start too. It gives nothing away before all have been there;
# if it does not know how many there will be, before none has come for a while. Nor does it wait for them for too long.
SETTLE_S: Final = 1.0
SETTLE_MAX_S: Final = 10.0
SETTLE_LOOK_S: Final = 0.05
# How many bundles a broker that is about to end hands over at the same time. A broker ends within ten seconds; bundles
# without topics take nothing but answers of the store and of brokers, and those with topics take turns (`HandOver`).
LEAVING_AT_ONCE: Final = 16
# How many bundles without an owner are assigned before a client asks for them.
EAGER_MAX: Final = 4096
# How long to wait before the leader looks again after the channel failed.
RETRY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    look_every_s: float = 60.0
    in_flight_max_s: float = 30.0
    tombstone_s: float = 3600.0
    changes_at_once: int = 64
    # For how long the metadata store must have been well before anything is moved again.
    stable_s: float = 150.0

    @property
    def times(self) -> RepairTimes:
        return RepairTimes(int(self.in_flight_max_s * 1000), int(self.tombstone_s * 1000))


class BundleLeader:
    def __init__(
        self,
        owners: BundleOwners,
        states: StateLog,
        leading: Leading,
        registry: BrokerRegistry,
        assigning: Assigning,
        changes: LeaderChanges,
        safe_mode: SafeMode,
        now_ms: Callable[[], int],
        settings: Callable[[], LeaderSettings],
        *,
        brokers_expected: int = 0,
    ) -> None:
        self._owners = owners
        self._states = states
        self._leading = leading
        self._registry = registry
        self._assigning = assigning
        self._changes = changes
        self._safe_mode = safe_mode
        self._now_ms = now_ms
        self._settings = settings
        self._brokers_expected = brokers_expected
        self._looking: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._began_s = self._changed_s = 0.0
        # The brokers that have been there since this one started. Those of them that have gone are not about to come.
        self._seen: set[str] = set()
        # The term for which bundles without an owner were assigned, and the task that does so.
        self._assigned_for = 0
        self._assigning_all: asyncio.Task[None] | None = None
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._stops: list[Callable[[], None]] = []

    # -- life

    def start(self) -> None:
        self._began_s = self._changed_s = asyncio.get_running_loop().time()
        self._seen = set(self._registry.living())
        self._stops = [
            self._leading.on_change(self.look_soon),
            self._registry.on_change(self._brokers_changed),
        ]
        self._looking = asyncio.create_task(self._look_often())  # Awaited by `close`.
        self.look_soon()

    async def close(self) -> None:
        for stop in self._stops:
            stop()
        begun = (self._looking, self._assigning_all, *self._leaving.values())
        tasks = [task for task in begun if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def is_leader(self) -> bool:
        return self._leading.term > 0

    # -- looking

    def look_soon(self) -> None:
        self._wanted.set()

    def _brokers_changed(self) -> None:
        self._changed_s = asyncio.get_running_loop().time()
        self._seen |= self._registry.living().keys()
        self.look_soon()

    async def _look_often(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._settings().look_every_s):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            try:
                if self.is_leader and self._states.is_following and self._owners.is_sure:
                    await self.look()
            except AnabranchError as error:
                log.warning("looking after bundles failed, trying again in %s s: %s", RETRY_S, error)
                await asyncio.sleep(RETRY_S)
                self.look_soon()
            except Exception:
                # A bug of ours; the next look comes at its time.
                log.exception("looking after bundles failed")

    async def look(self) -> None:
        """Repairs what is wrong. Begins to empty brokers that are about to end, and to assign what has no owner: that
        may take long, and repairs do not wait for it."""
        await self._settle()
        why = self._safe_mode.why()
        if why is not None:
            log.warning("only bundles of brokers that were started again are repaired: %s", why)
        found = repairs(
            self._states.fold,
            self._owners.living,
            self._owners.bundles.has,
            self._now_ms(),
            self._settings().times,
            RepairScope.ALL if why is None else RepairScope.RESTARTED,
        )
        if found:
            log.info("the leader repairs %d bundles, the first for: %s", len(found), found[0].reason)
        await self._at_once(partial(self._repair, repair, is_certain=why is not None) for repair in found)
        for broker, registered in self._registry.living().items():
            if registered.is_draining and broker not in self._leaving:
                self._begin_emptying(BrokerRun(broker, registered.run_id))
        if why is None and self._assigned_for != self._leading.term and self._assigning_all is None:
            # Held in `_assigning_all` and cancelled by `close`.
            self._assigning_all = asyncio.create_task(self._assign_for(self._leading.term))

    async def _settle(self) -> None:
        """Waits for other brokers that start at the same time as this one: else it would give everything to itself.
        Bundles that clients ask for are assigned meanwhile."""
        loop = asyncio.get_running_loop()
        while (now_s := loop.time()) < self._began_s + SETTLE_MAX_S:
            if self._brokers_expected:
                left_s = SETTLE_LOOK_S if len(self._seen) < self._brokers_expected else 0.0
            else:
                left_s = max(self._began_s, self._changed_s) + SETTLE_S - now_s
            if left_s <= 0:
                return
            await asyncio.sleep(left_s)

    async def _at_once(self, works: Iterable[Callable[[], Awaitable[None]]]) -> None:
        """Does all of it, some at a time. The first failure is raised when all have ended.

        Each is begun at its turn: a coroutine that a cancelled caller leaves behind would never be awaited.
        """
        gate = asyncio.Semaphore(self._settings().changes_at_once)

        async def one(work: Callable[[], Awaitable[None]]) -> None:
            async with gate:
                await work()

        ended = await asyncio.gather(*(one(work) for work in works), return_exceptions=True)
        for error in ended:
            if isinstance(error, BaseException):
                raise error

    async def _repair(self, repair: Repair, *, is_certain: bool) -> None:
        before = self._states.fold.get(repair.bundle)
        if before is None or before.version != repair.version:
            return
        try:
            match repair.kind:
                case RepairKind.FORGET:
                    await self._changes.forget(before, repair.reason)
                case RepairKind.REMOVE:
                    await self._changes.remove(before, repair.reason)
                case RepairKind.REASSIGN:
                    await self._changes.reassign(before, repair.to, repair.reason, is_certain=is_certain)
        except NotReadyError as error:
            # The bundle has changed meanwhile, or no broker may have it: the next look sees.
            log.info("%s: not repaired: %s", repair.bundle, error)

    async def _assign_for(self, term: int) -> None:
        try:
            await self._assign_all()
            self._assigned_for = term
        except AnabranchError as error:
            log.warning("assigning bundles failed, trying again in %s s: %s", RETRY_S, error)
            await asyncio.sleep(RETRY_S)
        except Exception:
            # A bug of ours; the next look tries again.
            log.exception("assigning bundles failed")
            return
        finally:
            self._assigning_all = None
        if self._assigned_for != self._leading.term:
            self.look_soon()

    async def _assign_all(self) -> None:
        """Assigns the bundles that have no owner, so that their first clients do not wait for it."""
        free = [
            bundle
            for namespace, ranges in sorted(self._owners.bundles.ranges.items())
            for bundle in ranges.bundles(namespace)
            if is_free(self._states.fold.get(bundle))
        ]
        if free:
            log.info("the leader assigns %d bundles", min(len(free), EAGER_MAX))
        await self._at_once(
            partial(self._assigning.assign, bundle, "it has no owner") for bundle in free[:EAGER_MAX]
        )

    # -- brokers that are about to end

    def _begin_emptying(self, leaving: BrokerRun) -> None:
        task = asyncio.create_task(self._empty(leaving))  # Held in `_leaving` and cancelled by `close`.
        self._leaving[leaving.broker] = task
        task.add_done_callback(lambda _: self._leaving.pop(leaving.broker, None))

    async def _empty(self, leaving: BrokerRun) -> None:
        """Moves all bundles of a broker that is about to end to others."""
        gate = asyncio.Semaphore(LEAVING_AT_ONCE)

        async def move(bundle: BundleName) -> None:
            async with gate:
                # A leader that resigns, since it is about to end itself, leaves the rest to the next one.
                if self.is_leader:
                    await self._move_away(bundle, leaving)

        while is_living(leaving, self._owners.living) and self.is_leader:
            has = [now.bundle for now in self._states.fold.bundles.values() if now.to == leaving]
            if not has:
                return
            await asyncio.gather(*(move(bundle) for bundle in has))
            await asyncio.sleep(0)

    async def _move_away(self, bundle: BundleName, leaving: BrokerRun) -> None:
        now = self._states.fold.get(bundle)
        try:
            if now is None or now.to != leaving:
                return
            if now.state is BundleState.ASSIGNED:
                # Both brokers answer, and this one wants to be rid of it: that is so whatever the store has forgotten.
                await self._changes.transfer(bundle, None, f"{leaving} is about to end", is_certain=True)
            await self._owners.settled(bundle, self._settings().in_flight_max_s)
        except AnabranchError as error:
            log.warning("%s: not moved from %s: %s", bundle, leaving, error)
            await asyncio.sleep(RETRY_S)
