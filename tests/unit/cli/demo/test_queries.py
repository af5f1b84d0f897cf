"""How the demo follows a query: each micro-batch counts once, and one that fails goes on from its checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.cli.demo.queries import RESTARTS_MAX, SLOW_STARTS_MAX, Followed, progress_of


def told(batch: int, rows: int, state_rows: int | None = None, dropped: int = 0) -> dict[str, Any]:
    """As Spark tells of a micro-batch."""
    operators = (
        [] if state_rows is None else [{"numRowsTotal": state_rows, "numRowsDroppedByWatermark": dropped}]
    )
    return {
        "batchId": batch,
        "timestamp": f"2026-05-01T12:00:{batch:02d}.250Z",
        "numInputRows": rows,
        "durationMs": {"triggerExecution": 700, "addBatch": 500},
        "stateOperators": operators,
    }


class SparkQuery:
    """What Spark shows of a query, as far as it is looked at."""

    def __init__(self, *progress: dict[str, Any], error: str = "") -> None:
        self.recentProgress = list(progress)
        self.error = error
        self.asked = 0

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        return self.recentProgress[-1] if self.recentProgress else None

    @property
    def isActive(self) -> bool:
        return not self.error

    def exception(self) -> str | None:
        return self.error or None


def followed(*queries: SparkQuery) -> Followed:
    left = iter(queries)
    made = Followed("raw", lambda: next(left))
    made.query = made.start()
    return made


def test_a_batch_is_read_from_what_spark_tells() -> None:
    found = progress_of(told(3, 100, 7, dropped=2))
    assert (found.batch, found.rows, found.took_ms, found.state_rows, found.dropped) == (3, 100, 700, 7, 2)
    assert found.at_ms == 1_777_636_803_250
    assert progress_of(told(0, 5)).state_rows == 0


def test_batches_that_went_by_unseen_are_counted_and_none_twice() -> None:
    query = SparkQuery()
    one = followed(query)
    one.look()
    assert (one.rows, one.latest) == (0, None)
    query.recentProgress = [told(0, 10), told(1, 20), told(2, 30)]
    one.look()
    one.look()
    assert one.rows == 60
    query.recentProgress.append(told(3, 5))
    one.look()
    assert one.rows == 65


def test_an_idle_trigger_makes_room_for_the_batch_whose_number_it_has() -> None:
    query = SparkQuery(told(0, 10, 4), told(1, 0, 4))
    one = followed(query)
    one.look()
    query.recentProgress.append(told(1, 25, 9))
    one.look()
    assert one.rows == 35
    assert one.latest is not None
    assert one.latest.state_rows == 9


def test_a_query_that_failed_goes_on_and_keeps_its_count() -> None:
    one = followed(SparkQuery(told(0, 10), error="no worker\n at Java"), SparkQuery(told(1, 5)))
    one.look()
    assert one.failures == ["query raw failed: no worker"]
    one.look()
    assert one.rows == 15
    assert len(one.failures) == 1


@pytest.mark.parametrize(
    ("why", "often"),
    [("no worker", RESTARTS_MAX), ("Python worker failed to connect back.", SLOW_STARTS_MAX)],
)
def test_a_query_that_fails_again_and_again_fails_the_demo(why: str, often: int) -> None:
    one = followed(*(SparkQuery(error=why) for _ in range(often + 1)))
    for _ in range(often):
        one.look()
    with pytest.raises(RuntimeError, match=f"query raw failed: {why}"):
        one.look()
