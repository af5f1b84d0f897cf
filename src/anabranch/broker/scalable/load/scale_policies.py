"""The policy of automatic splits and merges at this broker, for its load reporter and its automatic scaler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.autoscale.policy import Resolved, ScalePolicy, resolve
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.scalable.load.auto_policy import stored
from anabranch.model.names import TopicName


class ScalePolicies:
    """Implements the automatic scaler's `Policies`."""

    def __init__(self, broker: ScalePolicy, resources: Resources) -> None:
        self.broker = broker
        self._resources = resources
        # Most topics set nothing, and then all topics of a namespace share one result.
        self._plain = resolve(broker, None, None)

    async def resolved(self, topic: TopicName, override: Mapping[str, Any] | None) -> Resolved:
        """The policy that applies to the topic, whose own is `override`. InvalidPolicy if a stored policy cannot be
        read."""
        namespace = (await self._resources.policies(topic.namespace)).scalable_topic_auto_scale_policy
        if namespace is None and override is None:
            return self._plain
        return resolve(self.broker, stored(namespace), stored(override))
