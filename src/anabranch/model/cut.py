"""A cut: how far a topic has been read, in every stretch of its key range. Pure; the one encoder of checkpoints.

A cut is a set of places. A place says how far one segment was read: up to a position, or to its end. Two segments that
share a hash are ancestor and descendant, the older with the smaller id. For segments without a place it follows:

- a place says that every older segment in its range is over, because a child is read only after all its ancestors;
- a newer segment in the range of a place is not begun yet;
- where there is no place at all, reading starts at the earliest message there is. So the empty cut is "earliest".

A member of a group reads children of segments that others have finished. Its places are `is_apart`: they say nothing
about older segments. Merging the cuts of all members brings both facts together, and the flag goes.

Partitions of a classic topic may hold any key: they have the whole range, and order among them means nothing.

Places that newer ones cover are dropped, so a cut is as wide as the layout, not as long as its history. Equal cuts have
equal text; `docs/checkpoints.md` describes it.

A cut holds the id of its topic, because another topic of the same name has segments of the same numbers and ranges.
Cuts of earlier releases, cuts made with brokers that send no ids, and the empty cut, which fits every topic, have no
topic id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from anabranch.errors import AnabranchError
from anabranch.model.names import InvalidName
from anabranch.model.segments import WHOLE, HashRange, Segment, SegmentId

# The position of the first message not read yet: ledger, entry, index in the entry's batch (0 outside a batch).
MessagePosition = tuple[int, int, int]

BEGINNING: Final[MessagePosition] = (0, 0, 0)
VERSION: Final = 2
# The version of cuts without a topic id: all cuts were written like this before topics had ids.
NAMELESS_VERSION: Final = 1

_LONG_MAX: Final = 2**63 - 1
_INDEX_MAX: Final = 2**31 - 1
_HASHES: Final = 1 << 16
_TOPIC_ID: Final = re.compile(r"[0-9a-z-]{1,64}")


class BadCheckpoint(AnabranchError):
    """These bytes are no checkpoint, or one of a later release, or of another topic."""


class TopicMadeAgain(BadCheckpoint):
    """The topic was deleted after this checkpoint was written, and its name now belongs to another topic."""


def at_end(sealed_epoch: int = 0) -> MessagePosition:
    """Where an entry bucket stands that was read to its segment's end, while others were not: behind every position.

    `sealed_epoch` is that of the layout that sealed the segment, 0 if it is unknown.
    """
    return (_LONG_MAX, sealed_epoch, 0)


def is_at_end(position: MessagePosition) -> bool:
    return position[0] == _LONG_MAX


def behind(ledger: int, entry: int, index: int, *, is_last_of_entry: bool) -> MessagePosition:
    """The position after that message."""
    return (ledger, entry + 1, 0) if is_last_of_entry else (ledger, entry, index + 1)


@dataclass(frozen=True, slots=True)
class Place:
    """How far one segment was read: behind `at`, or to its end."""

    segment: SegmentId
    range: HashRange
    epoch: int = 0  # The epoch of the layout that introduced the segment: the one that sealed its parents.
    # One position for each entry bucket (PIP-486) in their order, or one for all, as where all are equal. Empty once
    # the segment is read to its end.
    at: tuple[MessagePosition, ...] = (BEGINNING,)
    sealed_epoch: int = 0  # Once it is read to its end: the epoch of the layout that sealed it, 0 if unknown.
    is_apart: bool = False  # Says nothing about older segments.
    is_classic: bool = (
        False  # A partition: it holds any key, and is neither older nor newer than other partitions.
    )
    # The entry (ledger, entry) to read again from, because chunks of messages not complete at `at` begin there.
    chunks_from: tuple[int, int] | None = None

    @property
    def is_over(self) -> bool:
        return not self.at

    def over(self, sealed_epoch: int = 0) -> Place:
        return replace(self, at=(), sealed_epoch=sealed_epoch, chunks_from=None)

    def moved(self, at: MessagePosition, chunks_from: tuple[int, int] | None = None) -> Place:
        return replace(self, at=(at,), chunks_from=chunks_from)

    def standing(self, at: tuple[MessagePosition, ...], chunks_from: tuple[int, int] | None = None) -> Place:
        """The place with one position for each bucket."""
        if all(map(is_at_end, at)):
            return self.over(max(epoch for _, epoch, _ in at))
        return replace(self, at=at[:1] if len(set(at)) == 1 else at, chunks_from=chunks_from)

    def upto(self, at: MessagePosition) -> Place:
        """The place once every bucket has been read that far; some may have been read further."""
        return self.standing(tuple(max(own, at) for own in self.at))

    @property
    def first(self) -> MessagePosition:
        """Everything before it was read. Not to be asked for once all was."""
        return min(self.at)

    def each(self, buckets: int) -> tuple[MessagePosition, ...]:
        """The position of each bucket, of so many. Not to be asked for once all was read."""
        return self._spread(buckets)

    @staticmethod
    def of(segment: Segment, *, is_apart: bool = False) -> Place:
        """The place at the beginning of that segment."""
        is_classic = bool(segment.classic_topic)
        return Place(
            segment.id,
            WHOLE if is_classic else segment.range,
            segment.created_epoch,
            is_apart=is_apart and not is_classic,
            is_classic=is_classic,
        )

    def is_before(self, other: Place) -> bool:
        """Whether this segment is an ancestor of the other: they share a hash, and this one is older."""
        return (
            self.segment < other.segment
            and not (self.is_classic and other.is_classic)
            and self.range.overlaps(other.range)
        )

    def joined(self, other: Place) -> Place:
        """The place that combines what both say about their common segment."""
        if (self.range, self.epoch, self.is_classic) != (other.range, other.epoch, other.is_classic):
            raise BadCheckpoint(
                f"these cuts disagree about segment {self.segment}: they are of different topics"
            )
        is_apart = self.is_apart and other.is_apart
        if self.is_over or other.is_over:
            return replace(self.over(max(self.sealed_epoch, other.sealed_epoch)), is_apart=is_apart)
        buckets = max(len(self.at), len(other.at))
        one, two = self._spread(buckets), other._spread(buckets)
        at = tuple(max(pair) for pair in zip(one, two, strict=True))
        # From the place that came furthest. Reading again from too early only costs time.
        furthest = [p for p, own in ((self, one), (other, two)) if own == at] or [self, other]
        chunks = min((p.chunks_from for p in furthest if p.chunks_from is not None), default=None)
        return replace(self, is_apart=is_apart).standing(at, chunks)

    def _spread(self, buckets: int) -> tuple[MessagePosition, ...]:
        if len(self.at) not in (1, buckets):
            raise BadCheckpoint(
                f"these cuts disagree about the entry buckets of segment {self.segment}: "
                f"{len(self.at)} and {buckets}"
            )
        return self.at * buckets if len(self.at) == 1 else self.at


@dataclass(frozen=True, slots=True)
class Cut:
    """Places in the order of their segments, normalised on construction."""

    places: tuple[Place, ...] = ()
    topic_id: str = ""  # "" if unknown, and for the empty cut.

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", _normal(self.places))
        if not self.places:
            object.__setattr__(self, "topic_id", "")

    def get(self, number: int) -> Place | None:
        """The place of that segment, if it has one of its own."""
        return next((place for place in self.places if place.segment == number), None)

    @staticmethod
    def merge(*cuts: Cut) -> Cut:
        """The union of the cuts: a message counts as read if any of them says so.

        The cut of a group is the union of the cuts of all its members and of the group's last cut: members say nothing
        about segments that were not theirs.
        """
        topics = {cut.topic_id for cut in cuts} - {""}
        if len(topics) > 1:
            raise BadCheckpoint(
                f"these cuts are of different topics ({', '.join(sorted(topics))}): merge those of one topic, and if "
                "it was deleted and made again, only those written since"
            )
        joined: dict[SegmentId, Place] = {}
        for place in (place for cut in cuts for place in cut.places):
            known = joined.get(place.segment)
            joined[place.segment] = place if known is None else known.joined(place)
        # A cut without a topic id was either the start of those that have one, or agrees with them in every segment
        # they share.
        return Cut(tuple(joined.values()), next(iter(topics), ""))

    # -- text

    def encode(self) -> bytes:
        """JSON with sorted keys and no white space: equal cuts give equal bytes."""
        value: dict[str, Any] = {"places": [_place_json(place) for place in self.places]}
        value |= (
            {"topic": self.topic_id, "version": VERSION} if self.topic_id else {"version": NAMELESS_VERSION}
        )
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()

    @staticmethod
    def decode(data: bytes | str) -> Cut:
        """BadCheckpoint for anything that `encode` could not have written, spaces and order of keys aside."""
        try:
            value = json.loads(data, object_pairs_hook=_object)
            if not isinstance(value, dict):
                raise BadCheckpoint("not a checkpoint: it is no JSON object")
            version = _integer(value.pop("version", None), "version", _LONG_MAX)
            if version > VERSION:
                raise BadCheckpoint(
                    f"a checkpoint of version {version}, and this release reads up to {VERSION}: "
                    "it was made by a later release, use that one"
                )
            places = value.pop("places", None)
            topic = _topic_id(value.pop("topic", None)) if version == VERSION else ""
            if version < NAMELESS_VERSION or value or not isinstance(places, list) or (topic and not places):
                raise BadCheckpoint(
                    f"not a checkpoint: it has no version, no places, or more: {sorted(value)}"
                )
            read = tuple(_read_place(place) for place in places)
        except (ValueError, RecursionError) as error:
            raise BadCheckpoint(f"not a checkpoint: {error}") from None
        if len({place.segment for place in read}) != len(read):
            raise BadCheckpoint("not a checkpoint: it names a segment twice")
        return Cut(read, topic)


# -- normal form


def uncovered(span: HashRange, covers: Iterable[HashRange]) -> list[HashRange]:
    """The stretches of `span` that no range of `covers` contains."""
    left: list[HashRange] = []
    at = span.start
    for cover in sorted(covers):
        if cover.end < at:
            continue
        if cover.start > span.end:
            break
        if cover.start > at:
            left.append(HashRange(at, cover.start - 1))
        at = cover.end + 1
    if at <= span.end:
        left.append(HashRange(at, span.end))
    return left


def _normal(places: Iterable[Place]) -> tuple[Place, ...]:
    ordered = sorted(
        (place if len(place.at) < 2 else place.standing(place.at, place.chunks_from) for place in places),
        key=lambda place: place.segment,
    )
    if _is_plain(ordered):
        return tuple(ordered)
    known = _without_needless_flags(ordered)
    kept: list[Place] = []
    for n, place in enumerate(known):
        newer = [other.range for other in known[n + 1 :] if not other.is_apart and place.is_before(other)]
        if newer and not place.is_over:
            place = place.over()
        if not place.is_over or uncovered(place.range, newer):
            kept.append(place)
    return tuple(kept)


def _is_plain(ordered: list[Place]) -> bool:
    """Whether no two places share a stretch and none is apart, as in nearly all cuts."""
    if any(place.is_apart for place in ordered):
        return False
    if all(place.is_classic for place in ordered):
        return True
    spans = sorted(place.range for place in ordered)
    return all(one.end < other.start for one, other in pairwise(spans))


def _without_needless_flags(ordered: list[Place]) -> list[Place]:
    """Clears `is_apart` of a place once all parents of its segment are over and not apart themselves."""
    known: list[Place] = []
    partitions_over = {place.segment for place in ordered if place.is_classic and place.is_over}
    for place in ordered:
        if place.is_apart:
            parents = [
                p
                for p in known
                if p.is_over and not p.is_apart and p.is_before(place) and _is_child(place, p)
            ]
            are_all = not uncovered(place.range, (p.range for p in parents))
            if any(p.is_classic for p in parents):
                # A migrated topic has the number of its partitions as its first epoch.
                are_all = partitions_over >= set(range(place.epoch))
            if are_all:
                place = replace(place, is_apart=False)
        known.append(place)
    return known


def _is_child(place: Place, parent: Place) -> bool:
    """Whether `place` is a child: the epoch that seals parents is the one that introduces their children."""
    return 0 < place.epoch == parent.sealed_epoch


# -- JSON


def _place_json(place: Place) -> dict[str, Any]:
    value: dict[str, Any] = {"epoch": place.epoch, "range": str(place.range), "segment": place.segment}
    if place.is_over:
        value["over"] = place.sealed_epoch
    else:
        value["at"] = [list(position) for position in place.at]
    if place.is_apart:
        value["apart"] = True
    if place.is_classic:
        value["classic"] = True
    if place.chunks_from is not None:
        value["chunks"] = list(place.chunks_from)
    return value


def _read_place(value: object) -> Place:
    if not isinstance(value, dict):
        raise BadCheckpoint("not a checkpoint: a place is no JSON object")
    fields = dict(value)
    number = SegmentId(_integer(fields.pop("segment", None), "segment", _LONG_MAX))
    what = f"segment {number}"
    span = _range(fields.pop("range", None), what)
    epoch = _integer(fields.pop("epoch", None), what, _LONG_MAX)
    is_over = "over" in fields
    sealed = _integer(fields.pop("over", 0), what, _LONG_MAX)
    at = () if is_over else _positions(fields.pop("at", None), what)
    is_apart, is_classic = _flag(fields.pop("apart", None), what), _flag(fields.pop("classic", None), what)
    chunks = fields.pop("chunks", None)
    chunks_from = None if chunks is None else _integers(chunks, what, (_LONG_MAX, _LONG_MAX))
    if fields or (is_classic and (is_apart or span != WHOLE)) or (is_over and chunks_from is not None):
        raise BadCheckpoint(f"not a checkpoint: {what} has fields that do not go together")
    place = Place(number, span, epoch, at, sealed, is_apart, is_classic)
    place = place if is_over else place.standing(at)
    if place.is_over and not is_over and chunks_from is not None:
        raise BadCheckpoint(f"not a checkpoint: {what} has fields that do not go together")
    return place if chunks_from is None else replace(place, chunks_from=(chunks_from[0], chunks_from[1]))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise BadCheckpoint("not a checkpoint: a key comes twice")
    return value


def _topic_id(value: object) -> str:
    if not isinstance(value, str) or _TOPIC_ID.fullmatch(value) is None:
        raise BadCheckpoint("not a checkpoint: it lacks the id of its topic")
    return value


def _integer(value: object, what: str, highest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= highest:
        raise BadCheckpoint(f"not a checkpoint: {what} lacks a whole number within 0..{highest}")
    return value


def _integers(value: object, what: str, highest: tuple[int, ...]) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) != len(highest):
        raise BadCheckpoint(f"not a checkpoint: {what} lacks a list of {len(highest)} numbers")
    return tuple(_integer(item, what, limit) for item, limit in zip(value, highest, strict=True))


def _positions(value: object, what: str) -> tuple[MessagePosition, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= _HASHES:
        raise BadCheckpoint(f"not a checkpoint: {what} has neither positions nor an end")
    limits = (_LONG_MAX, _LONG_MAX, _INDEX_MAX)
    return tuple((p[0], p[1], p[2]) for p in (_integers(item, what, limits) for item in value))


def _range(value: object, what: str) -> HashRange:
    parts = value.split("-") if isinstance(value, str) else []
    if len(parts) != 2 or any(len(p) != 4 or not set(p) <= set("0123456789abcdef") for p in parts):
        raise BadCheckpoint(f"not a checkpoint: {what} lacks a range such as 0000-7fff")
    try:
        return HashRange(int(parts[0], 16), int(parts[1], 16))
    except InvalidName as error:
        raise BadCheckpoint(f"not a checkpoint: {what}: {error}") from None


def _flag(value: object, what: str) -> bool:
    if value is not None and value is not True:
        raise BadCheckpoint(f"not a checkpoint: {what} has a flag that is not true")
    return bool(value)
