"""The topics that a broker has open: how one is opened, and which of them other brokers may have taken meanwhile.

A topic is opened at its first use and stays open until it is deleted, unloaded or loses its log. Opening fences the
previous owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Final

from anabranch.broker.catalog.owners import Owners, check_mine
from anabranch.broker.catalog.resources import NotFound, Resources, topic_record_path
from anabranch.broker.catalog.segment_records import GENERATION, generation_of, segment_by_topic
from anabranch.broker.errors import NotReadyError, TopicNotFoundError
from anabranch.broker.policy.namespace import NamespacePolicies
from anabranch.broker.policy.retention import Keep
from anabranch.broker.topic.services import TopicServices
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topics.creation import NewTopics
from anabranch.controller.records import Records
from anabranch.metadata.port import SessionState
from anabranch.model.buckets import Splits
from anabranch.model.histogram import Histogram
from anabranch.model.names import Domain, TopicName
from anabranch.model.position import Incarnation, LedgerId
from anabranch.model.scalable import ScalableTopic, scalable_name
from anabranch.storage.core.topic_record import TopicRecord
from anabranch.storage.port import LedgerState
from anabranch.storage.topic.stored_record import TopicGoneError
from anabranch.storage.topic.taking_over import finish_delete
from anabranch.storage.topic.topic_log import TopicLog

log = logging.getLogger(__name__)

TOPICS_PER_TURN: Final = 500


class OpenTopics:
    def __init__(
        self,
        services: TopicServices,
        resources: Resources,
        records: Records,
        owners: Owners,
        new_topics: NewTopics,
        *,
        own_keep: Callable[[TopicName], Keep | None],
        segment_opened: Callable[[TopicName], None],
    ) -> None:
        """`own_keep` gives the retention of a system topic. `segment_opened` is called with the name of the scalable
        topic that a segment is part of."""
        self._services = services
        self._resources = resources
        self._records = records
        self._owners = owners
        self._new_topics = new_topics
        self._own_keep = own_keep
        self._segment_opened = segment_opened
        self._is_stopped = False
        self._topics: dict[TopicName, asyncio.Task[Topic]] = {}
        self._on_open: list[Callable[[TopicName], None]] = []
        self._loaded: dict[TopicName, Topic] = {}  # The topics that are fully open.
        # Topics open since before our session was last lost: other brokers may have had them since. Checked before use.
        self._suspects: dict[Topic, None] = {}
        self._losses = 0
        # How long no broker served a topic that came here from a living one, as this broker measures it: from its
        # request to the former owner, which closes the topic then, until the topic is open here.
        self.pauses = Histogram()

    def on_open(self, callback: Callable[[TopicName], None]) -> None:
        """Calls back with the name of each topic that is opened, also of one that is opened to be deleted."""
        self._on_open.append(callback)

    def all(self) -> dict[TopicName, Topic]:
        return dict(self._loaded)

    def get(self, name: TopicName) -> Topic | None:
        return self._loaded.get(name)

    def is_opening(self, name: TopicName) -> bool:
        """True also for open topics."""
        return name in self._topics

    async def settled(self, name: TopicName) -> Topic | None:
        """The topic if it is open, after an opening that is under way has ended."""
        task = self._topics.get(name)
        if task is not None and not task.done():
            await asyncio.wait([task])
        return self._loaded.get(name)

    async def in_turns(self) -> AsyncIterator[list[Topic]]:
        """Yields every open topic, some at a time: ten thousand idle ones must not delay a busy one."""
        topics = list(self._loaded.values())
        for first in range(0, len(topics), TOPICS_PER_TURN):
            await asyncio.sleep(0)
            yield topics[first : first + TOPICS_PER_TURN]

    def stop(self) -> None:
        """Refuses to open any more topics: the broker is closing."""
        self._is_stopped = True

    async def topic(
        self,
        name: TopicName,
        *,
        create: bool = False,
        made_for: ScalableTopic | None = None,
        for_deletion: bool = False,
    ) -> Topic:
        """The open topic; opened or, if allowed, created first. One opening serves all callers that wait for it.

        `made_for` creates a missing segment of the topic with that record: only its owner may ask for this.
        `for_deletion` also opens topics that no client may use any more: leftovers, and topics of a namespace that is
        being deleted.
        """
        while True:
            task = self._topics.get(name)
            if task is not None and task.done() and _opened(task) is None:
                self._topics.pop(name, None)
                task = None
            if task is None:
                if self._is_stopped:
                    raise NotReadyError("this broker is shutting down: look the topic up again")
                # Awaited by every caller that wants the topic, and kept in `_topics` as the topic's holder.
                task = self._services.loop.create_task(self._open(name, create, made_for, for_deletion))
                self._topics[name] = task
            try:
                topic = await asyncio.shield(task)
            except TopicNotFoundError:
                if self._topics.get(name) is task:
                    del self._topics[name]
                if (
                    create
                    and not await self._resources.topic_exists(name)
                    and await self._new_topics.may_create(name)
                ):
                    # A caller that may not create was opening it; this one may.
                    continue
                raise
            if topic in self._suspects:
                await self.close_if_taken(topic)
            if not topic.is_closed:
                return topic
            await topic.wait_closed()
            if self._topics.get(name) is task:
                # The topic was closed before it was fully open, when it could not be found by this task yet.
                del self._topics[name]

    async def _open(
        self, name: TopicName, create: bool, made_for: ScalableTopic | None, for_deletion: bool
    ) -> Topic:
        await check_mine(self._owners, name)
        losses = self._losses
        policies = NamespacePolicies() if for_deletion else await self._resources.policies(name.namespace)
        if create and not await self._resources.topic_exists(name):
            await self._new_topics.create_by_use(name)
        is_segment = name.domain is Domain.SEGMENT and not for_deletion
        record = made_for
        if is_segment and record is None:
            record = await self._record_of(name)
        released: list[float] = []
        opened = await self._open_log(name, made_for, released.append)
        splits: Splits = ()
        if is_segment and record is not None:
            if generation_of(opened.topic_record.properties) != record.generation:
                raise TopicNotFoundError(f"{name} is a leftover of a deleted topic of the same name")
            segment = segment_by_topic(record, name)
            splits = () if segment is None else segment.bucket_splits
        own_keep = self._own_keep(name)
        topic = await Topic.open(self._services, name, opened, policies, self.closed, own_keep, splits)
        try:
            await self._load(topic, for_deletion=for_deletion)
        except BaseException:
            # No caller gets this topic: the next one opens it again, and this one must not write any more.
            await topic.close()
            raise
        if losses != self._losses:
            self._suspects[topic] = None
        if released:
            self.pauses.observe(self._services.loop.time() - released[0])
        return topic

    async def _load(self, topic: Topic, *, for_deletion: bool) -> None:
        """Prepares an open topic for use."""
        name = topic.name
        if not self._owners.is_mine(name):
            raise NotReadyError(f"{name} has moved to another broker: look it up again")
        if name.domain is Domain.SEGMENT and not for_deletion:
            self._segment_opened(scalable_name(name))
        if not topic.is_closed:  # Its log may have been lost before it was fully open.
            self._loaded[name] = topic
            self._resources.note_topic(name)
            for callback in self._on_open:
                callback(name)
            if not for_deletion:
                # From here on the topic is notified of changes; this applies those that were made while it was opened.
                with contextlib.suppress(NotFound):
                    topic.apply_policies(await self._resources.policies(name.namespace))

    async def _open_log(
        self, name: TopicName, made_for: ScalableTopic | None, released: Callable[[float], None]
    ) -> TopicLog:
        """Calls `released` with the time at which a living owner was asked for the topic, if it has let go of it."""
        services = self._services
        path, namespace, now_ms = topic_record_path(name), str(name.namespace), services.now_ms()
        where = (path, namespace, services.log_store, services.metadata, services.ledger_ids, now_ms)

        async def last_word(incarnation: Incarnation, ledger: LedgerId, path: str) -> LedgerState | None:
            asked_s = services.loop.time()
            told = await services.last_word(incarnation, ledger, path)
            if told is not None:
                released(asked_s)
            return told

        if made_for is not None:
            properties = {GENERATION: str(made_for.generation)}
            made = await TopicLog.create_open(*where, properties, made_for.layout.topic_id)
            if made is not None:
                return made
        try:
            return await TopicLog.open(*where, last_word)
        except TopicGoneError as error:
            # A deletion that lost the store half-way leaves its mark, under which no topic could be created.
            await self.finish_deleting(name)
            raise TopicNotFoundError(f"{name} does not exist") from error

    async def finish_deleting(self, name: TopicName) -> None:
        """Finishes a deletion that was interrupted, so that the name is free again."""
        path, metadata = topic_record_path(name), self._services.metadata
        found = await metadata.get(path, fresh=True)
        if found is not None and (record := TopicRecord.decode(found.value)).is_deleting:
            await finish_delete(path, record, found.version, self._services.log_store, metadata)

    async def _record_of(self, name: TopicName) -> ScalableTopic:
        """The record of the topic that a segment is part of; raises TopicNotFoundError if it is part of none."""
        record = await self._records.get(name, fresh=True)
        if record is None or segment_by_topic(record, name) is None:
            raise TopicNotFoundError(f"{name} is not a segment of any topic")
        return record

    def closed(self, topic: Topic) -> None:
        if self._loaded.get(topic.name) is topic:
            del self._loaded[topic.name]
        self._suspects.pop(topic, None)
        task = self._topics.get(topic.name)
        if task is not None and _opened(task) is topic:
            del self._topics[topic.name]

    # -- topics that other brokers may have taken

    def session_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._losses += 1
            self._suspects.update(dict.fromkeys(self._loaded.values()))
        elif state is SessionState.CONNECTED and self._suspects and not self._is_stopped:
            self._services.background.until_done(self._close_taken)

    async def _close_taken(self) -> None:
        """Closes suspect topics that another broker has taken since, even if they are ours again by now: their state is
        stale."""
        for topic in list(self._suspects):
            await self.close_if_taken(topic)

    async def close_if_taken(self, topic: Topic) -> None:
        """Closes the topic if another broker has taken it."""
        losses = self._losses
        if not topic.is_closed and not await topic.log.is_current():
            log.warning("%s: closed, as another broker has taken it", topic.name)
            await topic.close()
        if losses == self._losses:
            self._suspects.pop(topic, None)


def _opened(task: asyncio.Task[Topic]) -> Topic | None:
    """The topic, if it was opened successfully."""
    if not task.done() or task.cancelled() or task.exception() is not None:
        return None
    return task.result()
