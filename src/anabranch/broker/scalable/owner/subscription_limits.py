"""Whether a scalable topic may have one more subscription.

The limit applies to the topic: each of its segments has a cursor of every subscription, created by the controller at
each split and merge, and those do not count again. A split that was refused because of a limit lowered meanwhile would
never finish.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from anabranch.broker.policy.limits import TopicLimits
from anabranch.controller.records import Records
from anabranch.model.names import TopicName


class SubscriptionLimits:
    def __init__(self, records: Records, limits: Callable[[TopicName], Awaitable[TopicLimits]]) -> None:
        """`limits` returns the limits in force for a topic at the time of the call."""
        self._records = records
        self._limits = limits

    async def of(self, topic: TopicName) -> TopicLimits:
        return await self._limits(topic)

    async def check_new(self, topic: TopicName, subscription: str, *, is_by_use: bool) -> None:
        """Raises if a subscription of that name may not be created. An existing subscription is accepted."""
        limits = await self._limits(topic)
        if not limits.subscriptions_max and (limits.may_make_subscriptions or not is_by_use):
            return
        record = await self._records.get(topic)
        if record is None:
            return  # A classic topic, which has its own check.
        known = {one.name for one in await self._records.subscriptions(topic, record.generation)}
        if subscription not in known:
            limits.check_new_subscription(str(topic), subscription, len(known), is_by_use=is_by_use)
