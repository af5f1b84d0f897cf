"""Topics of which only their traffic matters."""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.model.names import TopicName


@dataclass
class Consumer:
    rates: tuple[float, ...] = (0.0, 0.0, 0.0)


@dataclass
class Subscribed:
    consumers: list[Consumer] = field(default_factory=list)


@dataclass
class Traffic:
    """Implements `MeasuredTopic`: a topic with that traffic."""

    name: TopicName
    rates_in: tuple[float, float] = (0.0, 0.0)
    producers: list[str] = field(default_factory=list)
    subscriptions: dict[str, Subscribed] = field(default_factory=dict)
