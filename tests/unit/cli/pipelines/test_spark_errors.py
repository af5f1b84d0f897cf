"""One line for a user out of the pages that Spark makes of an error."""

from __future__ import annotations

import pytest

from anabranch.cli.pipelines.spark_errors import told

OURS = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to stage failure: Task 0 failed
  File "/somewhere/declared.py", line 97, in _told
    raise _told(batch, *bad[0])
anabranch.spark.values.decode.BadSchemaValue: a message does not fit the schema: no number. Set decodeErrors=null
\tat org.apache.spark.api.python.BasePythonRunner
"""
JAVA = """An error occurred while calling o77.load.
: java.lang.IllegalStateException: no room left
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (OURS, "a message does not fit the schema: no number. Set decodeErrors=null"),
        (JAVA, "java.lang.IllegalStateException: no room left"),
        (
            "[PATH_NOT_FOUND] Path does not exist: /x. SQLSTATE: 42K03",
            "Path does not exist: /x. SQLSTATE: 42K03",
        ),
        ("", "RuntimeError"),
    ],
)
def test_what_our_code_said_or_the_first_line_that_says_something(error: str, wanted: str) -> None:
    assert told(RuntimeError(error)) == wanted


def test_a_java_that_is_gone_is_told_as_such() -> None:
    assert "memory" in told(ConnectionRefusedError("[Errno 111] Connection refused"))
