"""What a topic does now and then: it follows its namespace's policies, expires what is too old, gives disk back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from anabranch.broker import owed
from anabranch.broker.backlog_quota import BacklogQuotas, quotas_of
from anabranch.broker.policies import Policies
from anabranch.broker.retention import NOTHING, Keep, Oldest, keep_of, trim_target
from anabranch.broker.topic_limits import TopicLimits, limits_of
from anabranch.model.position import Position

if TYPE_CHECKING:
    from anabranch.broker.topic import Topic

log = logging.getLogger(__name__)


class TopicUpkeep:
    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._of_namespace = self.policies = Policies()
        self.limits = TopicLimits()
        self.quotas = BacklogQuotas(topic)
        self._bare_at = -1
        # What stays of a topic of the broker's own, whatever policies say and subscriptions hold.
        self.own_keep: Keep | None = None
        self.oldest = Oldest()

    def apply_policies(self, policies: Policies) -> None:
        """The namespace's, from now on; the topic's own are over them."""
        self._of_namespace = policies
        self.policies_changed()

    def policies_changed(self) -> None:
        """The topic's own, or the configuration that is behind all of them."""
        config = self._topic.broker.config
        policies = self.policies = self._topic.broker.topic_policies.over(
            self._of_namespace, self._topic.name
        )
        enabled = policies.deduplication_enabled
        self.limits = limits_of(config, policies)
        self.quotas.set(quotas_of(config, policies))
        self._topic.pacing.apply(self.limits)
        self._topic.subscribing.limits_changed()
        self._topic.publishing.require_encryption(self.limits.is_encryption_required)
        self._topic.publishing.limit_messages(self.limits.message_bytes_max, self.limits.delay_ms_max)
        self._topic.sequence_ids.want(config.broker_deduplication_enabled if enabled is None else enabled)

    @property
    def is_bare(self) -> bool:
        """Whether `maintain` has found the log empty, and nothing was appended since: there is nothing to maintain."""
        if self._topic.log.next_entry != self._bare_at:
            return False
        # Subscriptions grow old also where nothing is published.
        return not (self._subscription_minutes > 0 and self._topic.subscribing.durable())

    def check_compaction(self) -> None:
        """Starts a compaction if policy wants one by now."""
        threshold = self.policies.compaction_threshold
        if threshold is None:
            threshold = self._topic.broker.config.broker_service_compaction_threshold_in_bytes
        self._topic.compaction.check(threshold)

    async def maintain(self) -> None:
        """Expires what is too old to be consumed, and gives up what nothing keeps any more."""
        topic, topic_log = self._topic, self._topic.log
        if topic.is_closed:
            return
        await self._expire_subscriptions()
        is_settled = topic_log.confirmed_end == topic_log.next_entry
        is_empty = topic_log.kept_first == topic_log.kept_end
        self._bare_at = topic_log.next_entry if is_settled and is_empty else -1
        if is_settled and is_empty:
            return
        config, policies = topic.broker.config, self.policies
        ttl = policies.message_ttl_in_seconds
        if ttl is None:
            ttl = config.ttl_duration_default_in_seconds
        if ttl > 0:
            for subscription in topic.subscribing.durable():
                await subscription.expire_before(topic.broker.now_ms() - ttl * 1000)
        if self.own_keep is not None:
            least = await trim_target(topic_log, topic_log.end, self.own_keep, topic.broker.now_ms())
            for subscription in topic.subscriptions.values():
                if subscription.is_durable:
                    await subscription.skip_below(least)
        if self.consumed > topic_log.kept_first:
            await self._trim(self._keep())

    @property
    def consumed(self) -> Position:
        """Every durable subscription has acknowledged what lies before it."""
        durable = (s.next for s in self._topic.subscriptions.values() if s.is_durable)
        return min(durable, default=self._topic.log.end)

    @property
    def is_retained_by_default(self) -> bool:
        """Whether nobody has said what is to be kept here: then the broker's default does."""
        return self.policies.retention_policies is None and self.own_keep is None

    def _keep(self) -> Keep:
        config = self._topic.broker.config
        is_low = not self._topic.broker.log.is_accepting
        linger = NOTHING if is_low else Keep(config.log_linger_seconds, config.log_linger_bytes)
        if self.own_keep is not None:
            return self.own_keep
        retention = self.policies.retention_policies
        if retention is not None:
            return keep_of(retention.minutes, retention.megabytes, linger)
        if is_low:
            return NOTHING
        minutes, megabytes = config.default_retention_time_in_minutes, config.default_retention_size_in_mb
        return keep_of(minutes, megabytes, linger)

    async def give_back(self, before_ms: int) -> int:
        """Gives up what was published before and only the default retention keeps; how many bytes that were."""
        topic_log = self._topic.log
        if self._topic.is_closed or not self.is_retained_by_default or self.consumed <= topic_log.kept_first:
            return 0
        had = topic_log.size_bytes
        now_ms = self._topic.broker.now_ms()
        await self._trim(Keep(max(0.0, (now_ms - before_ms) / 1000), None))
        return had - topic_log.size_bytes

    async def _trim(self, keep: Keep) -> None:
        topic, topic_log = self._topic, self._topic.log
        target = await trim_target(topic_log, self.consumed, keep, topic.broker.now_ms(), self.oldest)
        if target <= topic_log.kept_first:
            return
        await topic.sequence_ids.keep_below(target)
        late = owed.behind(topic.subscriptions.values(), target)
        await topic_log.trim(target)
        topic.hidden.trimmed(topic_log.topic_record.trimmed)
        for reader in late:
            reader.close()
            topic.subscribing.ended(reader)

    @property
    def _subscription_minutes(self) -> int:
        """How long a subscription may be without a consumer; 0 for as long as it likes."""
        minutes = self.policies.subscription_expiration_time_minutes
        return self._topic.broker.config.subscription_expiration_time_minutes if minutes is None else minutes

    async def _expire_subscriptions(self) -> None:
        """Deletes durable subscriptions that have had no consumer for too long.

        How long is counted from when the topic was opened, if that is later: a broker that was down must not take its
        own absence for its clients'.
        """
        topic, minutes = self._topic, self._subscription_minutes
        if minutes <= 0:
            return
        oldest_ms = topic.broker.now_ms() - minutes * 60_000
        for subscription in topic.subscribing.durable():
            # Somebody may have come while the one before it was deleted.
            if not subscription.consumers and subscription.last_active_ms < oldest_ms:
                log.info("%s: subscription %s has expired", topic.name, subscription.name)
                await subscription.delete()

    async def truncate(self) -> None:
        """Gives up every message, read or not, whatever retention says."""
        topic = self._topic
        for subscription in list(topic.subscriptions.values()):
            if subscription.is_durable:
                await subscription.skip_all()
        end = topic.log.end
        await topic.sequence_ids.keep_below(end)
        late = owed.behind(topic.subscriptions.values(), end)
        await topic.log.trim(end)
        topic.hidden.trimmed(topic.log.topic_record.trimmed)
        for reader in late:
            reader.close()
            topic.subscribing.ended(reader)
