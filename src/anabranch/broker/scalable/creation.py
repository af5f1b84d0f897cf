"""Which topics a lookup creates: whether policy allows auto-creation, and the form that the name asks for.

`topic://x` becomes a scalable topic; `persistent://x` and a short name become the topic that a classic client's first
lookup would create. The caller has found that no topic of that name exists in either form.
"""

from __future__ import annotations

import contextlib

from anabranch.broker.topics.creation import NewTopics
from anabranch.controller.core.errors import TopicExists, TopicMissing
from anabranch.controller.service import ScalableTopics
from anabranch.model.names import Domain, TopicName


async def make_missing(new: NewTopics, scalable: ScalableTopics, topic: TopicName, segments: int) -> None:
    """Creates the topic; a scalable one gets that many segments. Raises TopicMissing, or the classic lookup's own
    error, if topics are not auto-created here."""
    if topic.domain is not Domain.TOPIC:
        if not await new.partitions(topic, create=True):
            await new.create(topic)
        return
    if not await new.may_create(topic):
        raise TopicMissing(f"{topic} does not exist and topics are not auto-created here")
    # Another caller may have created the topic first, which is as good.
    with contextlib.suppress(TopicExists):
        await scalable.create(topic, segments)
