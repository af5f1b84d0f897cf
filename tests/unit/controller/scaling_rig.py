"""Brokers that scale their topics by themselves, over the controllers' rig: policies in hand, loads written by hand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from anabranch.autoscale.load import Load
from anabranch.autoscale.policy import DEFAULT, Override, Resolved, ScalePolicy, resolve
from anabranch.controller.autoscaler import INTERVAL_S, AutoScaler
from anabranch.controller.service import ScalableTopics
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import TopicName
from anabranch.model.scalable import load_path
from anabranch.model.segments import SegmentId
from unit.controller.rig import TOPIC, Rig

HOT = Load(msg_rate_in=12_000.0)
WARM = Load(msg_rate_in=5_000.0)
COLD = Load(msg_rate_in=10.0)
MINUTE = 60.0


class Levels:
    """What applies to every topic: the broker's policy, and what the namespace sets on top."""

    def __init__(self, broker: ScalePolicy = DEFAULT) -> None:
        self.broker = broker
        self.namespace: Mapping[str, Any] | None = None

    async def resolved(self, topic: TopicName, override: Mapping[str, Any] | None) -> Resolved:
        levels = (None if level is None else Override.decode(level) for level in (self.namespace, override))
        return resolve(self.broker, *levels)


class Scaled:
    """One broker with its scaler."""

    def __init__(self, rig: Rig, topics: ScalableTopics, scaler: AutoScaler, levels: Levels) -> None:
        self.rig = rig
        self.topics = topics
        self.scaler = scaler
        self.levels = levels
        self.without_owner: set[TopicName] = set()

    @property
    def layout(self) -> SegmentLayout:
        state = self.topics.controllers[TOPIC].state
        assert state is not None
        return state.topic.layout

    @property
    def active(self) -> list[int]:
        """By range; nothing while this broker does not lead the topic."""
        controller = self.topics.controllers.get(TOPIC)
        return [s.id for s in self.layout.active] if controller is not None and controller.is_leader else []

    async def report(self, loads: Mapping[int, Load]) -> None:
        """As the segments' owners do."""
        for number, load in loads.items():
            await self.topics.metadata.put(load_path(TOPIC, SegmentId(number)), load.encode())

    async def until(self, met: Callable[[], bool], within_s: float) -> None:
        """As the rig's, for long waits: looks twice a second."""
        deadline = self.rig.loop.time() + within_s
        while not met():
            assert self.rig.loop.time() < deadline, f"not met within {within_s} s"
            await asyncio.sleep(0.5)

    def counted(self, operation: str, reason: str = "") -> int:
        """How often a look came to that, for any reason unless one is given."""
        found: Mapping[tuple[str, str], int] = self.scaler.reasons.get(TOPIC.namespace, {})
        return sum(count for (o, r), count in found.items() if o == operation and reason in ("", r))


@contextlib.asynccontextmanager
async def scaled(
    rig: Rig, policy: ScalePolicy = DEFAULT, *, interval_s: float = INTERVAL_S, **settings: Any
) -> AsyncIterator[Scaled]:
    topics = await rig.broker(**settings)
    levels = Levels(policy)

    async def has_owner(segment: TopicName) -> bool:
        return segment not in made.without_owner

    scaler = AutoScaler(topics, levels, interval_s=interval_s, has_owner=has_owner)
    made = Scaled(rig, topics, scaler, levels)
    scaler.start()
    try:
        yield made
    finally:
        await scaler.close()
