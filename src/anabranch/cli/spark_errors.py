"""One line for a user out of the pages that Spark makes of an error."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from anabranch.errors import AnabranchError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# As Python prints an exception of ours at the end of a traceback, which Spark puts into the middle of its own.
_OURS: Final = re.compile(r"^(?:\w+Error: )?anabranch(?:\.\w+)+: (.+)$", re.MULTILINE)
_CONDITION: Final = re.compile(r"^\[[A-Z_.0-9]+\] ")


class JobFailed(AnabranchError):
    """A job on Spark ended with an error that is told in one line."""


# What they print is pages, of errors that end the job and are told in a line, or that Spark gets over by itself.
_TALKATIVE: Final = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter",
    "org.apache.spark.sql.execution.datasources.v2",
    "org.apache.spark.sql.execution.streaming",
)


def quiet(spark: SparkSession) -> None:
    context: Any = spark.sparkContext
    log4j = context._jvm.org.apache.logging.log4j
    for name in _TALKATIVE:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


def told(error: BaseException) -> str:
    """What our code said, if it was that; else the first line of what Spark said."""
    if isinstance(error, ConnectionError):
        return "Spark's own process is gone: it was killed, or had too little memory (--conf spark.driver.memory=4g)"
    text = str(error)
    if (found := _OURS.search(text)) is not None:
        return found[1].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines[0].startswith("An error occurred while calling"):
        lines[0:1] = []  # Py4J's, and says nothing.
    return _CONDITION.sub("", lines[0].removeprefix(": ")) if lines else type(error).__name__
