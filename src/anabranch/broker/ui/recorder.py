"""What the page shows of the last hour: traffic and backlog of the broker and its topics, and pruned segments.

In memory and bounded; `last_hour.py` carries it over a restart. It reads counters that the broker keeps anyway at
intervals, some topics at a time. For topics at rest no samples are added: their last sample moves along when it is
read. `LoadHistory` has the samples of single segments.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple
from weakref import ref

from anabranch.broker.topic.topic import Topic
from anabranch.broker.ui.memory import LayoutMemory
from anabranch.controller.service import ScalableTopics
from anabranch.model.names import Domain, TopicName
from anabranch.model.scalable import scalable_name

KEPT_MS: Final = 3_600_000
# About 100 bytes each. Beyond this number the topics that were quiet for longest lose their samples.
SAMPLES_MAX: Final = 200_000
TOPICS_PER_TURN: Final = 500


class Total(NamedTuple):
    """Rates since the last sample, and how many messages are unacknowledged."""

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
        self.is_resting = False  # Whether the last sample stands for every round since.

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, total: Total) -> int:
        """Adds a sample; returns by how many the number of samples grew."""
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

    @property
    def may_rest(self) -> bool:
        """Whether the last two samples are equal: another equal one would change nothing but the time."""
        if len(self._samples) < 2:
            return False
        one, other = self._samples[-2], self._samples[-1]
        return one.is_still and other.is_still and one.backlog == other.backlog

    def extend(self, at_ms: int) -> int:
        """The topic was at rest until then. Returns by how many the number of samples grew."""
        samples = self._samples
        before = len(samples)
        if samples[-1].at_ms < at_ms:
            samples[-1] = samples[-1]._replace(at_ms=at_ms)
        while len(samples) > 2 and samples[0].at_ms < at_ms - KEPT_MS:
            samples.popleft()
        if samples[0].at_ms < at_ms - KEPT_MS:
            samples[0] = samples[0]._replace(at_ms=at_ms - KEPT_MS)
        return len(samples) - before

    def since(self, at_ms: int) -> Sequence[Total]:
        """The samples after that time."""
        return [total for total in self._samples if total.at_ms > at_ms]

    @property
    def latest(self) -> Total | None:
        return self._samples[-1] if self._samples else None

    @property
    def moved_ms(self) -> int:
        """The time of the last traffic."""
        return next((total.at_ms for total in reversed(self._samples) if not total.is_still), 0)


@lru_cache(maxsize=20_000)
def shown_name(name: TopicName) -> TopicName:
    """The name that users know: for a segment its scalable topic, for a partition the partitioned topic."""
    return scalable_name(name) if name.domain is Domain.SEGMENT else name.base


class _Counted:
    """An open topic as of the last round."""

    __slots__ = ("backlog", "counters", "name", "shown", "waiting")

    def __init__(self, name: TopicName, shown: TopicName) -> None:
        self.name = name
        self.shown = shown
        # Unacknowledged messages of each durable subscription.
        self.waiting: dict[str, int] = {}
        self.counters = (0, 0, 0, 0)
        self.backlog = 0


class Recorder:
    """`sample` is to be called at every interval. `scalable` is None while scalable topics are turned off."""

    def __init__(
        self,
        loaded: Callable[[], Mapping[TopicName, Topic]],
        scalable: ScalableTopics | None,
        now_ms: Callable[[], int],
        clock: Callable[[], float],
        *,
        samples_max: int = SAMPLES_MAX,
    ) -> None:
        """`loaded` returns the topics that are open."""
        self.broker_totals = Totals()
        self.layouts = LayoutMemory(KEPT_MS)
        self._loaded = loaded
        self._scalable = scalable
        self._now_ms = now_ms
        self._clock = clock
        self._samples_max = samples_max
        self._topics: dict[TopicName, Totals] = {}
        self._count = 0
        # Topics that are closed before the next round are not kept in memory until then.
        self._counted: dict[ref[Topic], _Counted] = {}
        # By the name that users know: how many are open, and the backlog of all of them.
        self._open: Counter[TopicName] = Counter()
        self._backlogs: Counter[TopicName] = Counter()
        self._awake: dict[TopicName, None] = {}  # Open, and not at rest.
        self._closed: dict[TopicName, None] = {}  # Not open any more, and still remembered.
        # What waited, when the last start ended cleanly, in topics that have not been opened since.
        self._unopened: dict[TopicName, dict[str, int]] = {}
        self._unopened_of: Counter[TopicName] = Counter()
        self._unopened_backlogs: Counter[TopicName] = Counter()
        self._opened_meanwhile: set[TopicName] = set()
        self._looked = clock()
        self._sampled_ms = 0

    # -- over a restart

    def image(self) -> tuple[list[Total], dict[str, list[Total]], dict[str, dict[str, int]]]:
        """Samples of the broker, of each topic, and what waits in each topic by subscription."""
        waiting = {str(known.name): known.waiting for known in self._counted.values()}
        waiting |= {str(name): told for name, told in self._unopened.items()}
        return (
            list(self.broker_totals.since(0)),
            {str(topic): list(self.totals(topic).since(0)) for topic in list(self._topics)},
            waiting,
        )

    def restore(
        self,
        broker: Sequence[Total],
        topics: Mapping[str, Sequence[Total]],
        waiting: Mapping[str, Mapping[str, int]],
        ended_ms: int,
        now_ms: int,
    ) -> None:
        """Takes what an earlier start recorded, which ended then. Called before the first sample."""
        for name, told in waiting.items():
            topic = TopicName.parse(name)
            self._unopened[topic] = dict(told)
            self._unopened_of[shown_name(topic)] += 1
            self._unopened_backlogs[shown_name(topic)] += sum(told.values())
        for name, samples in topics.items():
            totals = self._topics[TopicName.parse(name)] = Totals()
            self._count += sum(map(totals.add, _with_stop(samples, ended_ms, now_ms)))
            self._closed[TopicName.parse(name)] = None
        for total in _with_stop(broker, ended_ms, now_ms):
            self.broker_totals.add(total)

    def opened(self, name: TopicName) -> None:
        """To be called when a topic is opened: from the next sample on its figures are its own."""
        if name in self._unopened:
            self._opened_meanwhile.add(name)

    def unopened(self) -> Mapping[TopicName, Mapping[str, int]]:
        """What waits, by subscription, in topics that have not been opened since the start."""
        return {name: told for name, told in self._unopened.items() if name not in self._opened_meanwhile}

    def backlog(self, topic: TopicName) -> int | None:
        """Messages that wait in all its open parts and in those remembered; None if there are neither."""
        if not self._open[topic] and not self._unopened_of[topic]:
            return None
        return self._backlogs[topic] + self._unopened_backlogs[topic]

    def closed(self, topics: Iterable[Topic]) -> None:
        """The broker has closed these topics for good: what waits in them will not change."""
        for topic in topics:
            known = self._counted.get(ref(topic)) or self._opened(topic.name, topic)
            _, known.waiting = _waiting(topic)

    def _drop_opened(self) -> None:
        for name in self._opened_meanwhile:
            shown = shown_name(name)
            self._unopened_of[shown] -= 1
            self._unopened_backlogs[shown] -= sum(self._unopened.pop(name).values())
        self._opened_meanwhile.clear()

    # -- samples

    def totals(self, topic: TopicName) -> Totals:
        found = self._topics.get(topic)
        if found is None:
            return Totals()
        if found.is_resting:
            self._count += found.extend(self._sampled_ms)
        return found

    async def sample(self) -> None:
        now, now_ms = self._clock(), self._now_ms()
        seconds, self._looked = max(1e-3, now - self._looked), now
        self._drop_opened()
        moved = await self._moved()
        whole = [sum(column) for column in zip(*moved.values(), strict=True)] or [0] * 4
        backlog = self._backlogs.total() + self._unopened_backlogs.total()
        self.broker_totals.add(_total(now_ms, whole, backlog, seconds))
        for number, shown in enumerate({**self._awake, **moved}):
            if number % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
            backlog = self._backlogs[shown] + self._unopened_backlogs[shown]
            self._add(shown, _total(now_ms, moved.get(shown, _NOTHING), backlog, seconds))
        self._sampled_ms = now_ms
        self._forget(now_ms)
        await self._remember_layouts(now_ms)

    async def _moved(self) -> dict[TopicName, Sequence[int]]:
        """What flowed since the last round, for topics with traffic or a changed backlog."""
        moved: dict[TopicName, Sequence[int]] = {}
        loaded = self._loaded()
        for number, (name, topic) in enumerate(loaded.items()):
            if number % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
            counters = topic.counters
            backlog, waiting = _waiting(topic)
            known = self._counted.get(ref(topic))
            if known is None:
                known = self._opened(name, topic)
            elif (known.counters, known.backlog, known.waiting) == (counters, backlog, waiting):
                continue
            flowed = (max(0, new - old) for new, old in zip(counters, known.counters, strict=True))
            sums = moved.get(known.shown, _NOTHING)
            moved[known.shown] = [one + more for one, more in zip(sums, flowed, strict=True)]
            self._backlogs[known.shown] += backlog - known.backlog
            known.counters, known.backlog, known.waiting = counters, backlog, waiting
        for gone in self._counted.keys() - set(map(ref, loaded.values())):
            self._gone(self._counted.pop(gone))
        return {shown: amounts for shown, amounts in moved.items() if self._open[shown]}

    def _opened(self, name: TopicName, topic: Topic) -> _Counted:
        known = self._counted[ref(topic)] = _Counted(name, shown_name(name))
        self._open[known.shown] += 1
        self._closed.pop(known.shown, None)
        return known

    def _gone(self, known: _Counted) -> None:
        shown = known.shown
        self._backlogs[shown] -= known.backlog
        self._open[shown] -= 1
        self._wake(shown)
        self._awake[shown] = None
        if not self._open[shown]:
            del self._open[shown], self._backlogs[shown], self._awake[shown]
            if shown in self._topics:
                self._closed[shown] = None

    def _add(self, topic: TopicName, total: Total) -> None:
        totals = self._topics.get(topic)
        if totals is None:
            totals = self._topics[topic] = Totals()
        self._wake(topic)
        self._count += totals.add(total)
        totals.is_resting = totals.may_rest
        if totals.is_resting:
            self._awake.pop(topic, None)
        else:
            self._awake[topic] = None

    def _wake(self, topic: TopicName) -> None:
        """The last round was the last one in which the topic was at rest."""
        totals = self._topics.get(topic)
        if totals is not None and totals.is_resting:
            self._count += totals.extend(self._sampled_ms)
            totals.is_resting = False

    def _forget(self, now_ms: int) -> None:
        for topic in list(self._closed):
            latest = self._topics[topic].latest
            if latest is None or latest.at_ms < now_ms - KEPT_MS:
                self._drop(topic)
        if self._count > self._samples_max:
            for topic in sorted(self._topics, key=lambda t: (self._topics[t].moved_ms, t)):
                if self._count <= self._samples_max * 3 // 4:
                    break
                self._drop(topic)

    def _drop(self, topic: TopicName) -> None:
        self._count -= len(self._topics.pop(topic))
        self._closed.pop(topic, None)
        if self._open[topic]:
            self._awake[topic] = None

    async def _remember_layouts(self, now_ms: int) -> None:
        if self._scalable is None:
            return
        controllers = self._scalable.controllers
        worth_seeing = [
            found for topic in self.layouts.topics if (found := controllers.get(topic)) is not None
        ]
        for number, controller in enumerate(list(controllers.values())):
            if number % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
            if controller.has_sealed:
                worth_seeing.append(controller)
        for controller in worth_seeing:
            state = controller.state
            if state is not None and not state.is_classic:
                self.layouts.see(controller.topic, state.topic, now_ms)
        self.layouts.forget(now_ms)


def _waiting(topic: Topic) -> tuple[int, dict[str, int]]:
    """Unacknowledged messages: of all subscriptions together, and of each durable one."""
    whole, durable = 0, {}
    for subscription in topic.subscriptions.values():
        waits = 0 if subscription.is_drained else subscription.backlog_messages()
        whole += waits
        if subscription.is_durable:
            durable[subscription.name] = waits
    return whole, durable


def _with_stop(samples: Sequence[Total], ended_ms: int, now_ms: int) -> Sequence[Total]:
    """The samples, and that nothing flowed between then and now."""
    if not samples:
        return samples
    still = Total(ended_ms + 1, 0.0, 0.0, 0.0, 0.0, samples[-1].backlog)
    return [*samples, still, still._replace(at_ms=max(now_ms, ended_ms + 2))]


_NOTHING: Final[Sequence[int]] = (0, 0, 0, 0)


def _total(at_ms: int, amounts: Sequence[int], backlog: int, seconds: float) -> Total:
    messages_in, bytes_in, messages_out, bytes_out = amounts
    return Total(
        at_ms, messages_in / seconds, messages_out / seconds, bytes_in / seconds, bytes_out / seconds, backlog
    )
