"""The topics that a broker has open: how one is opened, and which of them others may have taken meanwhile.

A topic is opened at its first use and stays open until it is deleted, unloaded or loses its log. Opening fences
whoever had it before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from anabranch.broker.errors import NotReadyError, TopicNotFoundError
from anabranch.broker.policies import Policies
from anabranch.broker.resources import NotFound, topic_record_path
from anabranch.broker.scalable.history_topic import history_keep
from anabranch.broker.scalable.records import GENERATION, generation_of, segment_named
from anabranch.broker.topic import Topic
from anabranch.metadata.port import SessionState
from anabranch.model.names import Domain, TopicName
from anabranch.model.scalable import ScalableTopic, scalable_name
from anabranch.storage.topic_log import TopicGoneError, TopicLog

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

log = logging.getLogger(__name__)

TOPICS_PER_TURN: Final = 500


class OpenTopics:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topics: dict[TopicName, asyncio.Task[Topic]] = {}
        self._loaded: dict[TopicName, Topic] = {}  # Those of them that are open.
        # Open since before our session was last lost: others may have had them since. Looked at before they are used.
        self._suspects: dict[Topic, None] = {}
        self._losses = 0

    def all(self) -> dict[TopicName, Topic]:
        return dict(self._loaded)

    def get(self, name: TopicName) -> Topic | None:
        return self._loaded.get(name)

    def is_opening(self, name: TopicName) -> bool:
        """Or open."""
        return name in self._topics

    async def in_turns(self) -> AsyncIterator[list[Topic]]:
        """Every open topic, some at a time: ten thousand idle ones must not hold up a busy one."""
        topics = list(self._loaded.values())
        for first in range(0, len(topics), TOPICS_PER_TURN):
            await asyncio.sleep(0)
            yield topics[first : first + TOPICS_PER_TURN]

    async def topic(
        self, name: TopicName, *, create: bool, made_for: ScalableTopic | None, for_deletion: bool
    ) -> Topic:
        """`Broker.topic`."""
        broker = self._broker
        while True:
            task = self._topics.get(name)
            if task is not None and task.done() and _opened(task) is None:
                self._topics.pop(name, None)
                task = None
            if task is None:
                if broker.is_closing:
                    raise NotReadyError("this broker is shutting down: look the topic up again")
                # Awaited by everyone who wants the topic, and kept in `_topics` as the topic's holder.
                task = broker.loop.create_task(self._open(name, create, made_for, for_deletion))
                self._topics[name] = task
            try:
                topic = await asyncio.shield(task)
            except TopicNotFoundError:
                if self._topics.get(name) is task:
                    del self._topics[name]
                if (
                    create
                    and not await broker.resources.topic_exists(name)
                    and await broker.new_topics.may_create(name)
                ):
                    # Somebody who may not create was opening it; we may.
                    continue
                raise
            if topic in self._suspects:
                await self.close_if_taken(topic)
            if not topic.is_closed:
                return topic
            await topic.wait_closed()
            if self._topics.get(name) is task:
                # It was closed before it was open in full, when nobody could know it by this task yet.
                del self._topics[name]

    async def _open(
        self, name: TopicName, create: bool, made_for: ScalableTopic | None, for_deletion: bool
    ) -> Topic:
        broker = self._broker
        if not broker.owners.is_mine(name):
            raise NotReadyError(
                f"{name} is served by {broker.owners.owner(name).service_url}: look it up again"
            )
        losses = self._losses
        policies = Policies() if for_deletion else await broker.resources.policies(name.namespace)
        if create and not await broker.resources.topic_exists(name):
            await broker.new_topics.create_by_use(name)
        is_segment = name.domain is Domain.SEGMENT and not for_deletion
        generation = None if made_for is None else made_for.generation
        if is_segment and generation is None:
            generation = await self._segment_generation(name)
        opened = await self._open_log(name, made_for)
        if is_segment and generation_of(opened.topic_record.properties) != generation:
            raise TopicNotFoundError(f"{name} was left behind by a deleted topic of the same name")
        topic = await Topic.open(broker, name, opened, policies)
        try:
            await self._load(topic, for_deletion=for_deletion)
        except BaseException:
            # Nobody will be handed it: whoever asks next opens the topic again, and this one must not write any more.
            await topic.close()
            raise
        if losses != self._losses:
            self._suspects[topic] = None
        return topic

    async def _load(self, topic: Topic, *, for_deletion: bool) -> None:
        """What an open topic needs before it is handed out."""
        broker, name = self._broker, topic.name
        topic.upkeep.own_keep = history_keep(broker.config, name)
        if not broker.owners.is_mine(name):
            raise NotReadyError(f"{name} has moved to another broker: look it up again")
        if name.domain is Domain.SEGMENT and not for_deletion and broker.scalable is not None:
            broker.scalable.touch(scalable_name(name))
        if not topic.is_closed:  # Its log may have been lost before it was open in full.
            self._loaded[name] = topic
            if not for_deletion:
                # From here on it is told of changes; what was changed while it was opened is made up for.
                with contextlib.suppress(NotFound):
                    topic.apply_policies(await broker.resources.policies(name.namespace))

    async def _open_log(self, name: TopicName, made_for: ScalableTopic | None) -> TopicLog:
        broker = self._broker
        path, namespace, now_ms = topic_record_path(name), str(name.namespace), broker.now_ms()
        where = (path, namespace, broker.log, broker.metadata, broker.ledger_ids, now_ms)
        if made_for is not None:
            properties = {GENERATION: str(made_for.generation)}
            made = await TopicLog.create_open(*where, properties, made_for.layout.topic_id)
            if made is not None:
                return made
        try:
            return await TopicLog.open(*where)
        except TopicGoneError as error:
            # Of a deletion that lost the store half-way the mark is left, under which nothing could be made.
            await broker.finish_deleting(name)
            raise TopicNotFoundError(f"{name} does not exist") from error

    async def _segment_generation(self, name: TopicName) -> int:
        """The generation of the topic that a segment is part of; TopicNotFoundError if it is part of none."""
        record = await self._broker.records.get(name)
        if record is None or segment_named(record, name) is None:
            raise TopicNotFoundError(f"{name} is not a segment of any topic")
        return record.generation

    def closed(self, topic: Topic) -> None:
        if self._loaded.get(topic.name) is topic:
            del self._loaded[topic.name]
        self._suspects.pop(topic, None)
        task = self._topics.get(topic.name)
        if task is not None and _opened(task) is topic:
            del self._topics[topic.name]

    # -- what others may have taken

    def owners_changed(self) -> None:
        """Closes what this broker does not own any more; its clients look it up again."""
        for name, topic in self.all().items():
            if not self._broker.owners.is_mine(name):
                self._broker.background.begin(topic.close())

    def session_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._losses += 1
            self._suspects.update(dict.fromkeys(self._loaded.values()))
        elif state is SessionState.CONNECTED and self._suspects and not self._broker.is_closing:
            self._broker.background.until_done(self._close_taken)

    async def _close_taken(self) -> None:
        """While we were away, others may have taken topics that are ours again by now. What we know of them is old."""
        for topic in list(self._suspects):
            await self.close_if_taken(topic)

    async def close_if_taken(self, topic: Topic) -> None:
        """Does nothing to a topic that is still ours."""
        losses = self._losses
        if not topic.is_closed and not await topic.log.is_current():
            log.warning("%s was taken by another broker meanwhile", topic.name)
            await topic.close()
        if losses == self._losses:
            self._suspects.pop(topic, None)


def _opened(task: asyncio.Task[Topic]) -> Topic | None:
    """The topic, if its opening is done and succeeded."""
    if not task.done() or task.cancelled() or task.exception() is not None:
        return None
    return task.result()
