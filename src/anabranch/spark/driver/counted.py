"""Steps of a segment ahead of a batch, and their sums. Pure."""

from __future__ import annotations

from collections import deque

from anabranch.model.cut import BEGINNING, MessagePosition
from anabranch.spark.plan.limit import Limit, Step, Steps


class Counted:
    """Steps are added at the end and forgotten at the beginning."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque()
        self._rows = 0
        self._bytes = 0
        self._start: MessagePosition = BEGINNING

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: Step) -> None:
        self._steps.append(step)
        self._rows += step.rows
        self._bytes += step.bytes

    def forget_before(self, start: MessagePosition) -> None:
        self._start = start
        while self._steps and self._steps[0].behind(self._steps[0].rows) <= start:
            step = self._steps.popleft()
            self._rows -= step.rows
            self._bytes -= step.bytes

    def is_enough(self, limit: Limit) -> bool:
        """Whether the limit has no room for all of them. Rows that an earlier batch has taken do not count."""
        rows, size = self._taken()
        return (limit.rows is not None and self._rows - rows > limit.rows) or (
            limit.bytes is not None and self._bytes - size > limit.bytes
        )

    def _taken(self) -> tuple[int, int]:
        """The rows and bytes of the first step that lie before the start."""
        if not self._steps or self._steps[0].at[:2] != self._start[:2]:
            return 0, 0
        first = self._steps[0]
        rows = max(0, min(first.rows, self._start[2] - first.at[2]))
        return rows, first.bytes * rows // first.rows if rows else 0

    def steps(self, until: MessagePosition) -> Steps:
        return Steps(tuple(self._steps), until)
