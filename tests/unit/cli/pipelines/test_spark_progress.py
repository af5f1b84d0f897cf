"""How long the start of a second query is put off: until the first has begun, and no longer."""

from __future__ import annotations

import time
from typing import Any

import pytest

from anabranch.cli.pipelines.spark_progress import until_begun


class Query:
    """As much of Spark's as is asked: it tells of a batch, or ends, when it has been looked at often enough."""

    def __init__(self, *, begins_after: int = 1_000_000, ends_after: int = 1_000_000) -> None:
        self._begins_after, self._ends_after = begins_after, ends_after
        self.looks = 0

    @property
    def isActive(self) -> bool:
        return self.looks < self._ends_after

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        self.looks += 1
        return {"batchId": 0} if self.looks >= self._begins_after else None


@pytest.mark.parametrize("query", [Query(begins_after=3), Query(ends_after=3)], ids=["begins", "ends"])
def test_the_wait_is_over_with_the_first_batch_or_the_querys_end(query: Any) -> None:
    until_begun(query, within_s=60)
    assert query.looks == 3


def test_a_query_that_finds_nothing_new_is_not_waited_for_for_long() -> None:
    query: Any = Query()
    before = time.monotonic()
    until_begun(query, within_s=0.2)
    assert time.monotonic() - before >= 0.2
    assert query.looks > 1
