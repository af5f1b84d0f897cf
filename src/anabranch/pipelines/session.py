"""A Spark session for a pipeline, with suitable settings; or an error that says what is missing and how to get it.

Spark is imported only once it is known to be installed: its own message for a missing Java is a page of Java.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from anabranch.errors import AnabranchError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_HELP: Final = (
    "Spark needs a Java runtime, 17 or later, and there is none: install one (Debian and Ubuntu: "
    "apt install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME"
)


class NoSpark(AnabranchError):
    """Spark cannot run here; the message says what to do about it."""


def missing_packages() -> str | None:
    """What to install for pipelines; None if everything is installed."""
    absent = [name for name in ("numpy", "pyarrow", "pyspark") if importlib.util.find_spec(name) is None]
    return f"this needs {', '.join(absent)}: pip install 'anabranch[spark]'" if absent else None


def missing() -> str | None:
    """Why Spark cannot run here, and the remedy; None if it can."""
    if (why := missing_packages()) is not None:
        return why
    home = os.environ.get("JAVA_HOME")
    if home and not Path(home, "bin", "java").exists():
        return f"JAVA_HOME is {home}, and there is no bin/java in it: set it to a Java runtime, 17 or later"
    if not home and shutil.which("java") is None:
        return JAVA_HELP
    return None


@contextmanager
def session(
    name: str, master: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session that ends with the block; or the active session, unchanged. NoSpark if there cannot be one.

    Without a master the session uses the one of spark-submit, or all cores of this machine.
    """
    if (why := missing()) is not None:
        raise NoSpark(why)
    from pyspark.sql import SparkSession

    # Spark warns of pandas, which nothing here uses, whenever Arrow data passes through it.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    before = SparkSession.getActiveSession()
    if before is not None:
        yield before
        return
    spark = _started(name, master, {**_SETTINGS, **(settings or {})})
    try:
        spark.sparkContext.setLogLevel("ERROR")
        yield spark
    finally:
        # If Java has died there is nothing left to stop, and its error is being raised.
        with suppress(OSError):
            spark.stop()


def _started(name: str, master: str | None, settings: Mapping[str, str]) -> SparkSession:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # Workers on this machine must use the same Python, with the same packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder: Any = SparkSession.builder
    builder = builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    elif "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit sets it.
        builder = builder.master("local[*]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        spark: SparkSession = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        told = master or "local[*]"
        raise NoSpark(f"Spark does not start with master {told}: {_first_line(error)}") from error
    return spark


_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "16",
    # Rows here are mostly whole topics: small batches keep memory low and give early results.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
}


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
