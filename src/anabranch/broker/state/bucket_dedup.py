"""Which publishes have been seen before in a segment with several entry buckets: ids by producer and lane. Pure.

Our producers cut a batch per bucket, and each bucket's batches have rising ids while those of a segment interleave
(bucket 0 has 1 and 3, bucket 1 has 2 and 4). One highest id per producer would call 1 and 3 stored once 2 and 4 are. So
each bucket is a lane of its own. An entry's lane is the one bucket that contains its range of key hashes; an entry
without a valid range, or with one over several buckets, is in the lane `WHOLE`:

- an entry in a bucket is a duplicate if its last named id is not above the last one of that bucket or of `WHOLE`;
- an entry in `WHOLE` is one if its id is not above the highest of all lanes.

So producers that name no ranges, or whose ids rise over all buckets, are judged as on any topic, and one that begins to
name ranges is judged by what it stored before.

That each lane rises holds only for entries that were judged. Ids of entries stored without deduplication may have gone
back, and an id below another lane's may be of a producer that started again: then every other lane is forgotten
(`noted`). Some entries may so be stored twice after deduplication is turned on, and none is taken for a stored one. The
stored state says whether the entries behind it were judged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from anabranch.broker.state.dedup import WHOLE, Deduplication, LaneIds, last_id
from anabranch.model.buckets import Splits
from anabranch.model.position import Position
from anabranch.model.segments import HASH_MAX
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.frames import Buffer

# Ids remembered per topic, in addition to the limit on producers: a segment may have a thousand buckets.
IDS_MAX: Final = 1_000_000


def lane_of(splits: Splits, metadata: pb.MessageMetadata) -> int:
    """The bucket of an entry, or `WHOLE`. Ranges that no producer can mean count as none."""
    low, high = metadata.entry_hash_min, metadata.entry_hash_max
    if not low <= high <= HASH_MAX:
        return WHOLE
    # A missing field reads as 0; asking costs as much as reading.
    if not (low or metadata.HasField("entry_hash_min")) or not (high or metadata.HasField("entry_hash_max")):
        return WHOLE
    bucket = bisect_right(splits, low)
    return bucket if bisect_right(splits, high, bucket) == bucket else WHOLE


def noted(ids: LaneIds, highest: int, lane: int, last: int) -> LaneIds:
    """`ids`, of which `highest` is the highest, with one more entry that was not judged."""
    if last <= highest:
        return {lane: last}
    ids[lane] = last
    return ids


@dataclass(frozen=True, slots=True)
class StoredLanes:
    """What the state of a topic with several buckets has in addition to the state of any topic."""

    # Whether all entries behind this state were judged.
    are_judged: bool = False
    pushed: Mapping[str, LaneIds] = field(default_factory=dict)
    # The last ids of producers whose entries were not judged.
    unjudged: Mapping[str, LaneIds] = field(default_factory=dict)

    def image(self, as_of: Position) -> dict[str, Any]:
        return {
            "as_of": as_of,
            "judged": self.are_judged,
            "producers": {name: _flat(ids) for name, ids in self.pushed.items()},
            "unjudged": {name: _flat(ids) for name, ids in self.unjudged.items()},
        }

    @staticmethod
    def of_image(image: Mapping[str, Any] | None, as_of: Position) -> StoredLanes:
        """Nothing if an earlier version stored the state since: it keeps this part as it was."""
        if image is None or tuple(image["as_of"]) != as_of:
            return StoredLanes()
        return StoredLanes(
            image["judged"],
            {name: _lanes(flat) for name, flat in image["producers"].items()},
            {name: _lanes(flat) for name, flat in image["unjudged"].items()},
        )


class BucketDeduplication(Deduplication):
    """The table of one topic. `pushed` and `confirmed` have the highest ids of all lanes."""

    __slots__ = ("_confirmed_lanes", "_ids", "_lanes", "_splits", "are_judged")

    def __init__(
        self,
        splits: Splits,
        table: Mapping[str, int] | None = None,
        covered: Mapping[str, Sequence[int]] | None = None,
        stored: StoredLanes | None = None,
    ) -> None:
        super().__init__(table, covered)
        stored = stored or StoredLanes()
        self._splits = splits
        self.are_judged = stored.are_judged
        # A producer without lanes was judged by an earlier version, which took all lanes for one.
        self._lanes: dict[str, LaneIds] = {
            name: dict(stored.pushed.get(name) or {WHOLE: last}) for name, last in self.pushed.items()
        }
        self._confirmed_lanes: dict[str, LaneIds] = {name: dict(ids) for name, ids in self._lanes.items()}
        self._ids = sum(map(len, self._lanes.values()))

    def lane_of(self, metadata: pb.MessageMetadata) -> int:
        return lane_of(self._splits, metadata)

    def is_duplicate(self, producer: str, last_named: int, lane: int = WHOLE) -> bool:
        if lane == WHOLE:
            return super().is_duplicate(producer, last_named)
        ids = self._lanes.get(producer)
        return ids is not None and last_named <= max(ids.get(lane, -1), ids.get(WHOLE, -1))

    def push(self, producer: str, last_named: int, covered: int = -1, lane: int = WHOLE) -> None:
        super().push(producer, last_named, covered)
        ids = self._lanes.get(producer)
        if ids is None:
            ids = self._lanes[producer] = {}
        before = ids.get(lane)
        if before is None:
            self._ids += 1
        ids[lane] = last_named if before is None else max(before, last_named)
        while self._ids > IDS_MAX and len(self.pushed) > 1:
            self.forget(next(iter(self.pushed)))

    def learn(self, producer: str, ids: LaneIds, covered: int = -1) -> None:
        self.forget(producer)
        for lane, last in ids.items():
            self.push(producer, last, covered, lane)

    def confirm(self, producer: str, last_named: int, lane: int = WHOLE) -> None:
        super().confirm(producer, last_named)
        if producer in self._lanes:
            ids = self._confirmed_lanes.setdefault(producer, {})
            ids[lane] = max(ids.get(lane, -1), last_named)

    def confirmed_by(self, producer: str) -> LaneIds:
        """The last confirmed id of each lane that has one: everything up to there is stored."""
        return dict(self._confirmed_lanes.get(producer, {}))

    def pushed_by(self, producer: str) -> LaneIds:
        return dict(self._lanes.get(producer, {}))

    def is_behind(self, producer: str) -> bool:
        confirmed = self._confirmed_lanes.get(producer, {})
        return any(last > confirmed.get(lane, -1) for lane, last in self._lanes.get(producer, {}).items())

    def forget(self, producer: str) -> None:
        super().forget(producer)
        self._ids -= len(self._lanes.pop(producer, ()))
        self._confirmed_lanes.pop(producer, None)

    def forget_all(self) -> None:
        super().forget_all()
        self._lanes.clear()
        self._confirmed_lanes.clear()
        self._ids = 0

    def lanes_image(self) -> Iterator[tuple[str, LaneIds]]:
        """What the table itself does not hold, for the topic's stored state."""
        return ((name, ids) for name, ids in self._lanes.items() if ids.keys() != {WHOLE})

    def replay(self, metadata: pb.MessageMetadata, entry: Buffer) -> None:
        last = last_id(metadata)
        if last is None:
            return
        name, lane = metadata.producer_name, self.lane_of(metadata)
        covered = self.covered_by(name, metadata, entry) if lane == WHOLE else -1
        if not self.are_judged and last <= self.pushed.get(name, -1):
            self.forget(name)
        self.push(name, last, covered, lane)
        self.confirm(name, last, lane)


def _flat(ids: LaneIds) -> list[int]:
    return [number for item in ids.items() for number in item]


def _lanes(flat: Sequence[int]) -> LaneIds:
    return dict(zip(flat[::2], flat[1::2], strict=True))
