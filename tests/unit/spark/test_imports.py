"""What Spark's processes load: each starts once per query at least, so every module counts."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SOURCE = "from pyspark_anabranch import DefaultSource"
_ANALYSED = f"{_SOURCE}; DefaultSource({{'serviceUrl': 'pulsar://a:1', 'topic': 'a'}}).schema()"


@pytest.mark.parametrize(
    ("work", "unwanted"),
    [
        (_ANALYSED, ["numba", "pyarrow", "asyncio", "anabranch.client.client", "anabranch.spark.driver"]),
        (
            f"{_SOURCE}; import anabranch.spark.slice_reader",
            ["anabranch.client.client", "anabranch.spark.driver", "anabranch.spark.broker_reader"],
        ),
    ],
    ids=["analysing a query", "reading files"],
)
def test_does_not_load(work: str, unwanted: list[str]) -> None:
    before = "import pyspark.sql.datasource, pyspark.sql.streaming.datasource, sys; before = {*sys.modules}"
    told = f"print(*({{*sys.modules}} - before) & {{*{unwanted!r}}})"
    found = subprocess.run(
        [sys.executable, "-c", "; ".join([before, work, told])], check=True, capture_output=True, text=True
    )
    assert found.stdout.split() == []
