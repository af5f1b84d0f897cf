"""What clients' commands need of the broker's topics."""

from __future__ import annotations

from typing import Protocol

from anabranch.broker.non_persistent.topic import NonPersistentTopic
from anabranch.broker.topic.topic import Topic
from anabranch.model.names import TopicName


class Attachable(Protocol):
    async def __call__(self, name: TopicName, *, create: bool) -> Topic | NonPersistentTopic:
        """The topic that producers and consumers of that name attach to, opened or, if allowed, created first."""
