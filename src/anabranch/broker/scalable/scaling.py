"""Automatic splits and merges as this broker runs them: its load reporter and its automatic scaler, side by side, and
the history of both that it publishes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from anabranch.autoscale.policy import problems
from anabranch.broker.owners import broker_path
from anabranch.broker.scalable.auto_policy import broker_policy
from anabranch.broker.scalable.history_topic import FLUSH_S, HistoryTopic
from anabranch.broker.scalable.load_reporter import LoadReporter
from anabranch.broker.scalable.scale_policies import ScalePolicies
from anabranch.controller.autoscaler import AutoScaler
from anabranch.controller.service import ScalableTopics
from anabranch.model.names import TopicName

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

log = logging.getLogger(__name__)


class Scaling:
    """Made with the broker, started and closed with its scalable topics."""

    def __init__(self, broker: Broker, topics: ScalableTopics) -> None:
        self._broker = broker
        config = broker.config
        policy = broker_policy(config)
        if found := problems(policy):
            # Topics and namespaces may set something that makes it whole, so the broker starts all the same.
            log.error(
                "the settings of automatic splits and merges contradict each other: %s", "; ".join(found)
            )
        policies = ScalePolicies(policy, broker.resources)
        self.history = HistoryTopic(broker) if config.load_history_enabled else None
        self.reporter = LoadReporter(
            broker,
            policies,
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
        background, config = self._broker.background, self._broker.config
        self.reporter.start()
        self.scaler.start()
        background.until_done(self.reporter.adopt)
        self._broker.owners.on_change(lambda: background.until_done(self.reporter.adopt))
        background.every(self.reporter.interval_s, self.reporter.sample)
        if self.history is not None:
            background.every(config.load_history_heartbeat_interval, self.history.beat)
            background.every(FLUSH_S, self.history.flush)

    async def close(self) -> None:
        self.reporter.close()
        await self.scaler.close()
        if self.history is not None:
            await self.history.close()

    async def _has_owner(self, segment: TopicName) -> bool:
        """Whether the broker that should measure the segment is there. Our own reporter sees to all that is ours."""
        owners = self._broker.owners
        if owners.is_mine(segment):
            return True
        return await self._broker.metadata.exists(broker_path(owners.owner(segment).service_url))
