"""How far a checkpoint consumer has come, and where each segment is read from because of it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from anabranch.client.errors import BadCheckpoint
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import SegmentId

# Ledger, entry and place in a batch (-1: not in one) of the last message taken.
Position = tuple[int, int, int]

VERSION: Final = 1


class Edge(Enum):
    """Where a segment is read from if not behind a position."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OVER = "over"  # It was read to its end.


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Positions of the segments being read, and the sealed ones that were read to their end.

    `encode` gives bytes to keep; equal checkpoints give equal bytes.
    """

    positions: Mapping[int, Position] = field(default_factory=dict)
    finished: frozenset[int] = frozenset()

    def encode(self) -> bytes:
        value = {
            "version": VERSION,
            "positions": {str(n): list(self.positions[n]) for n in sorted(self.positions)},
            "finished": sorted(self.finished),
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes) -> Checkpoint:
        try:
            value: Any = json.loads(data)
            if value["version"] != VERSION:
                raise BadCheckpoint(
                    f"a checkpoint of version {value['version']}; this release reads {VERSION}"
                )
            positions = {int(n): (int(p[0]), int(p[1]), int(p[2])) for n, p in value["positions"].items()}
            return Checkpoint(positions, frozenset(int(n) for n in value["finished"]))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise BadCheckpoint(f"not a checkpoint: {error}") from None


# Where a consumer starts that has no checkpoint yet.
Start = Checkpoint | Edge


def start_of(layout: SegmentLayout, number: SegmentId, start: Start, since_epoch: int) -> Position | Edge:
    """Where to read a segment from. `since_epoch` is the layout's epoch when the consumer was opened."""
    if not isinstance(start, Checkpoint):
        segment = layout.segments.get(number)
        if start is Edge.EARLIEST or segment is None or segment.created_epoch > since_epoch:
            return Edge.EARLIEST
        return Edge.OVER if 0 < segment.sealed_epoch <= since_epoch else Edge.LATEST
    if number in start.finished:
        return Edge.OVER
    if number in start.positions:
        return start.positions[number]
    if number in layout.segments:
        reached = start.positions.keys() | start.finished
        # A child is read only after all of its ancestors, so one that was reached says they are over.
        if any(child in reached for child in layout.descendants(number)):
            return Edge.OVER
    return Edge.EARLIEST


def readable(layout: SegmentLayout, finished: frozenset[SegmentId]) -> list[SegmentId]:
    """The segments that may be read now: not finished, and with no ancestor that is not."""
    return [
        number
        for number in layout.segments
        if number not in finished and layout.ancestors(number) <= finished
    ]
