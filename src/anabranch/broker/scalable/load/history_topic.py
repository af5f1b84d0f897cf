"""Publishes load history to this cluster's own topic: gathers records, and appends them together at intervals.

Nothing waits for publishing. Records queue up to a limit, beyond which the oldest are dropped; records that the log
refuses are dropped as well. Both are counted. The topic is created when there is a record to publish, and is bounded by
time and size, whatever subscriptions it has.

One broker owns the topic and appends to it. The others send it their records; what it has not taken, or may not have
taken, is sent again, and it skips what it had already.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from anabranch.autoscale.decide import Stay, Verdict
from anabranch.autoscale.decisions import Decision, DecisionKind
from anabranch.autoscale.policy import ScalePolicy
from anabranch.autoscale.verdict import NoMerge
from anabranch.broker.catalog.owners import BrokerAddress, Owners
from anabranch.broker.catalog.schemas import Schemas, StoredSchema, version_bytes
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.errors import NotReadyError
from anabranch.broker.policy.retention import Keep
from anabranch.broker.scalable.load.auto_policy import broker_policy
from anabranch.broker.scalable.load.history_records import (
    HISTORY_TOPIC,
    SCHEMA_JSON,
    VERSION,
    DecisionMade,
    Heartbeat,
    HistoryRecord,
    LoadStretch,
    OrderedConsumers,
    SampledStretch,
)
from anabranch.broker.scalable.ports import ServedTopics
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topics.creation import NewTopics
from anabranch.errors import AnabranchError
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import TopicName
from anabranch.model.segments import HashRange, SegmentId
from anabranch.storage.port import LogError
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch

log = logging.getLogger(__name__)

FLUSH_S: Final = 1.0
CLOSE_S: Final = 2.0
# The most records that wait, about 500 bytes each.
RECORDS_MAX: Final = 50_000
# The most records in one entry: packing them blocks the loop for a few milliseconds.
BATCH_RECORDS: Final = 500
# How often unchanged consumers are reported again, so that a table that starts later has them soon.
CONSUMERS_AGAIN_MS: Final = 3_600_000


def history_keep(config: BrokerConfig, name: TopicName) -> Keep | None:
    """How long and how much that topic retains, regardless of its namespace; None for every topic but load history."""
    if name != HISTORY_TOPIC:
        return None
    return Keep(config.load_history_retention or None, config.load_history_retention_bytes or None)


class HistoryOwner(Protocol):
    """The broker that owns the topic, for the others."""

    async def send(
        self, owner: BrokerAddress, run: int, first: int, records: Sequence[HistoryRecord]
    ) -> None:
        """Has that broker publish the records. `run` is of this start of the sender, `first` the number of the first
        record in it. Raises AnabranchError if it is not known to have taken them."""
        ...


class HistoryTopic:
    """`flush` is to be called every `FLUSH_S`, `beat` at every heartbeat."""

    def __init__(
        self,
        config: BrokerConfig,
        served: ServedTopics,
        new_topics: NewTopics,
        schemas: Schemas,
        owners: Owners,
        now_ms: Callable[[], int],
        *,
        broker: str,
        records_max: int = RECORDS_MAX,
        elsewhere: HistoryOwner | None = None,
    ) -> None:
        """`broker` is the host and port that its records name as their source. `elsewhere` reaches other brokers."""
        self._elsewhere = elsewhere
        # How many records of this broker others have taken; and the run and the next record of other brokers.
        self._sent = 0
        self._heard: dict[str, tuple[int, int]] = {}
        self.published = self.dropped = 0
        self._config = config
        self._served = served
        self._new_topics = new_topics
        self._schemas = schemas
        self._owners = owners
        self._now_ms = now_ms
        self._name = broker
        self._waiting: deque[HistoryRecord] = deque()
        self._records_max = records_max
        self._topic: Topic | None = None
        self._schema_version = b""
        self._retold_ms = now_ms()
        self._sequence_id = self._run = self._retold_ms * 1000
        self._trouble = ""

    def __len__(self) -> int:
        """How many records wait."""
        return len(self._waiting)

    # -- records

    def load(
        self, topic: TopicName, number: SegmentId, span: HashRange, stretch: SampledStretch, open_topic: Topic
    ) -> None:
        subscriptions = open_topic.subscriptions.values()
        since_ms, at_ms, samples, load = stretch
        told = LoadStretch(
            str(topic),
            number,
            span.start,
            span.end,
            since_ms,
            samples,
            *load.rates,
            backlog=sum(one.backlog_messages() for one in subscriptions if not one.is_drained),
            producers=len(open_topic.producers),
            consumers=sum(len(one.consumers) for one in subscriptions),
        )
        self._put(HistoryRecord(VERSION, self._name, at_ms, load=told))

    def decided(
        self,
        topic: TopicName,
        decision: Decision,
        verdict: Verdict | None,
        layout: SegmentLayout | None,
        policy: ScalePolicy | None,
    ) -> None:
        no_split = no_merge = no_rebucket = ""
        buckets = None
        if decision.kind is DecisionKind.REBUCKET and layout is not None:
            made = (s.bucket_count for s in layout.segments.values() if s.parents == decision.segments)
            buckets = next(made, None)
        if isinstance(verdict, Stay):
            no_split = verdict.no_split.value
            no_merge = "" if verdict.no_merge is NoMerge.NOT_ASKED else verdict.no_merge.value
            no_rebucket = verdict.no_rebucket.value
        told = DecisionMade(
            str(topic),
            decision.kind.value,
            decision.rule,
            tuple(decision.segments),
            decision.because,
            no_split=no_split,
            no_merge=no_merge,
            active=0 if layout is None else len(layout.active),
            epoch=0 if layout is None else layout.epoch,
            no_rebucket=no_rebucket,
            buckets=buckets,
            policy=None if policy is None else json.dumps(policy.to_json()),
        )
        self._put(HistoryRecord(VERSION, self._name, decision.at_ms, decision=told))

    def consumers_changed(self, topic: TopicName, consumers: Mapping[str, int]) -> None:
        told = OrderedConsumers(str(topic), dict(consumers))
        self._put(HistoryRecord(VERSION, self._name, self._now_ms(), consumers=told))

    def beat(
        self,
        *,
        segments: int,
        topics: int,
        consumers: Callable[[], Iterable[tuple[TopicName, Mapping[str, int]]]],
    ) -> None:
        """Reports how many segments are followed and topics are led here, and the ordered consumers of those topics."""
        config, now_ms = self._config, self._now_ms()
        told = Heartbeat(
            segments=segments,
            topics=topics,
            dropped=self.dropped,
            interval_ms=round(config.scalable_topic_load_report_interval * 1000),
            window_ms=round(config.scalable_topic_load_report_window * 1000),
            look_ms=round(config.scalable_topic_auto_scale_interval * 1000),
            change=config.scalable_topic_load_report_rate_change_threshold,
            policy=json.dumps(broker_policy(config).to_json()),
        )
        self._put(HistoryRecord(VERSION, self._name, now_ms, heartbeat=told))
        if now_ms - self._retold_ms >= CONSUMERS_AGAIN_MS:
            self._retold_ms = now_ms
            for topic, its_consumers in consumers():
                self.consumers_changed(topic, its_consumers)

    def balance(self, at_ms: int, **found: Any) -> None:
        """Takes a record of the load balancer, by its field of `HistoryRecord`."""
        self._put(HistoryRecord(VERSION, self._name, at_ms, **found))

    def _put(self, record: HistoryRecord) -> None:
        if len(self._waiting) >= self._records_max:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(record)

    # -- publishing

    async def flush(self) -> None:
        """Appends the waiting records. Never raises for errors of the store or the log: those are counted or
        retried."""
        if not self._waiting:
            return
        try:
            if self._owners.is_mine(HISTORY_TOPIC):
                await self._append_all()
            elif self._elsewhere is not None:
                await self._send_all(self._elsewhere)
            else:
                self._drop(len(self._waiting))
            self._trouble = ""
        except AnabranchError as error:
            # The records wait for the next flush, as many as may.
            if self._trouble != (trouble := f"{type(error).__name__}: {error}"):
                self._trouble = trouble
                log.warning("load history: publishing failed: %s", error)

    async def _append_all(self) -> None:
        topic = await self._opened()
        while self._waiting:
            self._append(topic, min(BATCH_RECORDS, len(self._waiting)))
            await asyncio.sleep(0)

    async def _send_all(self, elsewhere: HistoryOwner) -> None:
        # This broker may become the owner meanwhile: it must not send its records to itself, for ever.
        while self._waiting and not self._owners.is_mine(HISTORY_TOPIC):
            owner = self._owners.owner(HISTORY_TOPIC)
            if owner is None:
                return  # Until the next flush.
            records = [self._waiting.popleft() for _ in range(min(BATCH_RECORDS, len(self._waiting)))]
            try:
                await elsewhere.send(owner, self._run, self._sent, records)
            except BaseException:
                self._waiting.extendleft(reversed(records))
                raise
            self._sent += len(records)

    def take(self, peer: str, run: int, first: int, records: Sequence[HistoryRecord]) -> None:
        """Takes the records of another broker, less those that it has sent before. NotReadyError unless this broker
        owns the topic."""
        if not self._owners.is_mine(HISTORY_TOPIC):
            raise NotReadyError(f"this broker does not own {HISTORY_TOPIC}: look it up again")
        known_run, expected = self._heard.get(peer, (run, 0))
        had = max(0, expected - first) if run == known_run else 0
        for record in records[had:]:
            self._put(record)
        self._heard[peer] = run, max(first + len(records), expected if run == known_run else 0)

    async def close(self) -> None:
        """Appends the last records, if that can be done at once."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self.flush()

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self._waiting.popleft()
        self.dropped += count

    async def _opened(self) -> Topic:
        if self._topic is None or self._topic.is_closed:
            await self._new_topics.create(HISTORY_TOPIC)
            topic = await self._served.topic(HISTORY_TOPIC)
            schema = StoredSchema(pb.Schema.Json, HISTORY_TOPIC.local, SCHEMA_JSON, {}, self._now_ms())
            version = await self._schemas.add(HISTORY_TOPIC, schema)
            self._schema_version = b"" if version is None else version_bytes(version)
            self._topic = topic
        return self._topic

    def _append(self, topic: Topic, count: int) -> None:
        records = [self._waiting.popleft() for _ in range(count)]
        metadata = pb.MessageMetadata(
            producer_name=f"load-history@{self._name}",
            sequence_id=self._sequence_id,
            publish_time=self._now_ms(),
            schema_version=self._schema_version,
            compression=pb.ZLIB,
        )
        self._sequence_id += count
        messages = (
            (
                pb.SingleMessageMetadata(partition_key=record.key, event_time=record.at, payload_size=0),
                msgspec.json.encode(record),
            )
            for record in records
        )
        try:
            topic.publishing.publish_own(build_batch(metadata, messages), count)
        except LogError:
            # A full disk, or a log that is lost. Keeping the records would not make room.
            self.dropped += count
            raise
        self.published += count
