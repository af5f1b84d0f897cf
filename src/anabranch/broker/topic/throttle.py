"""Limits a topic to its rates: producers through their connections, consumers through their dispatcher.

A connection that has published too fast is not read for a moment, which delays all of its producers and consumers, as
in Pulsar. A dispatcher that has sent too fast pauses. Topics without a rate skip all of this.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence

from anabranch.broker.policy.limits import TopicLimits
from anabranch.broker.policy.rate_bucket import Pace
from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic.producer import AttachedProducer
from anabranch.broker.topic.publishing import Publishing
from anabranch.broker.topic.services import TopicServices
from anabranch.model.names import TopicName
from anabranch.wire.frames import Frame

# Never longer than the keep-alive: pings, acks and flow share the socket. The next publish is held again.
HOLD_MAX_S = 5.0


class TopicPacing:
    __slots__ = (
        "_dispatch",
        "_limits",
        "_name",
        "_publishing",
        "_services",
    )

    def __init__(self, services: TopicServices, name: TopicName, publishing: Publishing) -> None:
        self._services = services
        self._name = name
        self._publishing = publishing
        self._limits = TopicLimits()
        self._dispatch: Pace | None = None

    def apply(self, limits: TopicLimits) -> None:
        before, self._limits = self._limits, limits
        loop = self._services.loop
        now = loop.time()
        if limits.publish_rate != before.publish_rate:
            rate = limits.publish_rate
            self._publishing.limit_rate(None if rate is None else PublishPace(Pace.of(rate, now), loop))
        if limits.dispatch_rate != before.dispatch_rate:
            self._dispatch = None if limits.dispatch_rate is None else Pace.of(limits.dispatch_rate, now)

    def of(self, subscription: Subscription) -> DispatchPace | None:
        """The rate limits of this subscription's dispatcher."""
        paces = [] if self._dispatch is None else [self._dispatch]
        own = self._services.policies.of(self._name).rates_of_subscriptions
        rate = own.get(subscription.name, self._limits.subscription_dispatch_rate)
        if rate is not None and rate.is_limit:
            paces.append(Pace.of(rate, self._services.loop.time()))
        if not paces:
            return None
        burst = self._limits.dispatch.burst_entries
        return DispatchPace(paces, subscription, burst, self._publishing)


class PublishPace:
    """The token bucket of a topic's publishes. Connections that publish faster are not read for a moment."""

    __slots__ = ("_loop", "_pace")

    def __init__(self, pace: Pace, loop: asyncio.AbstractEventLoop) -> None:
        self._pace = pace
        self._loop = loop

    def spend(self, producer: AttachedProducer, sends: Sequence[Frame]) -> None:
        now = self._loop.time()
        self._pace.spend(sum(send[3] for send in sends), sum(len(send[6]) for send in sends), now)
        if (wait := self._pace.wait_s(now)) > 0:
            producer.link.hold(min(wait, HOLD_MAX_S))


class DispatchPace:
    """The token buckets of one dispatcher. What it has sent is read from its subscription's counters."""

    def __init__(
        self,
        paces: Sequence[Pace],
        subscription: Subscription,
        burst_entries: int,
        publishing: Publishing,
    ) -> None:
        self._publishing = publishing
        self._paces = paces
        self._burst_entries = burst_entries
        # The subscription holds this.
        self._subscription = weakref.ref(subscription)
        self._charged = (subscription.messages_out, subscription.bytes_out)

    def look(self, now: float) -> tuple[float, int]:
        """How many seconds to wait before sending, and how many entries a burst may then have."""
        subscription = self._subscription()
        assert subscription is not None, "a dispatcher that runs belongs to a subscription"
        sent = (subscription.messages_out, subscription.bytes_out)
        messages, size = sent[0] - self._charged[0], sent[1] - self._charged[1]
        self._charged = sent
        for pace in self._paces:
            if pace.is_relative:
                pace.follow(self._publishing.rates_in)
            pace.spend(max(0, messages), max(0, size), now)
        lefts = [left for pace in self._paces if (left := pace.messages_left(now)) is not None]
        return max(pace.wait_s(now) for pace in self._paces), max(1, min([*lefts, self._burst_entries]))
