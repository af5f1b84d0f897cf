"""The soak of Spark: nothing outlives it, and what it knows of queries is in Spark's own logs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from pyarrow import parquet
from soak.spark.driver import Setup
from soak.spark.outcome import Outcome
from soak.spark.warden import members

from harness.broker_process import until

ROOT = Path(__file__).parents[3]
CONDUCTOR = """
import subprocess, sys, time
from soak.spark.warden import watching
with watching(sys.argv[1]):
    # One that a child has started, in a session of its own, is one of the run's, too.
    sleep = "import subprocess; subprocess.run(['sleep', '600'])"
    subprocess.Popen([sys.executable, "-c", sleep], start_new_session=True)
    print("started", flush=True)
    if sys.argv[2] == "stay":
        time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, None])
def test_nothing_outlives_a_conductor_however_it_ends(how: signal.Signals | None) -> None:
    run = uuid4().hex
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    conductor = subprocess.Popen(
        [sys.executable, "-c", CONDUCTOR, run, "leave" if how is None else "stay"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.PIPE,
    )
    with conductor:
        try:
            assert conductor.stdout is not None
            assert conductor.stdout.readline() == b"started\n"
            if how is not None:
                until(lambda: len(members(run)) == 2, within_s=20)
                conductor.send_signal(how)
            conductor.wait(30)
        finally:
            conductor.kill()
    until(lambda: members(run) == [], within_s=20)


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup("pulsar://localhost", "t", "c", "n/p.*", str(tmp_path), "local[2,8]", 10)


def log(setup: Setup, name: str, *batches: int) -> None:
    folder = setup.path(name)
    folder.mkdir(parents=True, exist_ok=True)
    for batch in batches:
        (folder / str(batch)).touch()
        (folder / f".{batch}.crc").touch()


def write(setup: Setup, batch: int, *rows: tuple[int, str, int]) -> None:
    folder = setup.path(f"table/batch={batch:06d}")
    folder.mkdir(parents=True)
    found = [
        {
            "position": {"segment": 0, "ledger": 1, "entry": entry, "index": 0},
            "key": key,
            "number": number,
        }
        for entry, key, number in rows
    ]
    parquet.write_table(pa.Table.from_pylist(found), folder / "part-0.parquet")


def test_only_batches_that_are_over_count_though_spark_forgets_the_first(setup: Setup) -> None:
    outcome = Outcome(setup, "table")
    assert (outcome.committed, outcome.rows(), outcome.is_in_batch) == (-1, 0, False)
    log(setup, "table-checkpoint/offsets", 1, 2)
    log(setup, "table-checkpoint/commits", 1)
    write(setup, 1, (5, "a", 7), (4, "a", 6))
    write(setup, 2, (6, "a", 8))
    assert (outcome.committed, outcome.rows(), outcome.is_in_batch) == (1, 2, True)
    log(setup, "table-checkpoint/commits", 2)
    assert (outcome.rows(), outcome.is_in_batch) == (3, False)
    assert list(outcome.table()) == [("a", 6), ("a", 7), ("a", 8)]
