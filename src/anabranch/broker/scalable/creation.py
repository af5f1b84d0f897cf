"""Which topics a lookup makes: as policy allows by use, and as the name asks for.

`topic://x` becomes a scalable topic; `persistent://x` and a short name become what a classic client's first lookup
would make of them. The caller has found that no topic of that name exists in either form.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from anabranch.controller.errors import TopicExists, TopicMissing
from anabranch.model.names import Domain, TopicName

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.controller.service import ScalableTopics


async def make_missing(broker: Broker, topics: ScalableTopics, topic: TopicName) -> None:
    """TopicMissing, or the classic lookup's own error, if topics are not made by use here."""
    if topic.domain is not Domain.TOPIC:
        if not await broker.new_topics.partitions(topic, create=True):
            await broker.new_topics.create(topic)
        return
    if not await broker.new_topics.may_create(topic):
        raise TopicMissing(f"{topic} does not exist and topics are not created by use here")
    # Somebody else may have been faster, which is as good.
    with contextlib.suppress(TopicExists):
        await topics.create(topic, broker.config.scalable_topic_default_segments)
