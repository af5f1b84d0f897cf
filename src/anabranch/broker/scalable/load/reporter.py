"""Writes the load of the active segments that this broker owns to the store, for the topics' leaders.

One timer serves all segments. It reads counters that the data plane keeps anyway; the data plane does not know of this
module. A record is written only when the load has changed (`autoscale.reporting.should_write`), since the store's time
of its last change tells for how long a segment has been cold.

A segment that is closed while this broker owns it, or was left with a load by an earlier run, is followed until its
average has come down to zero: else a leader would take the last report of an unused segment for its load.

A segment through which nothing flowed for a whole window, and that has nothing to write, is at rest: a round only
compares its counters.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from anabranch.autoscale.load import IDLE, Load, UnstampedLoad
from anabranch.autoscale.policy import InvalidPolicy, ScalePolicy
from anabranch.autoscale.reporting import should_write
from anabranch.broker.catalog.owners import Owners
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.catalog.segment_records import segment_by_topic
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.policy.namespace import NamespacePolicies
from anabranch.broker.scalable.load.history_records import Course, SampledStretch
from anabranch.broker.scalable.load.history_topic import HistoryTopic
from anabranch.broker.scalable.load.rates import NOTHING, Counters, Rates
from anabranch.broker.scalable.load.recent import LoadHistory
from anabranch.broker.scalable.load.scale_policies import ScalePolicies
from anabranch.broker.scalable.ports import ServedTopics
from anabranch.broker.topic.topic import Topic
from anabranch.controller.feed import TopicFeed
from anabranch.controller.records import Records
from anabranch.errors import AnabranchError
from anabranch.metadata.errors import AlreadyExists, MetadataError, NotEmpty, VersionConflict
from anabranch.metadata.port import MetadataStore
from anabranch.model.bundles import BundleName
from anabranch.model.names import Domain, NamespaceName, TopicName
from anabranch.model.scalable import (
    TOPICS,
    BadRecord,
    ScalableTopic,
    load_path,
    loads_path,
    namespace_path,
    segment_of_load_path,
    topic_of_path,
    topic_path,
)
from anabranch.model.segments import Segment, SegmentId, segment_of

log = logging.getLogger(__name__)

SEGMENTS_PER_TURN: Final = 50
AT_REST_PER_TURN: Final = 1_000
RECORDS_PER_TURN: Final = 500
_EXPIRED_EVERY: Final = 6


class _Followed:
    """A segment whose load is followed."""

    __slots__ = (
        "counters",
        "course",
        "is_known",
        "is_resting",
        "name",
        "number",
        "of",
        "rates",
        "span",
        "stored",
        "topic",
        "unstamped",
        "unstamped_until",
        "version",
    )

    def __init__(self, name: TopicName, topic: Topic | None) -> None:
        self.name = name
        self.of, self.span, self.number = segment_of(name)
        self.topic = topic  # None while the segment is not open here.
        self.counters: Counters = NOTHING
        self.rates: Rates | None = None  # Set once the record is known.
        self.course: Course | None = None  # Set if the segment is open here and its load is published.
        self.is_known = (
            False  # Whether `stored` and `version` match the store, as far as this broker can know.
        )
        self.stored: Load | None = None
        self.version: int | None = None
        self.is_resting = False
        # The entries in no single bucket that were counted, and until when they are of late.
        self.unstamped = 0
        self.unstamped_until = float("-inf")

    def is_unstamped(self, now: float, window_s: float) -> bool:
        """Whether entries of the last window were in no single entry bucket. Until the window is over after opening,
        the stored record stands for the time before."""
        stamps = None if self.topic is None else self.topic.stamps
        if stamps is None:
            return False
        if stamps.unstamped != self.unstamped:
            self.unstamped = stamps.unstamped
            self.unstamped_until = now + window_s
        return now < self.unstamped_until


class LoadReporter:
    def __init__(
        self,
        config: BrokerConfig,
        metadata: MetadataStore,
        resources: Resources,
        owners: Owners,
        feed: TopicFeed,
        served: ServedTopics,
        policies: ScalePolicies,
        now_ms: Callable[[], int],
        clock: Callable[[], float],
        *,
        interval_s: float,
        window_s: float,
        change: float,
        published: HistoryTopic | None = None,
    ) -> None:
        """`published` is called with what flows through every segment open here."""
        self.history = LoadHistory()
        self._published = published
        self._told_change = config.load_history_rate_change_threshold
        self._told_samples = max(1, round(config.load_history_heartbeat_interval / interval_s))
        self.interval_s = interval_s
        self._metadata = metadata
        self._records = Records(metadata)
        self._resources = resources
        self._owners = owners
        self._feed = feed
        self._served = served
        self._now_ms = now_ms
        self._policies = policies
        self._window_s = window_s
        self._change = change
        self._followed: dict[TopicName, _Followed] = {}
        # The topics' own overrides, until their records change.
        self._overrides: dict[TopicName, ScalableTopic] = {}
        self._changes = 0  # How many changes of records were reported.
        self._clock = clock
        self._looked = self._clock()
        self._looked_ms = self._before_ms = now_ms()  # The times of this round, and of the one before.
        self._rounds = 0
        self._moved: set[NamespaceName] = set()  # Those with bundles that have another owner.
        # Topics whose policy has changed, so that a load may now be worth writing: some topics, or all of them.
        self._woken: set[TopicName] = set()
        self._are_all_woken = False
        self._stop_listening: list[Callable[[], None]] = []

    def start(self) -> None:
        self._stop_listening = [
            self._feed.listen_everywhere(self._record_changed),
            self._resources.on_policies_change(self._policies_changed),
        ]

    def close(self) -> None:
        for stop in self._stop_listening:
            stop()
        now_ms = self._now_ms()
        for followed in self._followed.values():
            self._finish(followed, now_ms)

    def _policies_changed(self, namespace: NamespaceName, policies: NamespacePolicies | None) -> None:
        self._are_all_woken = True

    def _record_changed(self, topic: TopicName | None) -> None:
        self._changes += 1
        if topic is None:
            self._overrides.clear()
            self._are_all_woken = True
        else:
            self._overrides.pop(topic, None)
            self._woken.add(topic)

    @property
    def followed(self) -> frozenset[TopicName]:
        """The segments that the last round sampled, less those that have come to rest since."""
        return frozenset(self._followed)

    # -- a round

    async def sample(self) -> None:
        """Samples every segment that is not at rest."""
        before, self._looked = self._looked, self._clock()
        now, now_ms = self._looked, self._now_ms()
        self._before_ms, self._looked_ms = self._looked_ms, now_ms
        self.history.begin_round(now_ms)
        work = await self._gathered(before)
        for first in range(0, len(work), SEGMENTS_PER_TURN):
            turn = work[first : first + SEGMENTS_PER_TURN]
            await asyncio.gather(*(self._look(one, before, now, now_ms) for one in turn))
            await asyncio.sleep(0)
        self._rounds += 1
        if self._rounds % _EXPIRED_EVERY == 0:
            self.history.expire(now_ms)

    async def _gathered(self, before: float) -> list[_Followed]:
        """The segments to sample now: those open here and active, and those not yet at rest."""
        are_all_woken, self._are_all_woken = self._are_all_woken, False
        woken, self._woken = self._woken, set()
        work: dict[TopicName, _Followed] = {}
        for number, known in enumerate(list(self._followed.values()), 1):
            if number % AT_REST_PER_TURN == 0:
                await asyncio.sleep(0)
            topic = known.topic
            if known.is_resting:
                assert topic is not None
                if (
                    topic.counters == known.counters
                    and not (topic.is_closed or topic.is_sealed)
                    and not (are_all_woken or known.of in woken)
                ):
                    continue
                self._wake(known, before)
            if topic is not None and (topic.is_closed or topic.is_sealed):
                self._finish(known, self._looked_ms)
            if self._goes_on(known):
                work[known.name] = known
            else:
                self._followed.pop(known.name, None)
        for number, (name, topic) in enumerate(self._served.loaded().items(), 1):
            if number % AT_REST_PER_TURN == 0:
                await asyncio.sleep(0)
            if name.domain is not Domain.SEGMENT or topic.is_sealed or topic.is_closed:
                continue
            last = self._followed.get(name)
            if last is None or last.topic is not topic:
                if last is not None:
                    if last.is_resting:
                        self._wake(last, before)
                    self._finish(last, self._looked_ms)
                fresh = self._followed[name] = work[name] = _Followed(name, topic)
                fresh.counters = topic.counters
                if self._published is not None:
                    fresh.course = Course(self._before_ms)
        return list(work.values())

    def _goes_on(self, known: _Followed) -> bool:
        """Whether the segment is still sampled; updates its counters, and whether it is open here."""
        topic = known.topic
        if topic is not None:
            if topic.is_sealed:
                return False
            if not topic.is_closed:
                known.counters = topic.counters
                return True
            known.topic = None
        return known.stored not in (None, IDLE) and self._owners.is_mine(known.name)

    def _wake(self, known: _Followed, before: float) -> None:
        assert known.rates is not None
        known.is_resting = False
        known.rates.rest(before)
        if known.course is not None:
            known.course.rest(self._before_ms)
        self.history.wake(known.of, known.number)

    def _rest(self, followed: _Followed) -> None:
        """Puts the segment to rest if nothing moves any more and its record is known."""
        assert followed.rates is not None
        if followed.topic is not None and followed.is_known and followed.rates.is_still(followed.counters):
            followed.is_resting = True
            self.history.rest(followed.of, followed.number)

    async def _look(self, followed: _Followed, before: float, now: float, now_ms: int) -> None:
        try:
            if not followed.is_known:
                await self._read(followed)
            if followed.rates is None:
                # The counters began when the segment was opened, which was after the last round.
                followed.rates = Rates(self._window_s, before, followed.stored)
                if followed.stored is not None and followed.stored.is_unstamped:
                    followed.unstamped_until = now + self._window_s
            load, lately = followed.rates.look(now, followed.counters)
            if followed.is_unstamped(now, self._window_s):
                load = UnstampedLoad(*load.rates)
            self.history.add(followed.of, followed.number, now_ms, lately)
            if followed.course is not None:
                await self._follow(followed, followed.course, now_ms)
            if load == followed.stored:
                self._rest(followed)
            elif should_write(load, followed.stored, await self._policy(followed.of), self._change):
                await self._write(followed, load)
            elif followed.topic is not None:
                self._rest(followed)
            elif load == IDLE:
                # Closed and at rest; its small load was never worth a record. The record may also be gone.
                self._followed.pop(followed.name, None)
        except MetadataError as error:
            # The last write is in doubt, so the record is read before the next one.
            followed.is_known = False
            log.debug("%s: reporting the load failed: %s", followed.name, error)
        except AnabranchError as error:
            log.info("%s: reporting the load failed: %s", followed.name, error)

    # -- publishing

    async def _follow(self, followed: _Followed, course: Course, now_ms: int) -> None:
        counters = followed.counters
        # Only a load that changes is compared with limits.
        policy = await self._policy(followed.of) if course.moved(counters) else self._policies.broker
        self._tell(
            followed, course.look(now_ms, counters, policy.merge, self._told_change, self._told_samples)
        )

    def _finish(self, followed: _Followed, now_ms: int) -> None:
        """The segment is closed, sealed or owned by another broker; publishes what flowed since the last round."""
        course, topic = followed.course, followed.topic
        if course is not None and topic is not None:
            if followed.is_resting:
                course.rest(self._looked_ms)
            self._tell(followed, course.finish(now_ms, topic.counters))
            followed.course = None

    def _tell(self, followed: _Followed, stretches: list[SampledStretch]) -> None:
        if self._published is not None and followed.topic is not None:
            for stretch in stretches:
                self._published.load(followed.of, followed.number, followed.span, stretch, followed.topic)

    async def _policy(self, topic: TopicName) -> ScalePolicy:
        record = self._overrides.get(topic)
        if record is None:
            changes = self._changes
            record = await self._records.get(topic)
            # Not if the record changed during the read; and nothing is kept for deleted topics.
            if record is not None and changes == self._changes:
                self._overrides[topic] = record
        try:
            return (
                await self._policies.resolved(topic, None if record is None else record.auto_scale)
            ).policy
        except InvalidPolicy:
            # No decision is made for that topic. Its load is shown nevertheless.
            return self._policies.broker

    # -- the record

    async def _read(self, followed: _Followed) -> None:
        found = await self._metadata.get(load_path(followed.of, followed.number))
        followed.stored = followed.version = None
        if found is not None:
            followed.version = found.version
            with contextlib.suppress(BadRecord):
                followed.stored = Load.decode(found.value) if found.value else None
        followed.is_known = True

    async def _write(self, followed: _Followed, load: Load) -> None:
        """Writes only over the known version: a record that was deleted with its segment must not come back."""
        path = load_path(followed.of, followed.number)
        try:
            if followed.version is not None:
                written = await self._metadata.put(path, load.encode(), if_version=followed.version)
            elif followed.topic is not None:
                written = await self._metadata.create(path, load.encode())
                await self._check_wanted(followed)
            else:
                return
        except (AlreadyExists, VersionConflict):
            followed.is_known = False
            if followed.topic is None:
                followed.stored = None  # Another broker's, or gone: no longer ours to bring down.
            return
        followed.stored, followed.version = load, written.version

    async def _check_wanted(self, followed: _Followed) -> None:
        """A segment may be deleted while its first record is written. Then the record is removed too."""
        record = await self._records.get(followed.of)
        if record is None or segment_by_topic(record, followed.name) is None:
            await remove_load(self._metadata, followed.name, topic_too=record is None)

    # -- loads left by an earlier run

    def owners_changed(self, bundles: Iterable[BundleName]) -> bool:
        """Notes that segments of these bundles have another owner. Whether `adopt_moved` is to be called."""
        is_noted = bool(self._moved)
        self._moved.update(bundle.namespace for bundle in bundles)
        return not is_noted and bool(self._moved)

    async def adopt_moved(self) -> None:
        """As `adopt`, for the namespaces of bundles that have moved since: no move reads every topic of the store."""
        while self._moved:
            namespace = min(self._moved)
            self._moved.discard(namespace)
            try:
                await self.adopt(namespace_path(namespace))
            except BaseException:
                self._moved.add(namespace)
                raise

    async def adopt(self, below: str = TOPICS) -> None:
        """Follows the segments that this broker owns, does not have open, and whose last record has a load."""
        stored = dict(await self._metadata.scan(below))
        # The last topic: records of its segments are adjacent, and decoding a large topic takes a while.
        known: TopicName | None = None
        segments: Mapping[SegmentId, Segment] = {}
        for count, (path, found) in enumerate(stored.items(), 1):
            if count % RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)
            number, topic = segment_of_load_path(path), topic_of_path(path)
            if number is None or topic is None or (node := stored.get(topic_path(topic))) is None:
                continue
            try:
                load = Load.decode(found.value)
                if load == IDLE:
                    continue
                if topic != known:
                    await asyncio.sleep(0)
                    known, segments = topic, {}
                    segments = ScalableTopic.decode(node.value).layout.segments
            except BadRecord as error:
                log.error("record %s is unreadable: %s", path, error)
                continue
            segment = segments.get(number)
            if segment is None or not segment.is_active:
                continue
            name = segment.topic(topic)
            if name not in self._followed and self._owners.is_mine(name):
                followed = self._followed[name] = _Followed(name, None)
                followed.stored, followed.version, followed.is_known = load, found.version, True


async def remove_load(metadata: MetadataStore, name: TopicName, *, topic_too: bool = False) -> None:
    """Removes the load record of a deleted segment, and the folders it was in unless they hold others."""
    topic, _, number = segment_of(name)
    path = load_path(topic, number)
    paths = [path, path.rpartition("/")[0]]
    if topic_too:
        paths += [loads_path(topic), topic_path(topic)]
    with contextlib.suppress(NotEmpty):
        for one in paths:
            found = await metadata.get(one) if one == topic_path(topic) else None
            if found is not None and found.value:
                return  # Created again meanwhile.
            await metadata.delete(one)
