"""Where the object store for tests is. `make cluster-test` starts it, and makes its bucket."""

from __future__ import annotations

import os

import pytest

# Of the store for tests, which listens on the loopback interface only.
BUCKET = "anabranch-tests"


def endpoint() -> str:
    """Skips the test if no store was started for it."""
    found = os.environ.get("TEST_S3_ENDPOINT", "")
    if not found:
        pytest.skip("no object store: `make cluster-test` starts one, or set TEST_S3_ENDPOINT")
    return found


def bucket_url(prefix: str) -> str:
    return f"s3://{BUCKET}/{prefix}?endpoint={endpoint()}&region=us-east-1"


def minio_pid() -> int:
    """The process of the store, which is this test run's own."""
    return int(os.environ["MINIO_PID"])
