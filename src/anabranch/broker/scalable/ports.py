"""What scalable topics need of the ordinary topics of their broker: segments are ordinary topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from anabranch.broker.topic.topic import Topic
from anabranch.model.names import TopicName
from anabranch.model.scalable import ScalableTopic

# The topic of that name if it is open here, else None.
Opened: TypeAlias = Callable[[TopicName], Topic | None]


class ServedTopics(Protocol):
    """The topics that this broker serves."""

    def loaded(self) -> Mapping[TopicName, Topic]:
        """The topics that are open."""

    def opened(self, name: TopicName) -> Topic | None:
        """The topic, if it is open."""

    async def topic(self, name: TopicName, *, made_for: ScalableTopic | None = None) -> Topic:
        """The open topic, opened first if need be. With `made_for`, a missing segment of that scalable topic is
        created."""

    async def discard_topic(self, name: TopicName) -> None:
        """Deletes what is stored under that name, even if it is in use."""
