"""The laws that must hold in the store at every moment, checked at each change.

A visible layout covers every hash once; epochs of a topic only rise; what was planned is what is published; a segment
shown as sealed has been sealed in its own log's record; a child shown as active has a log, and every subscription with
a live record that is open on its parent is open on it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from anabranch.broker.catalog.resources import topic_record_path
from anabranch.broker.catalog.segment_records import generation_of
from anabranch.broker.topic.topic import Topic
from anabranch.model.names import TopicName
from anabranch.model.scalable import (
    ScalableTopic,
    SubscriptionKind,
    SubscriptionRecord,
    subscription_path,
    topic_of_path,
    topic_path,
)
from anabranch.model.segments import Segment
from anabranch.storage.core.topic_record import TopicRecord

Peek = Callable[[str], bytes | None]
Opened = Callable[[TopicName], list[Topic]]


class Unlawful(AssertionError):
    """A state of the store that is never allowed."""


class Laws:
    """`peek` reads a node of the store; `opened` returns the topics of that name that running brokers have open."""

    def __init__(self, peek: Peek, opened: Opened, found: Callable[[str], None]) -> None:
        self._peek = peek
        self._opened = opened
        self._found = found
        self._last: dict[TopicName, ScalableTopic] = {}

    def look(self, paths: Iterable[str]) -> None:
        for path in paths:
            topic = topic_of_path(path)
            if topic is not None and path == topic_path(topic):
                value = self._peek(path)
                if not value:
                    self._last.pop(topic, None)
                    continue
                try:
                    self._check(topic, ScalableTopic.decode(value))
                except (Unlawful, AssertionError) as error:
                    self._found(f"{topic}: {error}")

    def _check(self, topic: TopicName, record: ScalableTopic) -> None:
        last = self._last.get(topic)
        self._last[topic] = record
        record.layout.check()
        if last is None or last.generation != record.generation:
            return
        if record.layout.epoch < last.layout.epoch:
            raise Unlawful(f"the layout went back from epoch {last.layout.epoch} to {record.layout.epoch}")
        if last.plan is not None and record.plan is not None and record.plan != last.plan:
            raise Unlawful("a plan was replaced by another before it was finished")
        if record.layout.epoch == last.layout.epoch or record.is_deleting:
            return
        if last.plan is not None and record.layout != last.plan.result:
            raise Unlawful(f"plan {last.plan.id} was stored, and something else was published")
        for segment in record.layout.segments.values():
            before = last.layout.segments.get(segment.id)
            if before is None:
                self._check_new(topic, record, segment)
            elif segment.is_sealed and before.is_active and not segment.classic_topic:
                log = self._log(topic, segment)
                if log is None or log.sealed_end is None:
                    raise Unlawful(f"segment {segment.id} is shown as sealed and takes messages")

    def _check_new(self, topic: TopicName, record: ScalableTopic, segment: Segment) -> None:
        log = self._log(topic, segment)
        if log is None or generation_of(log.properties) != record.generation:
            raise Unlawful(f"segment {segment.id} is shown and has no log")
        if log.sealed_end is not None:
            raise Unlawful(f"segment {segment.id} is shown as active and is sealed")
        for child in self._opened(segment.topic(topic)):
            for parent in segment.parents:
                above = record.layout.segments[parent]
                for open_parent in self._opened(above.topic(topic)):
                    for name in open_parent.subscriptions:
                        if self._is_live(topic, record, name) and name not in child.subscriptions:
                            raise Unlawful(
                                f"segment {segment.id} is shown without {name}'s cursor, which {parent} has"
                            )

    def _is_live(self, topic: TopicName, record: ScalableTopic, name: str) -> bool:
        value = self._peek(subscription_path(topic, name))
        if not value:
            return False
        found = SubscriptionRecord.decode(value)
        return (
            found.generation == record.generation
            and not found.is_deleting
            and found.kind is not SubscriptionKind.CHECKPOINT
        )

    def _log(self, topic: TopicName, segment: Segment) -> TopicRecord | None:
        value = self._peek(topic_record_path(segment.topic(topic)))
        return TopicRecord.decode(value) if value else None
