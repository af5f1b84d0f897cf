"""What a job that fills tables says when it is done."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.cli.pipelines.table_progress import TableProgress
from anabranch.pipelines.tables.to_parquet import Compacted, WrittenBatch


def summary(*news: WrittenBatch | Compacted) -> str:
    # All of a session that it looks at before it draws.
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: None))
    progress = TableProgress(spark, "t", is_quiet=True)
    for one in news:
        progress.told(one)
    return re.sub(r"; [0-9.,]+ s$", "; 1.0 s", progress.summary())


@pytest.mark.parametrize(
    ("news", "said"),
    [
        ((), "nothing new"),
        (
            (WrittenBatch(0, 5, 1, 2000, ("2026-05-01",)),),
            "5 rows of 2026-05-01, in 1 new file, 2.0 kB; 1.0 s",
        ),
        (
            (
                WrittenBatch(0, 5, 2, 500, ("2026-05-01", "2026-05-03")),
                WrittenBatch(1, 1, 1, 500, ("2026-05-02",)),
            ),
            "6 rows of 3 days, 2026-05-01 to 2026-05-03, in 3 new files, 1.0 kB; 1.0 s",
        ),
        # Delta and Iceberg tell no files.
        ((WrittenBatch(0, 40, 0, 0, ()),), "40 rows; 1.0 s"),
        ((Compacted("2026-05-01", 5, 1),), "5 small files of 1 day made into 1"),
    ],
)
def test_the_summary_tells_what_is_known(news: tuple[Any, ...], said: str) -> None:
    assert summary(*news) == said
