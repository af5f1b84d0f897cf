"""Whether a scalable topic may have one more subscription.

The limit is the topic's: its segments each have a cursor of every subscription, made by the controller at each split
and merge, and those are not counted again. A split that was refused for a limit lowered meanwhile would never end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch.broker.topic_limits import limits_of
from anabranch.model.names import TopicName

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker


async def check_new(broker: Broker, topic: TopicName, subscription: str, *, is_by_use: bool) -> None:
    """Raises if a subscription of that name may not be made. One that the topic has already is let be."""
    limits = limits_of(broker.config, await broker.policies(topic))
    if not limits.subscriptions_max and (limits.may_make_subscriptions or not is_by_use):
        return
    record = await broker.records.get(topic)
    if record is None:
        return  # A classic topic, which judges for itself.
    known = {one.name for one in await broker.records.subscriptions(topic, record.generation)}
    if subscription not in known:
        limits.check_new_subscription(str(topic), subscription, len(known), is_by_use=is_by_use)
