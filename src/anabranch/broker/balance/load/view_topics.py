"""The topics of the two views, for clients that read them: the latest value of each key is a broker's report."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.broker.non_persistent.topics import NonPersistentTopics
from anabranch.model.names import TopicName
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_message


class ViewTopics:
    """Nothing is published while no client reads: these topics keep no messages."""

    def __init__(self, topics: NonPersistentTopics, broker: str, now_ms: Callable[[], int]) -> None:
        self._topics = topics
        self._producer = f"load-view@{broker}"
        self._now_ms = now_ms
        self._sequence_id = 0

    def publish(self, topic: TopicName, key: str, value: bytes | None) -> None:
        """None removes the key."""
        found = self._topics.opened(topic)
        if found is None or not found.subscriptions:
            return
        self._sequence_id += 1
        metadata = pb.MessageMetadata(
            producer_name=self._producer,
            sequence_id=self._sequence_id,
            publish_time=self._now_ms(),
            partition_key=key,
        )
        if value is None:
            metadata.null_value = True
        found.publish_own([(1, build_message(metadata, value or b""))])
