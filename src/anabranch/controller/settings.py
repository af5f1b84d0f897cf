"""The settings of the controllers of one broker, and their port to classic topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from anabranch.model.buckets import ONE_BUCKET, BucketBudget
from anabranch.model.names import TopicName
from anabranch.model.scalable import SubscriptionKind

# The most segments that a topic may be created with. Automatic splits have a limit of their own.
SEGMENTS_MAX = 4096


async def _keep_nothing(name: TopicName) -> int | None:
    return 0


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    session_grace_s: float = 60.0
    # How long a consumer that is alone with a shared segment goes on as if it were not.
    settle_s: float = 10.0
    # Whether consumers share sealed segments by entry buckets, so that a backlog is read faster.
    shares_sealed: bool = True
    # How many entry buckets a topic has in all, and a segment at most.
    buckets: BucketBudget = ONE_BUCKET
    # How often sealed segments are checked for removal.
    collect_every_s: float = 60.0
    # The least time that a sealed segment is kept, by the name of its log, in milliseconds; None for ever.
    retention_ms: Callable[[TopicName], Awaitable[int | None]] = _keep_nothing
    # The same for an emptied segment, as it holds nothing to retain; None: as any other.
    emptied_ms: int | None = None
    drain_poll_first_s: float = 0.25
    drain_poll_max_s: float = 5.0
    retry_first_s: float = 0.02
    retry_max_s: float = 2.0
    # How long a broker leaves an election to the one that should lead, and how often it looks for the outcome.
    defer_s: float = 2.0
    defer_look_s: float = 0.1


class Classic(Protocol):
    """The broker's classic topics, as far as scalable topics concern them."""

    async def topics(self, topic: TopicName) -> Sequence[TopicName]:
        """The `persistent://` topics that hold the messages of the classic topic with this local name.

        Its partitions in order, or the topic itself; none if there is no such topic.
        """
        ...

    async def topic_id(self, topic: TopicName) -> str:
        """The id of the classic topic with this local name; "" if it has none."""
        ...

    async def attached(self, topic: TopicName) -> int:
        """How many producers and consumers are connected to that `persistent://` topic (a partition, say)."""
        ...

    async def subscriptions(self, topic: TopicName) -> Mapping[str, SubscriptionKind]:
        """The durable subscriptions of that `persistent://` topic."""
        ...


class NoClassic:
    """A broker without classic topics."""

    async def topics(self, topic: TopicName) -> Sequence[TopicName]:
        return ()

    async def topic_id(self, topic: TopicName) -> str:
        return ""

    async def attached(self, topic: TopicName) -> int:
        return 0

    async def subscriptions(self, topic: TopicName) -> Mapping[str, SubscriptionKind]:
        return {}
