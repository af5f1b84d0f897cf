"""A real Spark session, a real broker, and topics that live while queries run. Skipped where Spark cannot run."""

from __future__ import annotations

import importlib.util
import itertools
import os
import random
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from anabranch import blocking
from harness.broker_process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_numbers = itertools.count(1)


def _missing() -> str | None:
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed: pip install 'pyspark>=4.2'"
    home = os.environ.get("JAVA_HOME")
    if not (home and Path(home, "bin", "java").exists()) and shutil.which("java") is None:
        return "Spark needs a Java runtime, 17 or later: none is on the path, and JAVA_HOME names none"
    return None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "spark: needs pyspark and a Java runtime, and minutes; run with -m spark"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    why = _missing()
    here = Path(__file__).parent
    own = [item for item in items if here in item.path.parents]
    for item in own:
        item.add_marker(pytest.mark.spark)
        # The first test waits for the session, and for kernels that nobody has compiled yet.
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))
        if why is not None:
            item.add_marker(pytest.mark.skip(reason=why))
    if own and "spark" not in config.getoption("-m"):
        config.hook.pytest_deselected(items=own)
        items[:] = [item for item in items if item not in own]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    folder = tmp_path_factory.mktemp("spark")
    builder: Any = SparkSession.builder
    session = (
        builder.master("local[2]")
        .appName("anabranch tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={folder}")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as process:
        # Most queries here have no subscription, and a slow machine is no reason to lose what they read.
        process.post(
            "namespaces/public/default/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        )
        yield process


class River:
    """A scalable topic with messages numbered from 0 on, in order by key."""

    def __init__(
        self,
        broker: BrokerProcess,
        name: str,
        segments: int = 1,
        *,
        namespace: str = "public/default",
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.broker = broker
        self.topic = f"topic://{namespace}/{name}"
        self.path = f"scalable/{namespace}/{name}"
        broker.put(f"{self.path}?numInitialSegments={segments}", properties)
        broker.post(f"{self.path}/autoScalePolicy", {"enabled": False})
        self._client = blocking.connect(broker.url)
        self._producer = self._client.producer(self.topic)
        self.published = 0

    def publish(self, count: int, keys: int = 23) -> None:
        for number in range(self.published, self.published + count):
            self._producer.post(b"%d" % number, key=f"key-{number % keys}", properties={"n": str(number)})
        self._producer.flush()
        self.published += count

    def split(self, number: int) -> None:
        self.broker.post(f"{self.path}/split/{number}")

    def merge(self, one: int, other: int) -> None:
        self.broker.post(f"{self.path}/merge/{one}/{other}")

    def change(self, chance: random.Random) -> None:
        """Splits a segment or merges two."""
        found = self.broker.get(self.path)["segments"].items()
        active = sorted(
            (one["hashRange"]["start"], int(number)) for number, one in found if one["state"] == "ACTIVE"
        )
        at = chance.randrange(len(active))
        if at + 1 < len(active) and chance.random() < 0.5:
            self.merge(active[at][1], active[at + 1][1])
        else:
            self.split(active[at][1])

    def delete(self) -> None:
        self.close()
        self.broker.rest("DELETE", f"{self.path}?force=true")

    def options(self, **more: object) -> dict[str, str]:
        given = {"serviceUrl": self.broker.url, "topic": self.topic, **more}
        return {name: str(value) for name, value in given.items()}

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def river(broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[River]:
    made = River(broker, f"river-{next(_numbers)}")
    yield made
    made.close()


def read(spark: SparkSession, river: River, **options: object) -> DataFrame:
    return spark.read.format("anabranch").options(**river.options(**options)).load()


def assert_in_order(rows: list[tuple[str, int]], published: int) -> None:
    """Every number once, and those of a key rising."""
    assert sorted(number for _, number in rows) == list(range(published))
    last: dict[str, int] = {}
    for key, number in rows:
        assert last.get(key, -1) < number, f"{key}: {number} behind {last[key]}"
        last[key] = number
