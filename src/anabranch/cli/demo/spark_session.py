"""A Spark session for the demo: all its files are in one folder, and none of its processes outlives the demo."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOP_MAX_S: Final = 20.0
# All cores, and a task may fail as often as on a cluster.
MASTER: Final = "local[*,4]"


def settings(scratch: Path) -> dict[str, str]:
    java = f"-Djava.io.tmpdir={scratch} -Dderby.system.home={scratch} -XX:-UsePerfData"
    return {
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.driver.extraJavaOptions": java,
        # All on one machine: host names are not needed, and need not resolve.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.python.authenticate.socketTimeout": "60s",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.sql.streaming.stopTimeout": f"{STOP_MAX_S:.0f}s",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    }


@contextmanager
def spark_session(folder: Path) -> Iterator[SparkSession]:
    from anabranch.pipelines.session import session

    scratch = folder / "spark"
    scratch.mkdir(exist_ok=True)
    before = _children("self")
    handler = signal.getsignal(signal.SIGINT)
    made = session("anabranch demo", MASTER, settings(scratch))
    try:
        spark = made.__enter__()
        # Spark's own handler of Ctrl-C asks Java to cancel jobs, in the middle of any other call.
        signal.signal(signal.SIGINT, handler)
        gateway: Any = spark.sparkContext._gateway
        yield spark
    except BaseException:
        _kill(_children("self") - before)
        _let_go(made)
        raise
    made.__exit__(None, None, None)
    _end(gateway)


def _children(process: int | str) -> set[int]:
    """The child processes of a process, where the system lists them."""
    with suppress(OSError):
        tasks = Path(f"/proc/{process}/task").iterdir()
        return {int(child) for task in tasks for child in (task / "children").read_text().split()}
    return set()


def _kill(children: set[int]) -> None:
    """Kills the processes and all that they have started. Their work is not needed any more."""
    doomed, found = set(children), set(children)
    while found:
        found = {one for child in found for one in _children(child)} - doomed
        doomed |= found
    for process in doomed:
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
    for child in children:
        with suppress(OSError):
            os.waitpid(child, 0)


def _let_go(made: Any) -> None:
    """Ends the session on the Python side, after its Java side is gone. Py4J would log that at length."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    with suppress(BaseException):
        made.__exit__(None, None, None)
    logging.disable(before)


def _end(gateway: Any) -> None:
    """Ends Spark's own process, which would outlive the session to serve the next one. There is none."""
    from pyspark import SparkContext

    held: Any = SparkContext
    if held._gateway is gateway:
        held._gateway = held._jvm = None
    gateway.shutdown()
    process = gateway.proc
    process.stdin.close()
    try:
        process.wait(STOP_MAX_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
