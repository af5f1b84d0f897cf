"""What flows through each bundle of this broker, summed over its open topics. Kept in memory, and never sent as a
whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

from anabranch.balance.core.load import BundleLoad
from anabranch.model.bundles import BundleName
from anabranch.model.names import TopicName

# The event loop goes on with other work after so many topics.
TOPICS_PER_TURN: Final = 500


class MeasuredConsumer(Protocol):
    @property
    def rates(self) -> tuple[float, ...]:
        """Messages and bytes sent a second, and more."""


class MeasuredSubscription(Protocol):
    @property
    def consumers(self) -> Collection[MeasuredConsumer]: ...


class MeasuredTopic(Protocol):
    """An open topic, stored or not."""

    @property
    def name(self) -> TopicName: ...

    @property
    def rates_in(self) -> tuple[float, float]: ...

    @property
    def producers(self) -> Collection[str]: ...

    @property
    def subscriptions(self) -> Mapping[str, MeasuredSubscription]: ...


class _Sum:
    __slots__ = ("bytes_in", "bytes_out", "msgs_in", "msgs_out", "sessions", "topics")

    def __init__(self) -> None:
        self.msgs_in = self.msgs_out = self.bytes_in = self.bytes_out = 0.0
        self.topics = self.sessions = 0

    def add(self, topic: MeasuredTopic) -> None:
        self.topics += 1
        msgs, size = topic.rates_in
        self.msgs_in += msgs
        self.bytes_in += size
        self.sessions += len(topic.producers)
        for subscription in topic.subscriptions.values():
            for consumer in subscription.consumers:
                self.msgs_out += consumer.rates[0]
                self.bytes_out += consumer.rates[1]
                self.sessions += 1

    def load(self, bundle: str) -> BundleLoad:
        return BundleLoad(
            bundle=bundle,
            msg_rate_in=self.msgs_in,
            msg_rate_out=self.msgs_out,
            throughput_in=self.bytes_in,
            throughput_out=self.bytes_out,
            topics=self.topics,
            sessions=self.sessions,
        )


async def bundle_figures(
    topics: Iterable[MeasuredTopic],
    bundle_of: Callable[[TopicName], BundleName | None],
    owned: Iterable[BundleName],
) -> dict[str, BundleLoad]:
    """The load of each owned bundle, and of any other that has an open topic here, as while it moves."""
    sums: dict[str, _Sum] = {str(bundle): _Sum() for bundle in owned}
    for number, topic in enumerate(list(topics), 1):
        bundle = bundle_of(topic.name)
        if bundle is not None:
            name = str(bundle)
            found = sums.get(name)
            if found is None:
                found = sums[name] = _Sum()
            found.add(topic)
        if number % TOPICS_PER_TURN == 0:
            await asyncio.sleep(0)
    return {name: found.load(name) for name, found in sums.items()}
