"""How many producers, consumers and subscriptions a topic may have, and of which kinds. Pure.

0 is no limit, as in Pulsar. Clients beyond a lowered limit stay; only later ones are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeVar

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.errors import (
    ConsumerBusyError,
    EncryptionRequiredError,
    NotAllowedError,
    ProducerBusyError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
)
from anabranch.broker.policy.effective import EffectivePolicies
from anabranch.broker.policy.rate_json import DispatchRate, PublishRate, SubscribeRate
from anabranch.wire.subscription_types import TYPE_NAMES

BURST_BYTES: Final = 1 << 20

Rate = TypeVar("Rate", PublishRate, DispatchRate, SubscribeRate)


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """Bounds of one subscription. At each of them dispatch waits."""

    burst_bytes: int = BURST_BYTES
    burst_entries: int = 1000
    consumer_unacked_max: int = 50_000
    subscription_unacked_max: int = 200_000
    # The most delayed messages remembered; beyond it nothing more is read until some are delivered.
    delayed_max: int = 1_000_000
    # Key_Shared: the most entries set aside because their key is blocked, before reading stops.
    held_per_consumer_max: int = 2_000
    held_max: int = 20_000
    # Failover: how long to wait for the previous consumer's acknowledgements when it is replaced while connected.
    failover_wait_seconds: float = 1.0
    # How long to wait after a read that failed for a temporary reason.
    retry_seconds: float = 1.0
    # Whether messages may be delayed; if not, they are delivered at once.
    has_delays: bool = True
    # Key_Shared: whether consumers share keys by points on a ring, or by halving ranges.
    has_key_ring: bool = True


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
    # The most bytes of one message or batch with its metadata; 0: the broker's own limit.
    message_bytes_max: int = 0
    # The longest delay that a message may ask for; 0: no limit.
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

    def check_session(self, present: int, of_subscription: int | None) -> None:
        """Raises if one more stream or checkpoint consumer may not join those of a scalable topic, and those of its
        subscription if it has one."""
        if self.consumers_max and present >= self.consumers_max:
            raise ConsumerBusyError("Topic reached max consumers limit")
        most = self.consumers_per_subscription_max
        if of_subscription is not None and most and of_subscription >= most:
            raise SubscriptionBusyError("Subscription reached max consumers limit")

    def check_new_subscription(self, topic: str, name: str, present: int, *, is_by_use: bool) -> None:
        """Raises if a durable subscription may not be created, by a consumer that needs it or by an operator."""
        if is_by_use and not self.may_make_subscriptions:
            raise SubscriptionNotFoundError(
                f"Subscription does not exist: {name} must be created by an operator before it is used"
            )
        if self.subscriptions_max and present >= self.subscriptions_max:
            raise NotAllowedError(f"Exceed the maximum number of subscriptions of the topic: {topic}")


def limits_of(config: BrokerConfig, policies: EffectivePolicies) -> TopicLimits:
    """The limits that follow from the policies in force."""
    delayed = policies.delayed_delivery_policies
    return TopicLimits(
        producers_max=policies.max_producers_per_topic,
        consumers_max=policies.max_consumers_per_topic,
        subscriptions_max=policies.max_subscriptions_per_topic,
        consumers_per_subscription_max=policies.max_consumers_per_subscription,
        subscription_types=frozenset(policies.subscription_types_enabled or TYPE_NAMES.values()),
        may_make_subscriptions=policies.auto_subscription_creation.allow_auto_subscription_creation,
        is_encryption_required=policies.encryption_required,
        dispatch=DispatchLimits(
            burst_entries=config.dispatcher_max_read_batch_size,
            consumer_unacked_max=policies.max_unacked_messages_per_consumer,
            subscription_unacked_max=policies.max_unacked_messages_per_subscription,
            failover_wait_seconds=config.active_consumer_failover_delay_time_millis / 1000,
            has_delays=delayed.active,
            has_key_ring=config.subscription_key_shared_use_consistent_hashing,
        ),
        publish_rate=_limit(policies.publish_rate),
        dispatch_rate=_limit(policies.dispatch_rate),
        subscription_dispatch_rate=_limit(policies.subscription_dispatch_rate),
        subscribe_rate=_limit(policies.subscribe_rate),
        message_bytes_max=policies.max_message_size or 0,
        delay_ms_max=delayed.max_delivery_delay_in_millis,
    )


def _limit(rate: Rate | None) -> Rate | None:
    """The rate if it is a limit, else None."""
    return rate if rate is not None and rate.is_limit else None
