"""Faults built into the load balancer of a simulated broker on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from anabranch.balance.core.states import BrokerRun, BundleChange
from anabranch.balance.core.transfer import Duty
from anabranch.broker.balance.channel.metadata_state_log import MetadataStateLog
from anabranch.broker.balance.counted_state_log import CountedStateLog
from anabranch.broker.balance.splitting import Splitting, cut
from anabranch.broker.broker import Broker
from anabranch.metadata.port import Versioned
from anabranch.simulation.cluster.sabotage import Sabotage

FOREVER: Final = 2**40


class LastWins(MetadataStateLog):
    """Stores every change, whatever the state is that it meets."""

    async def _why_not(self, path: str, change: BundleChange, before: Versioned | None) -> str | None:
        return None


class OldLeaders(MetadataStateLog):
    """Stores the changes of every leader there was."""

    async def _why_not(self, path: str, change: BundleChange, before: Versioned | None) -> str | None:
        forever = replace(change, term=FOREVER) if change.term else change
        return await super()._why_not(path, forever, before)


class HastyChannel(MetadataStateLog):
    """Takes every change for stored at once."""

    async def append(self, change: BundleChange) -> None:
        self.fold.restore(change)
        await super().append(change)


class AnyRun(BrokerRun):
    """Every start of the broker is the same."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BrokerRun) and other.broker == self.broker

    def __hash__(self) -> int:
        return hash(self.broker)


class CutFirst(Splitting):
    """Changes the boundaries before the children are in the channel."""

    async def perform(self, duty: Duty) -> None:
        await self._resources.update_policies(
            duty.bundle.namespace, lambda policies: cut(policies, duty.bundle, duty.children)
        )
        await super().perform(duty)


BAD_CHANNELS: Final[Mapping[Sabotage, type[MetadataStateLog]]] = {
    Sabotage.LAST_CHANGE_WINS: LastWins,
    Sabotage.OBEY_OLD_LEADERS: OldLeaders,
    Sabotage.ACT_BEFORE_STORED: HastyChannel,
}


def corrupt_balancer(broker: Broker, sabotage: frozenset[Sabotage]) -> None:
    """Does nothing to a broker without a balancer."""
    if (balancer := broker.balancer) is None:
        return
    owners, states, moves, splitting = balancer.owners, balancer.states, balancer.moves, balancer.splitting
    stored = states.stored if isinstance(states, CountedStateLog) else states
    changed: list[tuple[object, str, object]] = [
        (stored, "__class__", kind)
        for fault, kind in BAD_CHANNELS.items()
        if fault in sabotage and isinstance(stored, MetadataStateLog)
    ]
    if Sabotage.OBEY_FORMER_RUN in sabotage:
        me = AnyRun(owners.me.broker, owners.me.run)
        changed += [(owners, "me", me), (moves, "_me", me), (splitting, "_me", me)]
    if Sabotage.CUT_FIRST in sabotage:
        bad = CutFirst(owners, states, broker.resources, broker.now_ms)
        changed.append((moves, "_split", bad.perform))
    if Sabotage.LEAVE_ORPHANS in sabotage:
        changed.append((balancer.changes, "reassign", _left))
    for part, name, value in changed:
        setattr(part, name, value)


async def _left(before: BundleChange, to: BrokerRun | None, reason: str, **given: object) -> int:
    return before.version
