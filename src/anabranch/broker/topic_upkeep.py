"""What a topic does now and then: it follows its namespace's policies, expires what is too old, gives disk back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch.broker import owed
from anabranch.broker.compaction.topic_compaction import COMPACTION
from anabranch.broker.policies import Policies
from anabranch.broker.retention import NOTHING, Keep, keep_of, trim_target

if TYPE_CHECKING:
    from anabranch.broker.topic import Topic


class TopicUpkeep:
    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._policies = Policies()
        self._bare_at = -1
        # What stays of a topic of the broker's own, whatever policies say and subscriptions hold.
        self.own_keep: Keep | None = None

    def apply_policies(self, policies: Policies) -> None:
        config = self._topic.broker.config
        enabled = policies.deduplication_enabled
        self._policies = policies
        self._topic.publishing.deduplicate(
            config.broker_deduplication_enabled if enabled is None else enabled
        )

    @property
    def is_bare(self) -> bool:
        """Whether `maintain` has found the log empty, and nothing was appended since: there is nothing to maintain."""
        return self._topic.log.next_entry == self._bare_at

    def check_compaction(self) -> None:
        """Starts a compaction if policy wants one by now."""
        threshold = self._policies.compaction_threshold
        if threshold is None:
            threshold = self._topic.broker.config.broker_service_compaction_threshold_in_bytes
        self._topic.compaction.check(threshold)

    async def maintain(self) -> None:
        """Expires what is too old to be consumed, and gives up what nothing keeps any more."""
        topic, log = self._topic, self._topic.log
        if topic.is_closed:
            return
        is_settled = log.confirmed_end == log.next_entry
        is_empty = log.kept_first == log.kept_end
        self._bare_at = log.next_entry if is_settled and is_empty else -1
        if self.is_bare:
            return
        config, policies = topic.broker.config, self._policies
        ttl = policies.message_ttl_in_seconds
        if ttl is None:
            ttl = config.ttl_duration_default_in_seconds
        if ttl > 0:
            for subscription in topic.subscriptions.values():
                # What is not compacted yet is not compaction's to expire.
                if subscription.is_durable and subscription.name != COMPACTION:
                    await subscription.expire_before(topic.broker.now_ms() - ttl * 1000)
        if self.own_keep is not None:
            least = await trim_target(log, log.end, self.own_keep, topic.broker.now_ms())
            for subscription in topic.subscriptions.values():
                if subscription.is_durable:
                    await subscription.skip_below(least)
        consumed = min(
            (s.next for s in topic.subscriptions.values() if s.is_durable),
            default=log.end,
        )
        if consumed <= log.kept_first:
            return
        retention = policies.retention_policies
        minutes = config.default_retention_time_in_minutes if retention is None else retention.minutes
        megabytes = config.default_retention_size_in_mb if retention is None else retention.megabytes
        is_low = not topic.broker.log.is_accepting
        linger = NOTHING if is_low else Keep(config.log_linger_seconds, config.log_linger_bytes)
        keep = self.own_keep or keep_of(minutes, megabytes, linger)
        target = await trim_target(log, consumed, keep, topic.broker.now_ms())
        late = owed.behind(topic.subscriptions.values(), target)
        await log.trim(target)
        topic.hidden.trimmed(log.topic_record.trimmed)
        for reader in late:
            reader.close()
            topic.subscribing.ended(reader)
