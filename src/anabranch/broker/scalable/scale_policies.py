"""What automatic splits and merges obey at this broker, as its load reporter and its automatic scaler ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.autoscale.policy import Policy, Resolved, resolve
from anabranch.broker.resources import Resources
from anabranch.broker.scalable.auto_policy import stored
from anabranch.model.names import TopicName


class ScalePolicies:
    """Implements the automatic scaler's `Policies`."""

    def __init__(self, broker: Policy, resources: Resources) -> None:
        self.broker = broker
        self._resources = resources
        # Most topics set nothing, and then all of a namespace's share one answer.
        self._plain = resolve(broker, None, None)

    async def resolved(self, topic: TopicName, override: Mapping[str, Any] | None) -> Resolved:
        """What applies to the topic, `override` being its own. InvalidPolicy if something stored cannot be read."""
        namespace = (await self._resources.policies(topic.namespace)).scalable_topic_auto_scale_policy
        if namespace is None and override is None:
            return self._plain
        return resolve(self.broker, stored(namespace), stored(override))
