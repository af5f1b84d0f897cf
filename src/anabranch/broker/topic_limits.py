"""How many producers, consumers and subscriptions a topic may have, and of which kinds. Pure.

0 is no limit, as in Pulsar. What exists when a limit is lowered stays; only those who come later are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from anabranch.broker.config import BrokerConfig
from anabranch.broker.consumer import TYPE_NAMES
from anabranch.broker.dispatch.base import DispatchLimits
from anabranch.broker.errors import (
    ConsumerBusyError,
    EncryptionRequiredError,
    NotAllowedError,
    ProducerBusyError,
    SubscriptionNotFoundError,
)
from anabranch.broker.policies import Policies
from anabranch.broker.rates import DispatchRate, PublishRate, SubscribeRate

Rate = TypeVar("Rate", PublishRate, DispatchRate, SubscribeRate)


@dataclass(frozen=True, slots=True)
class TopicLimits:
    producers_max: int = 0
    consumers_max: int = 0
    subscriptions_max: int = 0
    consumers_per_subscription_max: int = 0
    subscription_types: frozenset[str] = frozenset(TYPE_NAMES.values())
    may_make_subscriptions: bool = True
    is_encryption_required: bool = False
    dispatch: DispatchLimits = field(default_factory=DispatchLimits)
    publish_rate: PublishRate | None = None
    dispatch_rate: DispatchRate | None = None
    subscription_dispatch_rate: DispatchRate | None = None
    subscribe_rate: SubscribeRate | None = None
    # Of one message or batch with its metadata, in bytes; 0: what the broker takes at all.
    message_bytes_max: int = 0
    # How much later than published a message may ask to be delivered; 0: as much as it likes.
    delay_ms_max: int = 0

    def check_producer(self, topic: str, present: int, *, is_encrypted: bool) -> None:
        """Raises if one more producer may not join those present."""
        if self.producers_max and present >= self.producers_max:
            raise ProducerBusyError(f"Topic '{topic}' reached max producers limit")
        if self.is_encryption_required and not is_encrypted:
            raise EncryptionRequiredError(f"Encryption is required in {topic}")

    def check_consumer(self, topic: str, present: int, kind: int) -> None:
        name = TYPE_NAMES.get(kind, str(kind))
        if name not in self.subscription_types:
            raise NotAllowedError(
                f"Topic[{topic}] doesn't support {name} sub type; "
                f"allowed are {', '.join(sorted(self.subscription_types))}"
            )
        if self.consumers_max and present >= self.consumers_max:
            raise ConsumerBusyError("Topic reached max consumers limit")

    def check_new_subscription(self, topic: str, name: str, present: int, *, is_by_use: bool) -> None:
        """Raises if a durable subscription may not be made, by a consumer that needs it or by an operator."""
        if is_by_use and not self.may_make_subscriptions:
            raise SubscriptionNotFoundError(
                f"Subscription does not exist: {name} must be made by an operator before it is used"
            )
        if self.subscriptions_max and present >= self.subscriptions_max:
            raise NotAllowedError(f"Exceed the maximum number of subscriptions of the topic: {topic}")


def limits_of(config: BrokerConfig, policies: Policies) -> TopicLimits:
    """What is in force: the topic's or the namespace's policy, else the broker's configuration."""
    creation = policies.auto_subscription_creation
    delayed = policies.delayed_delivery_policies
    return TopicLimits(
        producers_max=_of(policies.max_producers_per_topic, config.max_producers_per_topic),
        consumers_max=_of(policies.max_consumers_per_topic, config.max_consumers_per_topic),
        subscriptions_max=_of(policies.max_subscriptions_per_topic, config.max_subscriptions_per_topic),
        consumers_per_subscription_max=_of(
            policies.max_consumers_per_subscription, config.max_consumers_per_subscription
        ),
        subscription_types=frozenset(policies.subscription_types_enabled or TYPE_NAMES.values()),
        may_make_subscriptions=config.allow_auto_subscription_creation
        if creation is None
        else creation.allow_auto_subscription_creation,
        is_encryption_required=policies.encryption_required,
        dispatch=DispatchLimits(
            burst_entries=config.dispatcher_max_read_batch_size,
            consumer_unacked_max=_of(
                policies.max_unacked_messages_per_consumer, config.max_unacked_messages_per_consumer
            ),
            subscription_unacked_max=_of(
                policies.max_unacked_messages_per_subscription, config.max_unacked_messages_per_subscription
            ),
            failover_wait_seconds=config.active_consumer_failover_delay_time_millis / 1000,
            has_delays=delayed is None or delayed.active,
            has_key_ring=config.subscription_key_shared_use_consistent_hashing,
        ),
        publish_rate=_limit(policies.publish_rate),
        dispatch_rate=_limit(policies.dispatch_rate),
        subscription_dispatch_rate=_limit(policies.subscription_dispatch_rate),
        subscribe_rate=_limit(policies.subscribe_rate),
        message_bytes_max=policies.max_message_size or 0,
        delay_ms_max=0 if delayed is None else delayed.max_delivery_delay_in_millis,
    )


def _of(policy: int | None, configured: int) -> int:
    return configured if policy is None else policy


def _limit(by_cluster: Mapping[str, Rate]) -> Rate | None:
    """The rate, if it is a limit. There is one cluster: whoever wrote the map under another name meant this one."""
    return next((rate for rate in by_cluster.values() if rate.is_limit), None)
