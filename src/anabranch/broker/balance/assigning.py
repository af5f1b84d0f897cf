"""Finds brokers for bundles that have none: what any broker does when it is asked for their topics.

Several brokers may choose at the same time. The first change in the channel's order wins, and all of them learn of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from anabranch.balance.core.serving import is_free
from anabranch.balance.core.states import BrokerRun, BundleState
from anabranch.balance.core.transfer import owned
from anabranch.broker.balance.bundle_owners import BundleOwners
from anabranch.broker.balance.bundle_tasks import BundleTasks
from anabranch.broker.balance.channel.state_log import ChangeRejected, StateLog
from anabranch.broker.balance.choosing import Choose
from anabranch.broker.errors import NotReadyError
from anabranch.errors import AnabranchError
from anabranch.model.bundles import BundleName

log = logging.getLogger(__name__)

# How long to wait before a change is tried again that the channel did not take.
RETRY_S: Final = 0.2
RETRY_MAX_S: Final = 2.0
# The next request for the bundle begins again.
ASSIGN_MAX_S: Final = 20.0


class Assigning:
    def __init__(
        self,
        owners: BundleOwners,
        states: StateLog,
        choose: Choose,
        now_ms: Callable[[], int],
        revive: Callable[[BundleName], Awaitable[None]],
    ) -> None:
        """`revive` asks the leader for an owner of a bundle that was deleted and that its namespace has again."""
        self._owners = owners
        self._states = states
        self._choose = choose
        self._now_ms = now_ms
        self._revive = revive
        self._tasks = BundleTasks()
        # The brokers of bundles that are being assigned.
        self._given: dict[BundleName, BrokerRun] = {}

    async def close(self) -> None:
        await self._tasks.close()

    def seek(self, bundle: BundleName) -> None:
        """Begins to find an owner for the bundle, if that is not under way. Does not wait."""
        self._tasks.begin(bundle, 0, lambda: self.assign(bundle, "a client asks for it"))

    async def assign(self, bundle: BundleName, reason: str) -> None:
        """Returns once the bundle is assigned, by this broker or by another, or cannot be by this one."""
        loop = asyncio.get_running_loop()
        pause_s, end_s = RETRY_S, loop.time() + ASSIGN_MAX_S
        while self._owners.is_sure and self._owners.bundles.has(bundle) and loop.time() < end_s:
            now = self._states.fold.get(bundle)
            try:
                if now is not None and now.state is BundleState.DELETED:
                    await self._revive(bundle)
                elif is_free(now):
                    await self._own(bundle, reason)
                return
            except ChangeRejected as error:
                # Another broker was faster. What it wrote is about to be read.
                log.debug("%s: not assigned: %s", bundle, error)
            except AnabranchError as error:
                log.info("%s: not assigned, trying again in %s s: %s", bundle, pause_s, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def _own(self, bundle: BundleName, reason: str) -> None:
        choice = self._choose(bundle, given=self._given)
        if choice.to is None:
            raise NotReadyError(choice.reason)
        self._given[bundle] = choice.to
        try:
            version = self._states.fold.next_version(bundle)
            told = f"{reason}: {choice.reason}"
            await self._states.append(
                owned(bundle, version, choice.to, self._owners.me, self._now_ms(), told)
            )
            # The line that operators read is that of `balance_log`, here as for all changes.
            log.debug("%s: assigned to %s: %s", bundle, choice.to, told)
        finally:
            self._given.pop(bundle, None)
