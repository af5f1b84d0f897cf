"""A topic's periodic work: it expires what is too old, and frees disk space."""

from __future__ import annotations

import logging

from anabranch.broker.compaction.topic_compaction import TopicCompaction
from anabranch.broker.errors import NotAllowedError
from anabranch.broker.hidden_writes.topic import HiddenWrites
from anabranch.broker.policy.retention import AT_ONCE, NOTHING, Keep, Oldest, keep_of, trim_target
from anabranch.broker.subscription import reader_loss
from anabranch.broker.topic.in_force import PoliciesInForce
from anabranch.broker.topic.phase import TopicLife
from anabranch.broker.topic.sequence_ids import SequenceIds
from anabranch.broker.topic.services import TopicServices
from anabranch.broker.topic.subscriptions import Subscribing
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.storage.topic.topic_log import TopicLog

log = logging.getLogger(__name__)

# How often a topic whose trim waits is looked at until its time has come.
SEARCHES = 10


class TopicUpkeep:
    __slots__ = (
        "_bare_at",
        "_compaction",
        "_hidden",
        "_in_force",
        "_life",
        "_log",
        "_name",
        "_own_keep",
        "_search_at",
        "_sequence_ids",
        "_services",
        "_subscribing",
        "_trimmed_at",
        "oldest",
    )

    def __init__(
        self,
        services: TopicServices,
        name: TopicName,
        topic_log: TopicLog,
        life: TopicLife,
        in_force: PoliciesInForce,
        subscribing: Subscribing,
        sequence_ids: SequenceIds,
        hidden: HiddenWrites,
        compaction: TopicCompaction,
        own_keep: Keep | None,
    ) -> None:
        """`own_keep`: the retention of a system topic, regardless of policies and subscriptions."""
        self._services = services
        self._name = name
        self._log = topic_log
        self._life = life
        self._in_force = in_force
        self._subscribing = subscribing
        self._sequence_ids = sequence_ids
        self._hidden = hidden
        self._compaction = compaction
        self._own_keep = own_keep
        self._bare_at = -1
        self._trimmed_at = self._search_at = services.loop.time()
        self.oldest = Oldest()

    @property
    def log_is_empty(self) -> bool:
        """Whether `maintain` has found the log empty, and nothing was appended since: there is nothing to maintain."""
        if self._log.next_entry != self._bare_at:
            return False
        # Subscriptions expire also where nothing is published.
        return not (self._subscription_minutes > 0 and self._subscribing.durable())

    def check_compaction(self) -> None:
        """Starts a compaction if its policy calls for one by now."""
        self._compaction.check(self._in_force.effective.compaction_threshold)

    async def maintain(self, *, at_once: bool = True) -> None:
        """Expires messages that are too old to be consumed, and trims entries that nothing keeps any more: at once, or
        when enough of them have come together."""
        topic_log = self._log
        if self._life.is_closed:
            return
        await self._expire_subscriptions()
        is_settled = topic_log.confirmed_end == topic_log.next_entry
        is_empty = topic_log.kept_first == topic_log.kept_end
        self._bare_at = topic_log.next_entry if is_settled and is_empty else -1
        if is_settled and is_empty:
            return
        ttl = self._in_force.effective.message_ttl_in_seconds
        if ttl > 0:
            for subscription in self._subscribing.durable():
                await subscription.expire_before(self._services.now_ms() - ttl * 1000)
        if self._own_keep is not None:
            least = await trim_target(topic_log, topic_log.end, self._own_keep, self._services.now_ms())
            for subscription in list(self._subscribing.all.values()):
                if subscription.is_durable and not subscription.is_closed:
                    await subscription.skip_below(least)
        if self.consumed > topic_log.kept_first:
            await self._trim(
                self._keep(),
                at_once=at_once
                or self._services.trim_pace == AT_ONCE
                or not self._services.log_store.is_accepting
                # Others wait for a sealed segment to be empty, and it is trimmed for the last time.
                or self._life.is_sealed,
            )

    @property
    def consumed(self) -> Position:
        """The position before which every durable subscription has acknowledged everything."""
        durable = (s.next for s in self._subscribing.all.values() if s.is_durable)
        return min(durable, default=self._log.end)

    @property
    def is_retained_by_default(self) -> bool:
        """Whether no policy sets the retention here, so that the broker's default applies."""
        return self._in_force.effective.is_retained_by_default and self._own_keep is None

    def _keep(self) -> Keep:
        config = self._services.config()
        is_low = not self._services.log_store.is_accepting
        linger = NOTHING if is_low else Keep(config.log_linger_seconds, config.log_linger_bytes)
        if self._own_keep is not None:
            return self._own_keep
        if is_low and self.is_retained_by_default:
            return NOTHING
        retention = self._in_force.effective.retention_policies
        return keep_of(retention.minutes, retention.megabytes, linger)

    async def give_back(self, before_ms: int) -> int:
        """Trims entries published before that time that only the default retention keeps; returns the number of bytes
        freed."""
        topic_log = self._log
        if self._life.is_closed or not self.is_retained_by_default or self.consumed <= topic_log.kept_first:
            return 0
        had = topic_log.size_bytes
        now_ms = self._services.now_ms()
        await self._trim(Keep(max(0.0, (now_ms - before_ms) / 1000), None), at_once=True)
        return had - topic_log.size_bytes

    async def _trim(self, keep: Keep, *, at_once: bool) -> None:
        topic_log = self._log
        if not at_once and self._services.loop.time() < self._search_at:
            return
        target = await trim_target(topic_log, self.consumed, keep, self._services.now_ms(), self.oldest)
        if target <= topic_log.kept_first:
            return
        if at_once or self._is_due(target):
            await self._give_up(target)
        else:
            # The search reads the log, and finds little more a few seconds later.
            self._search_at = self._services.loop.time() + self._services.trim_pace.seconds / SEARCHES

    def _is_due(self, target: Position) -> bool:
        """Whether what lies below that position is worth a change of the topic's record."""
        topic_log = self._log
        first = topic_log.kept_first
        share = topic_log.count(first, target) / max(1, topic_log.entries)
        waited_s = self._services.loop.time() - self._trimmed_at
        return self._services.trim_pace.is_due(
            int(topic_log.size_bytes * share), waited_s, gives_up_ledger=target[0] != first[0]
        )

    @property
    def _subscription_minutes(self) -> int:
        """How long a subscription may be without a consumer; 0 for no limit."""
        return self._in_force.effective.subscription_expiration_time_minutes

    async def _expire_subscriptions(self) -> None:
        """Deletes durable subscriptions that have had no consumer for too long.

        The time is counted from the opening of the topic, if that is later: a broker that was down must not mistake its
        own absence for its clients'.
        """
        minutes = self._subscription_minutes
        if minutes <= 0:
            return
        oldest_ms = self._services.now_ms() - minutes * 60_000
        for subscription in self._subscribing.durable():
            # A consumer may have joined while the previous subscription was deleted.
            if not subscription.consumers and subscription.last_active_ms < oldest_ms:
                log.info("%s: subscription %s has expired", self._name, subscription.name)
                await subscription.delete()

    async def truncate(self) -> None:
        """Deletes every message, read or not, regardless of retention."""
        if self._services.is_of_brokers(self._name):
            raise NotAllowedError(f"{self._name} is written by brokers only: it cannot be emptied")
        for subscription in list(self._subscribing.all.values()):
            if subscription.is_durable and not subscription.is_closed:
                await subscription.skip_all()
        await self._give_up(self._log.end)

    async def give_up_below(self, target: Position) -> None:
        """Deletes every message below that position, read or not: the broker has stored what it needs of them again."""
        for subscription in list(self._subscribing.all.values()):
            if subscription.is_durable and not subscription.is_closed:
                await subscription.skip_below(target)
        await self._give_up(target)

    async def _give_up(self, target: Position) -> None:
        await self._sequence_ids.keep_below(target)
        self._trimmed_at = self._services.loop.time()
        late = reader_loss.behind(self._subscribing.all.values(), target)
        await self._log.trim(target)
        self._hidden.trimmed(self._log.topic_record.trimmed)
        for reader in late:
            reader.close()
            self._subscribing.ended(reader)
