"""What the state of a bundle means for those who want its topics: who serves them, who may open them, where they go.
Pure.

A broker that is named by its id and a run id that is not registered any more serves nothing. The bundle has no owner
then, until the leader gives it another one: no broker concludes from a death that the bundle is its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.balance.core.states import BrokerRun, BundleChange, BundleState

_WITH_OWNER = frozenset((BundleState.ASSIGNED, BundleState.SPLITTING))


def is_living(run: BrokerRun | None, living: Mapping[str, str]) -> bool:
    """`living` has the run id of each living broker by its id."""
    return run is not None and living.get(run.broker) == run.run


def server_of(now: BundleChange | None, living: Mapping[str, str]) -> BrokerRun | None:
    """The broker that clients of the bundle are sent to; None while they must wait."""
    if now is None or now.state not in _WITH_OWNER:
        return None
    return now.to if is_living(now.to, living) else None


def may_serve(now: BundleChange | None, me: BrokerRun) -> bool:
    """Whether this broker may open the bundle's topics, and keep those that it has open. The destination of a transfer
    may before the transfer is over: it gets the topics one by one."""
    return (
        now is not None and now.to == me and (now.state in _WITH_OWNER or now.state is BundleState.ASSIGNING)
    )


def is_receiving(now: BundleChange | None, me: BrokerRun) -> bool:
    """Whether this broker is the destination of a transfer that is under way."""
    return (
        now is not None
        and now.state is BundleState.ASSIGNING
        and now.to == me
        and now.source not in (None, me)
    )


def goes_to(now: BundleChange | None) -> BrokerRun | None:
    """The broker that has, or gets, the bundle's topics. None if no broker is chosen."""
    return None if now is None else now.to


def is_free(now: BundleChange | None) -> bool:
    """Whether any broker may assign the bundle."""
    return now is None or now.state is BundleState.FREED
