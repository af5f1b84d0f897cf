"""Which topics a lookup creates: whether policy allows auto-creation, and the form that the name asks for.

`topic://x` becomes a scalable topic, `persistent://x` the topic that a classic client's first lookup would create. A
name without a domain becomes a scalable topic where `allowAutoTopicCreationType` says so, else a classic one. No topic
of that name exists in either form: the caller has looked.
"""

from __future__ import annotations

import contextlib

from anabranch.broker.topics.creation import NewTopics
from anabranch.controller.core.errors import TopicExists, TopicMissing
from anabranch.controller.service import ScalableTopics
from anabranch.model.names import Domain, TopicName


async def make_missing(
    new: NewTopics, scalable: ScalableTopics, topic: TopicName, segments: int, *, is_short: bool = False
) -> None:
    """Creates the topic; a scalable one gets that many segments. Raises TopicMissing, or the classic lookup's own
    error, if topics are not auto-created here. `is_short`: the name was given without a domain."""
    is_scalable = topic.domain is Domain.TOPIC or (is_short and await new.makes_scalable(topic))
    if not is_scalable:
        if not await new.partitions(topic, create=True):
            await new.create(topic)
        return
    if not await new.may_create(topic):
        raise TopicMissing(f"{topic} does not exist and topics are not auto-created here")
    # Another caller may have created the topic first, which is as good.
    with contextlib.suppress(TopicExists):
        await scalable.create(topic, segments)
