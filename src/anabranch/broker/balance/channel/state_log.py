"""The port of the bundle state channel: changes of bundles in one order, which every broker reads.

Ownership is what this log says, and nothing else: while nothing can be appended, no owner changes. Two adapters keep
it: a topic that the leader owns (`topic_state_log`), and the metadata store (`metadata_state_log`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from anabranch.balance.core.fold import Fold
from anabranch.balance.core.states import BundleChange
from anabranch.broker.errors import NotReadyError
from anabranch.errors import AnabranchError

# What `on_change` calls: with the accepted changes, in their order.
StatesListener = Callable[[Sequence[BundleChange]], None]


class ChangeRejected(AnabranchError):
    """The change is not valid any more: another one came first, or its author may not make it."""


class ChannelUnavailable(NotReadyError):
    """The channel did not answer. The change may have been stored, and may be read later."""


class StateLog(Protocol):
    @property
    def fold(self) -> Fold:
        """What this broker has read so far; only the log changes it."""
        ...

    @property
    def is_following(self) -> bool:
        """Whether this broker has read everything that there was, and hears of what is new."""
        ...

    @property
    def lag_s(self) -> float:
        """For how long this broker has heard nothing of the channel; 0 while it follows."""
        ...

    async def start(self) -> None:
        """Begins to follow. Returns before the end of the log is reached: `is_following` says when it is."""
        ...

    async def close(self) -> None: ...

    async def append(self, change: BundleChange) -> None:
        """Returns once the change is stored, accepted, and read by this broker. ChangeRejected if it is not valid;
        ChannelUnavailable if its fate is not known."""
        ...

    async def lead(self, term: int) -> None:
        """This broker leads from now on, for that term; changes of leaders of earlier terms are not valid any more.
        Returns once it has read everything that its predecessors stored. ChangeRejected if a later leader has begun;
        may raise ChannelUnavailable."""
        ...

    async def resign(self) -> None:
        """This broker leads no more."""
        ...

    def on_change(self, callback: StatesListener) -> Callable[[], None]:
        """Calls `callback`, on the event loop, after changes were folded. Returns a function to stop. A broker that
        had lost the channel, and reads it again, hears of every bundle whose state is another one."""
        ...
