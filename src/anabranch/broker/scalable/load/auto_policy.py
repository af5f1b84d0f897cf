"""Which policy of automatic scaling applies to a topic: its own, its namespace's, this broker's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.autoscale.load import Load
from anabranch.autoscale.policy import Override, Resolved, ScalePolicy, resolve
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.policy.namespace import NamespacePolicies


def broker_policy(config: BrokerConfig) -> ScalePolicy:
    return ScalePolicy(
        enabled=config.scalable_topic_auto_scale_enabled,
        max_segments=config.scalable_topic_max_segments,
        min_segments=config.scalable_topic_min_segments,
        max_dag_depth=config.scalable_topic_max_dag_depth,
        split_cooldown_ms=_ms(config.scalable_topic_split_cooldown),
        merge_cooldown_ms=_ms(config.scalable_topic_merge_cooldown),
        merge_window_ms=_ms(config.scalable_topic_merge_window),
        rebucket_cooldown_ms=_ms(config.scalable_topic_rebucket_cooldown),
        rebucket_idle_window_ms=_ms(config.scalable_topic_rebucket_idle_window),
        merge_depth_window_ms=_ms(config.scalable_topic_merge_depth_window),
        split=Load(
            config.scalable_topic_split_msg_rate_in_threshold,
            config.scalable_topic_split_bytes_rate_in_threshold,
            config.scalable_topic_split_msg_rate_out_threshold,
            config.scalable_topic_split_bytes_rate_out_threshold,
        ),
        merge=Load(
            config.scalable_topic_merge_msg_rate_in_threshold,
            config.scalable_topic_merge_bytes_rate_in_threshold,
            config.scalable_topic_merge_msg_rate_out_threshold,
            config.scalable_topic_merge_bytes_rate_out_threshold,
        ),
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def applied(config: BrokerConfig, namespace: NamespacePolicies, topic: Mapping[str, Any] | None) -> Resolved:
    """The policy that applies with this override of the topic. InvalidPolicy if a stored policy cannot be read."""
    return resolve(broker_policy(config), stored(namespace.scalable_topic_auto_scale_policy), stored(topic))


def stored(override: Mapping[str, Any] | None) -> Override | None:
    return None if override is None else Override.decode(override)
