"""Data plane. How far each entry bucket has been read, and where to read next. Pure.

One reading serves all buckets that have got equally far. A bucket in which too much waits is passed over: it remembers
the first entry that it has not collected, the others read on, and it catches up by reading again from there. So a slow
bucket costs a position, however far behind it is.

A bucket *follows* the reading while the reading has not left out anything that the bucket has yet to collect; it has
then collected everything below the reading position and below its own `since`. Otherwise it has collected everything
below `since`. Buckets at different places are served in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anabranch.broker.dispatch.bucket_queues import Bucket
from anabranch.model.position import Position


class BucketScan:
    """`at` is the reading position."""

    def __init__(self, buckets: Sequence[Bucket], at: Position) -> None:
        self._buckets = buckets
        self._bursts = 0
        self.at = at
        # Whether buckets have got to different places.
        self.is_split = False

    def collected(self, bucket: Bucket) -> Position:
        """Every entry of the bucket below this was sent or waits in it."""
        return max(bucket.since, self.at) if bucket.is_following else bucket.since

    def collected_by_all(self) -> Position:
        """Every bucket has collected everything below this."""
        return min(map(self.collected, self._buckets)) if self.is_split else self.at

    def pass_over(self, bucket: Bucket, at: Position) -> None:
        """Leaves out the entry at the reading position, and what follows it: the bucket will read that later."""
        bucket.since = at
        bucket.is_following = False
        self.is_split = True

    def move(self, at: Position) -> None:
        """Reads on elsewhere."""
        for bucket in self._buckets:
            bucket.since = self.collected(bucket)
            bucket.is_following = bucket.since >= at
        self.at = at
        self.is_split = any(not one.is_following or one.since > at for one in self._buckets)

    def reached(self, at: Position) -> None:
        """The reading has got to `at` without leaving anything out."""
        self.at = at
        if not self.is_split:
            return
        self._bursts += 1
        self.is_split = False
        for bucket in self._buckets:
            if bucket.is_following and bucket.since <= at:
                bucket.served = self._bursts
            else:
                self.is_split = True

    def wanted(self, bucket: Bucket, aside_max: int) -> Position | None:
        """From where the bucket wants to read. None: it has nowhere to put what it would read."""
        if bucket.is_open:
            return self.collected(bucket)
        if (
            bucket.awaited is not None
            and len(bucket.aside) < aside_max
            and (collected := self.collected(bucket)) <= bucket.awaited
        ):
            # An entry waits in another bucket until this one has got to it.
            return collected
        return None

    def choose(self, aside_max: int, unread: Callable[[Position], Position | None]) -> Position | None:
        """Where to read next; the bucket that was served longest ago comes first. `unread` returns the first unread
        entry from a position on, None at the end."""
        best: tuple[int, Position] | None = None
        chosen: Bucket | None = None
        for bucket in self._buckets:
            wanted = self.wanted(bucket, aside_max)
            if wanted is None or (best is not None and (bucket.served, wanted) >= best):
                continue
            if unread(wanted) is not None:
                best, chosen = (bucket.served, wanted), bucket
        if best is None or chosen is None:
            return None
        # What it reads may all wait, but it has had its turn.
        chosen.served = self._bursts + 1
        return best[1]
