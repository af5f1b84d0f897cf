"""The topics by which brokers balance load. The elected leader serves them, by rule and not by bundle: they say where
bundles are."""

from __future__ import annotations

from typing import Final

from anabranch.model.bundles import BundleName
from anabranch.model.names import SYSTEM_NAMESPACE, Domain, TopicName

CHANNEL_TOPIC: Final = SYSTEM_NAMESPACE.topic("loadbalancer-service-unit-state")
BROKER_LOAD_TOPIC: Final = SYSTEM_NAMESPACE.topic("loadbalancer-broker-load-data", Domain.NON_PERSISTENT)
TOP_BUNDLES_TOPIC: Final = SYSTEM_NAMESPACE.topic("loadbalancer-top-bundles-load-data", Domain.NON_PERSISTENT)
LEADERS_TOPICS: Final = frozenset((CHANNEL_TOPIC, BROKER_LOAD_TOPIC, TOP_BUNDLES_TOPIC))
# Named to those who follow owners when another broker leads: no namespace has a bundle of this range.
LEADERS_BUNDLE: Final = BundleName(SYSTEM_NAMESPACE, "0x00000000_0x00000000")


def is_leaders(topic: TopicName) -> bool:
    """Whether the elected leader serves the topic."""
    return topic in LEADERS_TOPICS
