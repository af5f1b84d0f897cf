"""What a table writer knows of its topic: how far it can be read now, and the tasks that read it.

It is the driver of a Spark query without Spark: the same layouts, ends and plans, over connections that all topics of
the process share. Only confirmed and revealed entries are within the ends.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from anabranch.client.transport.attachment import Backoff, keep_trying, never
from anabranch.client.transport.pool import Connections
from anabranch.model.cut import Cut
from anabranch.model.resuming import DataLost, Gap, check_topic, epoch_of, resume
from anabranch.spark.driver.latest import Following
from anabranch.spark.driver.topic import DriverTopic, InTime
from anabranch.spark.options.source import Options
from anabranch.spark.plan.plan import TopicView, lost, plan, reach_all
from anabranch.spark.plan.selection import Choice
from anabranch.spark.plan.task import Task
from anabranch.table_writer.settings import WriterSettings
from anabranch.wire import pulsar_pb2 as pb


@dataclass(frozen=True, slots=True)
class Stretch:
    """What to read next: nothing if both cuts are equal."""

    start: Cut
    end: Cut
    tasks: tuple[Task, ...]  # In the order of their segments.
    gaps: tuple[Gap, ...]  # Messages that were to be read, and are gone.


class TableFeed:
    """Call `open` first, `close` at the end."""

    def __init__(
        self, settings: WriterSettings, connections: Connections, following: Following, topic: str
    ) -> None:
        self._settings = settings
        self._connections = connections
        self._following = following
        self._chance = random.Random()
        self._options = Options(
            settings.service_url,
            Choice.of(topic),
            fail_on_data_loss=False,
            timeout_s=settings.timeout_s,
            security=settings.security,
            admin_url=settings.admin_url or None,
        )
        self._topic = DriverTopic(self._options, connections, topic, self._chance, following)
        self._name = topic

    async def open(self) -> None:
        """Raises TopicDeleted if there is no such topic."""
        await self._topic.open()

    async def close(self) -> None:
        await self._topic.close()

    @property
    def topic_id(self) -> str:
        return self._topic.layout.topic_id

    @property
    def topic(self) -> str:
        return self._topic.topic

    def schema(self, version: int | None) -> tuple[pb.Schema | None, int]:
        """A version of the topic's schema, None for the latest; and its number. Blocking; not for the event loop."""
        from anabranch.spark.values.analysed_schema import fetched

        options = self._options
        return fetched(options.service_url, self._topic.topic, version, options.timeout_s, options.security)

    async def next(self, start: Cut, *, may_lose: bool = False) -> Stretch:
        """What there is from that cut on.

        Raises TopicDeleted, and TopicMadeAgain if the cut is of another topic. Tasks raise DataLost where messages
        were deleted since they were planned, unless they `may_lose` them.
        """
        feed = self._topic
        check_topic(feed.layout, start, self._name)
        layout = await feed.layout_of(epoch_of(start))
        begin = await feed.begun(start)
        await self._following.look()
        gaps = [] if start == Cut() else list(resume(layout, begin).gaps)
        known = await feed.known(layout, begin)
        gaps += await feed.emptied(layout, begin, known)
        end = reach_all({self._name: TopicView(layout, begin, known)})[self._name]
        if end == begin:
            return Stretch(start, start if start.places else begin, (), tuple(gaps))
        gaps += lost(layout, begin, end)
        admin_url = await self._admin_url()
        tasks = tuple(
            Task(
                self._options.service_url,
                feed.topic,
                feed.topic_of(one.segment),
                layout.segments[one.segment].range,
                one,
                fail_on_data_loss=not may_lose,
                timeout_s=self._options.timeout_s,
                admin_url=admin_url,
                security=self._options.security,
                versions=True,
                topic_id=layout.topic_id,
                message_bytes_max=self._options.message_bytes_max,
                object_access=self._options.object_access,
            )
            for one in sorted(plan(layout, begin, end), key=lambda one: one.segment)
        )
        return Stretch(start, end, tasks, tuple(gaps))

    async def _admin_url(self) -> str:
        if self._settings.admin_url:
            return self._settings.admin_url
        async with InTime(self._options, "where brokers answer admin requests"):
            connection = await keep_trying(
                self._connections.service, Backoff(self._chance), "a broker's admin address", never
            )
            return connection.http_url


def told(topic: str, gaps: Iterable[Gap]) -> str:
    """The gaps, for people."""
    return str(DataLost.of(topic, tuple(gaps)))
