"""Holds a topic to its rates: producers through their connections, consumers through their dispatcher.

A connection that has published too fast is not read for a moment; that holds up all of its producers and consumers, as
it does in Pulsar. A dispatcher that has sent too fast pauses. Where no rate is set none of this is in the way: the
publishing path is then the very method it always was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from anabranch.broker.pace import Pace
from anabranch.broker.producer import Producer
from anabranch.broker.topic_limits import TopicLimits
from anabranch.wire.frames import Frame

if TYPE_CHECKING:
    from anabranch.broker.subscription import Subscription
    from anabranch.broker.topic import Topic

# Never past the keep-alive: pings, acks and flow share the socket. The next publish is held again.
HOLD_MAX_S = 5.0


class TopicPacing:
    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._limits = TopicLimits()
        self._dispatch: Pace | None = None

    def apply(self, limits: TopicLimits) -> None:
        before, self._limits = self._limits, limits
        topic = self._topic
        now = topic.broker.loop.time()
        if limits.publish_rate != before.publish_rate:
            publish = topic.publishing.publish
            rate = limits.publish_rate
            topic.publish = publish if rate is None else held(publish, Pace.of(rate, now), topic.broker.loop)
        if limits.dispatch_rate != before.dispatch_rate:
            self._dispatch = None if limits.dispatch_rate is None else Pace.of(limits.dispatch_rate, now)

    def of(self, subscription: Subscription) -> DispatchPace | None:
        """What this subscription's dispatcher must keep to."""
        paces = [] if self._dispatch is None else [self._dispatch]
        own = self._topic.broker.topic_policies.of(self._topic.name).rates_of_subscriptions
        rate = own.get(subscription.name, self._limits.subscription_dispatch_rate)
        if rate is not None and rate.is_limit:
            paces.append(Pace.of(rate, self._topic.broker.loop.time()))
        if not paces:
            return None
        burst = self._limits.dispatch.burst_entries
        return DispatchPace(paces, subscription, burst, lambda: self._topic.rates_in)


def held(
    publish: Callable[[Producer, Sequence[Frame]], None], pace: Pace, loop: asyncio.AbstractEventLoop
) -> Callable[[Producer, Sequence[Frame]], None]:
    """The same, and connections that publish faster than that are not read for a moment."""

    def paced(producer: Producer, sends: Sequence[Frame]) -> None:
        publish(producer, sends)
        now = loop.time()
        pace.spend(sum(send[3] for send in sends), sum(len(send[6]) for send in sends), now)
        if (wait := pace.wait_s(now)) > 0:
            producer.link.hold(min(wait, HOLD_MAX_S))

    return paced


class DispatchPace:
    """The buckets that one dispatcher draws from. What it has sent is read off its subscription's counters."""

    def __init__(
        self,
        paces: Sequence[Pace],
        subscription: Subscription,
        burst_entries: int,
        published: Callable[[], tuple[float, float]],
    ) -> None:
        """`published`: messages and bytes that come into the topic in a second."""
        self._published = published
        self._paces = paces
        self._burst_entries = burst_entries
        self._subscription = subscription
        self._charged = (subscription.messages_out, subscription.bytes_out)

    def look(self, now: float) -> tuple[float, int]:
        """How long to wait before anything is sent, and how many entries a burst may have then."""
        sent = (self._subscription.messages_out, self._subscription.bytes_out)
        messages, size = sent[0] - self._charged[0], sent[1] - self._charged[1]
        self._charged = sent
        for pace in self._paces:
            if pace.is_relative:
                pace.follow(self._published())
            pace.spend(max(0, messages), max(0, size), now)
        lefts = [left for pace in self._paces if (left := pace.messages_left(now)) is not None]
        return max(pace.wait_s(now) for pace in self._paces), max(1, min([*lefts, self._burst_entries]))
