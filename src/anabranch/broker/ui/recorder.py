"""What the page remembers of the last hour: traffic and backlog of the broker and its topics, and vanished segments.

In memory and bounded; a restart forgets it. Counters that the broker keeps anyway are read now and then, all topics a
few at a time. The samples of single segments are `LoadHistory`'s.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from anabranch.broker.ui.memory import LayoutMemory
from anabranch.model.names import Domain, TopicName
from anabranch.model.scalable import scalable_name

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.topic import Topic

KEPT_MS: Final = 3_600_000
# About 100 bytes each. Beyond them the topics that were quiet for longest lose their past.
SAMPLES_MAX: Final = 200_000
TOPICS_PER_TURN: Final = 100


class Total(NamedTuple):
    """Rates since the sample before, and how many messages wait to be acknowledged."""

    at_ms: int
    messages_in: float
    messages_out: float
    bytes_in: float
    bytes_out: float
    backlog: int

    @property
    def is_still(self) -> bool:
        return not (self.messages_in or self.messages_out or self.bytes_in or self.bytes_out)


class Totals:
    """Samples of one topic, or of the broker, oldest first. A stretch without change is its first and last sample."""

    def __init__(self) -> None:
        self._samples: deque[Total] = deque()

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, total: Total) -> int:
        """By how many samples there are more now."""
        samples = self._samples
        before = len(samples)
        if (
            before > 1
            and total.is_still
            and samples[-1].is_still
            and samples[-2].is_still
            and samples[-1].backlog == total.backlog == samples[-2].backlog
        ):
            samples[-1] = total
        else:
            samples.append(total)
        while samples[0].at_ms < total.at_ms - KEPT_MS:
            samples.popleft()
        return len(samples) - before

    def since(self, at_ms: int) -> Sequence[Total]:
        """Those after that moment."""
        return [total for total in self._samples if total.at_ms > at_ms]

    @property
    def latest(self) -> Total | None:
        return self._samples[-1] if self._samples else None

    @property
    def moved_ms(self) -> int:
        """When there last was traffic."""
        return next((total.at_ms for total in reversed(self._samples) if not total.is_still), 0)


@lru_cache(maxsize=20_000)
def shown_name(name: TopicName) -> TopicName:
    """The topic that people know it as: of a segment its scalable topic, of a partition the whole."""
    return scalable_name(name) if name.domain is Domain.SEGMENT else name.base


class Recorder:
    """`sample` is called at every interval."""

    def __init__(self, broker: Broker, *, samples_max: int = SAMPLES_MAX) -> None:
        self.broker_totals = Totals()
        self.layouts = LayoutMemory(KEPT_MS)
        self._broker = broker
        self._samples_max = samples_max
        self._topics: dict[TopicName, Totals] = {}
        self._count = 0
        self._counted: dict[Topic, tuple[int, int, int, int]] = {}
        self._looked = broker.loop.time()

    @property
    def interval_s(self) -> float:
        return self._broker.config.scalable_topic_load_report_interval

    def totals(self, topic: TopicName) -> Totals:
        return self._topics.get(topic) or Totals()

    async def sample(self) -> None:
        now, now_ms = self._broker.loop.time(), self._broker.now_ms()
        seconds, self._looked = max(1e-3, now - self._looked), now
        sums: dict[TopicName, list[int]] = {}
        counted: dict[Topic, tuple[int, int, int, int]] = {}
        for number, (name, topic) in enumerate(self._broker.loaded().items()):
            if number % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
            counters = counted[topic] = topic.counters
            before = self._counted.get(topic, (0, 0, 0, 0))
            total = sums.setdefault(shown_name(name), [0] * 5)
            for index in range(4):
                total[index] += max(0, counters[index] - before[index])
            total[4] += sum(s.backlog() for s in topic.subscriptions.values() if not s.is_drained)
        self._counted = counted
        whole = [sum(column) for column in zip(*sums.values(), strict=True)] or [0] * 5
        self.broker_totals.add(_total(now_ms, whole, seconds))
        for number, (shown, amounts) in enumerate(sums.items()):
            if number % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
            self._add(shown, _total(now_ms, amounts, seconds))
        self._forget(set(sums), now_ms)
        self._remember_layouts(now_ms)

    def _add(self, topic: TopicName, total: Total) -> None:
        totals = self._topics.get(topic)
        if totals is None:
            totals = self._topics[topic] = Totals()
        self._count += totals.add(total)

    def _forget(self, open_now: set[TopicName], now_ms: int) -> None:
        for topic, totals in list(self._topics.items()):
            latest = totals.latest
            if topic not in open_now and (latest is None or latest.at_ms < now_ms - KEPT_MS):
                self._drop(topic)
        if self._count > self._samples_max:
            for topic in sorted(self._topics, key=lambda t: (self._topics[t].moved_ms, t)):
                if self._count <= self._samples_max * 3 // 4:
                    break
                self._drop(topic)

    def _drop(self, topic: TopicName) -> None:
        self._count -= len(self._topics.pop(topic))

    def _remember_layouts(self, now_ms: int) -> None:
        if self._broker.scalable is None:
            return
        for topic, controller in self._broker.scalable.controllers.items():
            if controller.state is not None and not controller.state.is_classic:
                self.layouts.see(topic, controller.state.topic, now_ms)
        self.layouts.forget(now_ms)


def _total(at_ms: int, amounts: list[int], seconds: float) -> Total:
    messages_in, bytes_in, messages_out, bytes_out, backlog = amounts
    return Total(
        at_ms, messages_in / seconds, messages_out / seconds, bytes_in / seconds, bytes_out / seconds, backlog
    )
