"""Automatic splits and merges as this broker runs them: its load reporter and its automatic scaler, side by side, and
the history of both that it publishes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from anabranch.autoscale.policy import problems
from anabranch.broker.catalog.owners import Owners
from anabranch.broker.catalog.registry import broker_path
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.catalog.schemas import Schemas
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.runtime.background import Background
from anabranch.broker.scalable.load.auto_policy import broker_policy
from anabranch.broker.scalable.load.history_topic import FLUSH_S, HistoryOwner, HistoryTopic
from anabranch.broker.scalable.load.reporter import LoadReporter
from anabranch.broker.scalable.load.scale_policies import ScalePolicies
from anabranch.broker.scalable.ports import ServedTopics
from anabranch.broker.topics.creation import NewTopics
from anabranch.controller.autoscaler import AutoScaler
from anabranch.controller.service import ScalableTopics
from anabranch.metadata.port import MetadataStore
from anabranch.model.bundles import BundleName
from anabranch.model.names import TopicName

log = logging.getLogger(__name__)


class BrokerScaling:
    """Constructed with the broker, started and closed with its scalable topics."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: ScalableTopics,
        metadata: MetadataStore,
        resources: Resources,
        owners: Owners,
        served: ServedTopics,
        new_topics: NewTopics,
        schemas: Schemas,
        background: Background,
        now_ms: Callable[[], int],
        clock: Callable[[], float],
        *,
        service_url: str,
        history_owner: HistoryOwner | None = None,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._owners = owners
        self._background = background
        policy = broker_policy(config)
        if found := problems(policy):
            # Topics and namespaces may set what makes the policy valid, so the broker starts nevertheless.
            log.error(
                "the settings of automatic splits and merges contradict each other: %s", "; ".join(found)
            )
        policies = ScalePolicies(policy, resources)
        self.history = None
        if config.load_history_enabled:
            name = service_url.partition("://")[2]
            self.history = HistoryTopic(
                config,
                served,
                new_topics,
                schemas,
                owners,
                now_ms,
                broker=name,
                elsewhere=history_owner,
            )
        self.reporter = LoadReporter(
            config,
            metadata,
            resources,
            owners,
            topics.feed,
            served,
            policies,
            now_ms,
            clock,
            interval_s=config.scalable_topic_load_report_interval,
            window_s=config.scalable_topic_load_report_window,
            change=config.scalable_topic_load_report_rate_change_threshold,
            published=self.history,
        )
        self.scaler = AutoScaler(
            topics,
            policies,
            interval_s=config.scalable_topic_auto_scale_interval,
            has_owner=self._has_owner,
            listener=self.history,
        )

    def start(self) -> None:
        background, config = self._background, self._config
        self.reporter.start()
        self.scaler.start()
        background.until_done(self.reporter.adopt)
        self._owners.on_change(self._owners_changed)
        background.every(self.reporter.interval_s, self.reporter.sample)
        if self.history is not None:
            background.every(config.load_history_heartbeat_interval, self.beat)
            background.every(FLUSH_S, self.history.flush)

    def _owners_changed(self, bundles: Iterable[BundleName]) -> None:
        if self.reporter.owners_changed(bundles):
            self._background.until_done(self.reporter.adopt_moved)

    async def beat(self) -> None:
        """Reports to the history what this broker follows and leads."""
        if self.history is not None:
            self.history.beat(
                segments=len(self.reporter.followed),
                topics=self.scaler.topics_led,
                consumers=self.scaler.consumers,
            )

    async def close(self) -> None:
        self.reporter.close()
        await self.scaler.close()
        if self.history is not None:
            await self.history.close()

    async def _has_owner(self, segment: TopicName) -> bool:
        """Whether the broker that should measure the segment is alive. Our own reporter measures all that is ours."""
        owners = self._owners
        if owners.is_mine(segment):
            return True
        found = owners.owner(segment)
        return found is not None and await self._metadata.exists(broker_path(found.service_url))
