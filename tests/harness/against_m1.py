"""A pytest plugin: the tests of our client, with a Pulsar 5.0.0-M1 that runs already in the place of our broker.

`-p harness.against_m1`, with the broker's address in PULSAR_M1_URL and its HTTP port in PULSAR_M1_HTTP_PORT. All tests
share the broker, so none may stop it. Tests of what M1 cannot do are skipped: `harness.m1_limits` names them.
PULSAR_M1_LIMITS=run runs them anyway, to see whether they still fail.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import pytest

from harness import broker_process
from harness.m1_limits import HTTP_PORT, LIMITS, MADE_AHEAD, URL


class SharedPeer:
    """What tests know as a `BrokerProcess`."""

    def __init__(self, folder: Path, settings: Mapping[str, object] | None = None) -> None:
        self.folder = folder
        self.settings = dict(settings or {})
        self.url = os.environ[URL]
        self.http_port = int(os.environ[HTTP_PORT])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def _is_shared(self) -> NoReturn:
        pytest.skip("kills or stops the broker, which is shared here")

    start = stop = kill = restart = pause = resume = _is_shared

    def rest(self, method: str, path: str, body: object = None) -> Any:
        return broker_process.rest_call(self.http_port, method, path, body)

    def get(self, path: str) -> Any:
        return self.rest("GET", path)

    def put(self, path: str, body: object = None) -> Any:
        return self.rest("PUT", path, body)

    def post(self, path: str, body: object = None) -> Any:
        return self.rest("POST", path, body)

    def stats(self, topic: str) -> Any:
        return self.get(f"{broker_process.rest_path(topic)}/stats")


# Before any test module looks for it.
broker_process.BrokerProcess = SharedPeer  # type: ignore[assignment,misc]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    runs_all = os.environ.get("PULSAR_M1_LIMITS") == "run"
    for item in items:
        limits = LIMITS.get(item.path.stem, {})
        name = getattr(item, "originalname", item.name)
        if (limit := limits.get(name)) is not None:
            mark = pytest.mark.xfail if runs_all else pytest.mark.skip
            item.add_marker(mark(reason=f"Pulsar 5.0.0-M1: {limit}"))


@pytest.fixture(autouse=True)
def topics_made_ahead(request: pytest.FixtureRequest) -> None:
    if request.function.__name__ in MADE_AHEAD.get(request.path.stem, ()):
        name = request.getfixturevalue("topic")
        for topic in (name, f"{name}-q-DLQ"):
            path = f"scalable/public/default/{topic}?numInitialSegments=1"
            broker_process.rest_call(int(os.environ[HTTP_PORT]), "PUT", path, {})
