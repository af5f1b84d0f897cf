"""What flowed through the segments of this broker in the last hour, for the page. In memory, and bounded.

There is one sample for each segment and interval: the rates of that interval alone, so that a reader sees changes when
they happened (stored load records are averages over a minute). A stretch without traffic is kept as its first and last
sample. For segments at rest no samples are added: their last sample moves along with the rounds when it is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from anabranch.autoscale.load import IDLE, Load
from anabranch.model.names import TopicName
from anabranch.model.segments import SegmentId

KEPT_MS: Final = 3_600_000
# About 100 bytes each. Beyond this number, the oldest are dropped before their hour is over.
SAMPLES_MAX: Final = 400_000


class LoadSample(NamedTuple):
    at_ms: int
    load: Load


# By topic and segment: time and rates of each sample.
LoadImage = dict[str, dict[int, list[tuple[int, float, float, float, float]]]]


class LoadHistory:
    def __init__(self, *, kept_ms: int = KEPT_MS, samples_max: int = SAMPLES_MAX) -> None:
        self._kept_ms = kept_ms
        self._samples_max = samples_max
        self._samples: dict[TopicName, dict[SegmentId, deque[LoadSample]]] = {}
        # Segments at rest. Their last two samples are without traffic, and the last one stands for every round since.
        self._resting: dict[TopicName, set[SegmentId]] = {}
        self._round_ms = self._round_before_ms = 0
        self._count = 0

    def __len__(self) -> int:
        """How many samples are held."""
        return self._count

    def begin_round(self, at_ms: int) -> None:
        """Sets the time of the samples that follow, and of every segment at rest."""
        self._round_before_ms, self._round_ms = self._round_ms, at_ms

    def rest(self, topic: TopicName, number: SegmentId) -> None:
        """Nothing flows in this round and in those to come, until `wake`. To be called after `add`."""
        samples = self._samples[topic][number]
        if len(samples) < 2 or samples[-2].load is not IDLE or samples[-1].load is not IDLE:
            samples.append(LoadSample(self._round_ms, IDLE))
            self._count += 1
        self._resting.setdefault(topic, set()).add(number)

    def wake(self, topic: TopicName, number: SegmentId) -> None:
        """The round before this one was the last in which nothing flowed, or in which the segment existed."""
        resting = self._resting.get(topic)
        if resting is None or number not in resting:
            return
        self._extend(topic, number, self._round_before_ms)
        resting.remove(number)
        if not resting:
            del self._resting[topic]

    def _extend(self, topic: TopicName, number: SegmentId, at_ms: int) -> None:
        samples = self._samples[topic][number]
        if samples[-1].at_ms < at_ms:
            samples[-1] = LoadSample(at_ms, IDLE)

    def _extend_all(self, topic: TopicName) -> None:
        for number in self._resting.get(topic, ()):
            self._extend(topic, number, self._round_ms)

    def add(self, topic: TopicName, number: SegmentId, at_ms: int, load: Load) -> None:
        segments = self._samples.get(topic)
        if segments is None:
            segments = self._samples[topic] = {}
        samples = segments.get(number)
        if samples is None:
            samples = segments[number] = deque()
        if load is IDLE and len(samples) > 1 and samples[-1].load is IDLE and samples[-2].load is IDLE:
            samples[-1] = LoadSample(at_ms, load)
            return
        samples.append(LoadSample(at_ms, load))
        self._count += 1
        self._count -= _cut(samples, at_ms - self._kept_ms)
        if self._count > self._samples_max:
            self._shorten(at_ms)

    def since(self, topic: TopicName, at_ms: int) -> Mapping[SegmentId, Sequence[LoadSample]]:
        """The samples of each segment from that time on, oldest first; segments without any are left out.

        Between two samples without traffic nothing flowed.
        """
        self._extend_all(topic)
        found: dict[SegmentId, Sequence[LoadSample]] = {}
        for number, samples in sorted(self._samples.get(topic, {}).items()):
            if kept := [sample for sample in samples if sample.at_ms >= at_ms]:
                found[number] = kept
        return found

    def latest(self, topic: TopicName) -> Mapping[SegmentId, LoadSample]:
        """The last sample of each segment, sealed ones of the last hour included."""
        self._extend_all(topic)
        return {number: samples[-1] for number, samples in sorted(self._samples.get(topic, {}).items())}

    def image(self) -> LoadImage:
        """Every sample, to be written down."""
        for topic in self._samples:
            self._extend_all(topic)
        return {
            str(topic): {
                int(number): [(sample.at_ms, *sample.load.rates) for sample in samples]
                for number, samples in segments.items()
            }
            for topic, segments in self._samples.items()
        }

    def restore(self, image: LoadImage, ended_ms: int, now_ms: int) -> None:
        """Takes the samples of an earlier start that ended then. Nothing flowed since."""
        for name, segments in image.items():
            topic = TopicName.parse(name)
            for number, samples in segments.items():
                for at_ms, *rates in samples:
                    self.add(topic, SegmentId(number), at_ms, Load(*rates) if any(rates) else IDLE)
                for at_ms in (ended_ms + 1, now_ms):
                    self.add(topic, SegmentId(number), at_ms, IDLE)
        self.expire(now_ms)

    def expire(self, now_ms: int) -> None:
        """Drops samples older than the time that they are kept, also those of deleted segments and topics."""
        self._expire(now_ms - self._kept_ms)

    def _expire(self, before_ms: int) -> None:
        for topic in list(self._samples):
            self._extend_all(topic)
            segments = self._samples[topic]
            for number in list(segments):
                self._count -= _cut(segments[number], before_ms)
                if not segments[number]:
                    del segments[number]
            if not segments:
                del self._samples[topic]

    def _shorten(self, now_ms: int) -> None:
        """Too many samples: halves the time that they are kept until they are few enough. It never grows again."""
        while self._count > self._samples_max and self._kept_ms > 1:
            self._kept_ms //= 2
            self._expire(now_ms - self._kept_ms)


def _cut(samples: deque[LoadSample], before_ms: int) -> int:
    """Removes the samples before that time; returns their number."""
    gone = 0
    while samples and samples[0].at_ms < before_ms:
        # A long stretch without traffic that reaches into the time kept now begins there.
        if (
            len(samples) > 1
            and samples[0].load is IDLE
            and samples[1].load is IDLE
            and samples[1].at_ms >= before_ms
        ):
            samples[0] = LoadSample(before_ms, IDLE)
            break
        samples.popleft()
        gone += 1
    return gone
