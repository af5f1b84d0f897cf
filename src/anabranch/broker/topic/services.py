"""The broker's services that the parts of an open topic use. The composition root builds them once for all topics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from anabranch.broker.catalog.topic_policies import TopicPolicyStore
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.dispatch.entry_buckets import BucketOwnership
from anabranch.broker.hidden_writes.records import WriteRecords
from anabranch.broker.policy.effective import LatestEffective
from anabranch.broker.policy.retention import AT_ONCE, TrimPace
from anabranch.broker.runtime.background import Background
from anabranch.broker.security.rights import Rights
from anabranch.metadata.port import MetadataStore
from anabranch.model.names import TopicName
from anabranch.model.scalable import InitialPosition, SubscriptionKind
from anabranch.storage.core.topic_record import TopicRecord
from anabranch.storage.port import LogStore
from anabranch.storage.topic.ledger_ids import LedgerIds
from anabranch.storage.topic.taking_over import LastWord, no_last_word
from anabranch.wire import pulsar_pb2 as pb


class SegmentSubscriptions(Protocol):
    """Registers a subscription with the scalable topic before a segment of that topic gets a cursor for it."""

    async def register_consumer(
        self, name: TopicName, request: pb.CommandSubscribe
    ) -> InitialPosition | None: ...

    async def register(
        self, name: TopicName, subscription: str, kind: SubscriptionKind, initial: InitialPosition
    ) -> InitialPosition | None: ...


class EntryBucketOwners(Protocol):
    async def of(self, name: TopicName, subscription: str) -> BucketOwnership:
        """Who owns the entry buckets of that segment in that subscription."""


@dataclass(frozen=True, slots=True)
class TopicServices:
    loop: asyncio.AbstractEventLoop
    now_ms: Callable[[], int]
    # The settings in force now: some change at run time.
    config: Callable[[], BrokerConfig]
    metadata: MetadataStore
    log_store: LogStore
    ledger_ids: LedgerIds
    policies: TopicPolicyStore
    effective: LatestEffective
    write_records: WriteRecords
    rights: Rights
    background: Background
    # One compaction at a time: each needs memory for a table of keys.
    compacting: asyncio.Semaphore
    # The URL of this broker's REST for clients.
    http_url: str
    # None while scalable topics are turned off.
    registration: SegmentSubscriptions | None
    # None while scalable topics are turned off.
    bucket_owners: EntryBucketOwners | None
    # Called when a log has confirmed something: connections that wait for that may be read again.
    progressed: Callable[[], None]
    # Called when a reader has reached the end of a sealed topic, or has been moved back from it.
    segment_progressed: Callable[[TopicName], None]
    # The id of the partitioned topic that the log with that record belongs to; "" if there is none.
    part_of: Callable[[TopicName, TopicRecord], Awaitable[str]]
    # Asks the former owner of a topic to release it. A single broker has none to ask.
    last_word: LastWord = no_last_word
    # How the log is trimmed where nothing calls for it at once.
    trim_pace: TrimPace = AT_ONCE
    # Whether only brokers write to the topic: no client may publish to it, seal it, empty it or delete it.
    is_of_brokers: Callable[[TopicName], bool] = lambda name: False
