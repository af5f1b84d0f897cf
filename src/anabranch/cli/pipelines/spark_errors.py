"""One line for a user, extracted from Spark's long errors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from anabranch.errors import AnabranchError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Python's form of our exceptions at the end of a traceback, which Spark puts into the middle of its own.
_OURS: Final = re.compile(r"^(?:\w+Error: )?anabranch(?:\.\w+)+: (.+)$", re.MULTILINE)
_CONDITION: Final = re.compile(r"^\[[A-Z_.0-9]+\] ")


class JobFailed(AnabranchError):
    """A job on Spark ended with an error; the message is one line."""


# These loggers print pages about errors that end the job and are reported in a line, or that Spark recovers from.
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
    """The message of our own code, if the error is ours; else the first line of Spark's message."""
    if isinstance(error, ConnectionError):
        return "Spark's own process is gone: it was killed, or had too little memory (--conf spark.driver.memory=4g)"
    text = str(error)
    if (found := _OURS.search(text)) is not None:
        return found[1].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines[0].startswith("An error occurred while calling"):
        lines[0:1] = []  # Py4J's line, without information.
    return _CONDITION.sub("", lines[0].removeprefix(": ")) if lines else type(error).__name__
