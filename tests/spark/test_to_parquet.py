"""`anabranch pipeline to-parquet` on a real session: every row once, on its day, however the job ends."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from anabranch import blocking
from anabranch.cli.main import main
from anabranch.pipelines.tables.core.names import GUARD, GUARD_TEXT
from anabranch.pipelines.tables.files import LocalFiles
from anabranch.pipelines.tables.hadoop_files import ONE_RUN, BadPlace, HadoopFiles
from anabranch.pipelines.tables.log import TableLog
from anabranch.pipelines.tables.to_parquet import BadTable, ParquetTable, Sink, TablePlan, dated
from harness.broker_process import BrokerProcess
from harness.files_contract import check_contract

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

_numbers = itertools.count(1)
FIRST = datetime(2026, 5, 1, 23, 59, 59, 999_000, tzinfo=UTC)


@dataclass
class Click:
    number: int
    page: str


@dataclass
class Order:
    number: int
    price: float


class Topic:
    """Numbered messages, each of a day: by turns 1, 2 and 3 May, and every tenth without an event time that is one."""

    def __init__(self, broker: BrokerProcess, name: str, namespace: str = "public/default") -> None:
        self.topic = f"topic://{namespace}/{name}"
        broker.put(f"scalable/{namespace}/{name}?numInitialSegments=2")
        self.client = blocking.connect(broker.url)
        self.published = 0

    def publish(self, count: int) -> None:
        with self.client.producer(self.topic) as producer:
            for number in range(self.published, self.published + count):
                at: datetime | int | None = FIRST + timedelta(days=number % 3)
                if number % 10 == 9:
                    # In nanoseconds, in microseconds, or not at all.
                    at = (1_777_000_000_000_000_000, 1_777_000_000_000_000, None)[number // 10 % 3]
                producer.post(b"%d" % number, key=f"key-{number % 7}", event_time=at)
        self.published += count

    def send(self, *values: Any) -> None:
        with self.client.producer(self.topic, schema=type(values[0])) as producer:
            for value in values:
                producer.send(value)


@pytest.fixture
def topic(broker: BrokerProcess) -> Iterator[Topic]:
    made = Topic(broker, f"table-{next(_numbers)}")
    yield made
    made.client.close()


@pytest.fixture(autouse=True)
def _service_url(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_SERVICE_URL", broker.url)


def run(*words: str) -> None:
    assert main(["pipeline", "to-parquet", *words]) == 0


def rows_of(table: Path) -> list[tuple[date, int]]:
    """As Arrow reads them, by listing folders."""
    found = ds.dataset(table, partitioning="hive").to_table(columns=["date", "value"]).to_pylist()
    return sorted((date.fromisoformat(row["date"]), int(row["value"])) for row in found)


def wanted(count: int) -> list[tuple[date, int]]:
    today = datetime.now(UTC).date()
    return sorted((today if n % 10 == 9 else (FIRST + timedelta(days=n % 3)).date(), n) for n in range(count))


def files_by_day(table: Path) -> dict[str, int]:
    return {folder.name: len(list(folder.glob("*.parquet"))) for folder in table.iterdir()}


def test_rows_are_written_once_on_their_day_and_a_rerun_goes_on_and_compaction_keeps_them(
    spark: SparkSession, topic: Topic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "clicks"
    words = [topic.topic, "--output", str(table), "--time", "event", "--no-compact"]
    topic.publish(300)
    run(*words, "--option", "maxRowsPerTrigger=200")
    assert rows_of(table) == wanted(300)
    # Late rows go to their own days.
    topic.publish(60)
    capsys.readouterr()
    run(*words)
    assert rows_of(table) == wanted(360)
    told = capsys.readouterr()
    assert "60 rows of 4 days, 2026-05-01 to " in told.out
    assert "60 rows in 1 batch, " in told.err
    run(*words)
    assert capsys.readouterr().out == f"{table}: nothing new\n"
    before = files_by_day(table)
    assert min(before[f"date=2026-05-0{day}"] for day in (1, 2, 3)) > 1
    run("--output", str(table), "--compact")
    assert rows_of(table) == wanted(360)
    closed = sum(before[f"date=2026-05-0{day}"] for day in (1, 2, 3))
    assert f"{table}: {closed} small files of 3 days made into 3" in capsys.readouterr().out
    assert files_by_day(table) == {**before, **{f"date=2026-05-0{day}": 1 for day in (1, 2, 3)}}
    frame = spark.read.parquet(str(table))
    assert sorted(int(row.value) for row in frame.select("value").collect()) == list(range(360))
    assert dict(frame.dtypes)["date"] == "date"
    assert dict(frame.dtypes)["event_time"] == "timestamp"


class Dying(LocalFiles):
    """Dies at a change of that number, as a process does that nobody asks."""

    def __init__(self, at: int | None) -> None:
        self._at = at
        self.changes = 0

    def _change(self) -> None:
        self.changes += 1
        if self.changes == self._at:
            raise RuntimeError("the power is gone")

    def create(self, path: str, data: bytes) -> bool:
        self._change()
        return super().create(path, data)

    def move(self, source: str, target: str) -> None:
        self._change()
        super().move(source, target)

    def remove(self, path: str) -> None:
        self._change()
        super().remove(path)


def attempt(
    spark: SparkSession, topic: str, url: str, folder: Path, files: LocalFiles, today: date = date(2026, 5, 9)
) -> None:
    """One run, by the parts that the command is made of."""
    plan = TablePlan(time="event_time")
    table = ParquetTable(
        spark, files, TableLog(files, f"{folder}/table", f"{folder}/work"), plan, lambda: today
    )
    options = {"serviceUrl": url, "topic": topic, "start": "earliest", "maxRowsPerTrigger": "60"}
    frame = dated(spark.readStream.format("anabranch").options(**options).load(), plan)
    table.open({})
    sink = Sink(table, compacts=False, told=lambda _: None)
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", table.log.checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    table.compact()


def test_a_run_that_dies_at_any_kind_of_step_is_right_after_the_next(
    spark: SparkSession, broker: BrokerProcess, topic: Topic, tmp_path: Path
) -> None:
    topic.publish(100)
    # Of the first batch with rows: the record, a move, the end of the staged files; then in a compaction.
    for at in (4, 6, 9, 20):
        with pytest.raises(Exception, match="the power is gone"):
            attempt(spark, topic.topic, broker.url, tmp_path / "died", Dying(at))
    attempt(spark, topic.topic, broker.url, tmp_path / "died", LocalFiles())
    assert rows_of(tmp_path / "died" / "table") == wanted(100)


KILLED = """
import os, signal, sys
from pathlib import Path
from pyspark.sql import SparkSession
from spark.test_to_parquet import Dying, attempt

topic, url, folder, at = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()


class Killed(Dying):
    def _change(self):
        self.changes += 1
        if self.changes == self._at:
            os.kill(jvm, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


attempt(spark, topic, url, Path(folder), Killed(int(at)))
"""


def test_a_driver_killed_between_deciding_and_moving_has_lost_and_doubled_nothing(
    spark: SparkSession, broker: BrokerProcess, topic: Topic, tmp_path: Path
) -> None:
    topic.publish(100)
    paths = os.pathsep.join(filter(None, sys.path))
    died = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLED, topic.topic, broker.url, str(tmp_path), "6"],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr[-3000:]
    (staged,) = (tmp_path / "work" / "staging").iterdir()
    assert (tmp_path / "work" / "log" / f"{int(staged.name):08}.json").exists()
    attempt(spark, topic.topic, broker.url, tmp_path, LocalFiles())
    assert rows_of(tmp_path / "table") == wanted(100)


def test_each_topic_of_a_namespace_has_a_table_with_its_own_columns(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    broker.put("namespaces/public/tables")
    broker.post("namespaces/public/tables/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    clicks, orders = (Topic(broker, name, "public/tables") for name in ("clicks", "orders"))
    clicks.send(Click(1, "/"), Click(2, "/help"))
    orders.send(Order(7, 1.5))
    words = ["--namespace", "public/tables", "--table-per-topic", "--decode", "--output", str(tmp_path)]
    run(*words)
    orders.send(Order(8, 2.5))
    run(*words, "--quiet")
    pages = ds.dataset(tmp_path / "public/tables/clicks", partitioning="hive").to_table()
    assert sorted(pages.column("page").to_pylist()) == ["/", "/help"]
    prices = ds.dataset(tmp_path / "public/tables/orders", partitioning="hive").to_table()
    assert sorted(prices.column("price").to_pylist()) == [1.5, 2.5]
    assert "page" not in prices.column_names
    for one in (clicks, orders):
        one.client.close()


def test_files_are_reached_through_hadoop_too(spark: SparkSession, tmp_path: Path) -> None:
    check_contract(HadoopFiles(spark, f"file://{tmp_path}"), f"file://{tmp_path}")


def test_of_two_that_create_one_record_at_a_url_one_is_first(spark: SparkSession, tmp_path: Path) -> None:
    root = f"file://{tmp_path}/a %41"
    runs = [HadoopFiles(spark, root) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for number in range(40):
            path = f"{root}/{number:08}.json"
            first = list(pool.map(lambda at: runs[at].create(path, b"%d" % at), range(2)))  # noqa: B023
            assert sorted(first) == [False, True], number
            assert runs[0].read(path) == b"%d" % first.index(True)
    assert len(runs[0].names(root)) == 40


def test_a_store_that_cannot_create_a_file_once_is_refused_unless_there_is_one_run_at_a_time(
    spark: SparkSession,
) -> None:
    place = "http://localhost/lake"
    with pytest.raises(BadPlace, match=f"two runs .*--conf {ONE_RUN}=true"):
        HadoopFiles(spark, place)
    spark.conf.set(ONE_RUN, "true")
    try:
        HadoopFiles(spark, place)
    finally:
        spark.conf.unset(ONE_RUN)


def test_a_table_at_a_url_is_written_compacted_and_gone_on_with(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    for _ in range(2):
        topic.publish(30)
        run(topic.topic, "--output", f"file://{tmp_path}/table", "--time", "event")
    assert rows_of(tmp_path / "table") == wanted(60)
    assert files_by_day(tmp_path / "table")["date=2026-05-01"] == 1


def test_days_are_those_of_utc_whatever_the_zone_of_the_session(spark: SparkSession) -> None:
    texts = [
        "0001-01-01T00:00:00Z",
        "1969-12-31T23:59:59.999999Z",
        "1970-01-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
    ]
    frame = spark.createDataFrame([(text,) for text in texts], "text string").selectExpr(
        "cast(text as timestamp) at", "timestamp_seconds(253402300800) publish_time"
    )
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Kiritimati")
    try:
        found = [
            str(row[0]) for row in dated(frame, TablePlan(time="at")).selectExpr("string(date)").collect()
        ]
        beyond = dated(frame, TablePlan(time="publish_time")).selectExpr("date").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")
    assert found == ["0001-01-01", "1969-12-31", "1970-01-01", "9999-12-31"]
    assert {row.date for row in beyond} == {None}


def test_columns_that_are_not_there_or_are_taken_are_named(spark: SparkSession) -> None:
    frame = spark.sql("select current_timestamp() publish_time, 1 number, current_timestamp() at")
    with pytest.raises(BadTable, match=r"--time made: .* are publish_time, at"):
        dated(frame, TablePlan(time="made"))
    with pytest.raises(BadTable, match="type int, and times are needed"):
        dated(frame, TablePlan(time="number"))
    with pytest.raises(BadTable, match="--date-column another name"):
        dated(frame, TablePlan(date="at"))


def test_a_format_without_its_jars_says_which_package_to_give(
    spark: SparkSession, topic: Topic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, package in (
        ("delta", "io.delta:delta-spark_"),
        ("iceberg", "org.apache.iceberg:iceberg-spark-runtime-"),
    ):
        words = [topic.topic, "--output", str(tmp_path / "table"), "--format", name]
        assert main(["pipeline", "to-parquet", *words]) == 1
        assert f"--packages {package}" in capsys.readouterr().err


def test_readers_of_a_folder_that_is_being_compacted_fail(spark: SparkSession, tmp_path: Path) -> None:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    table, files = tmp_path / "table", LocalFiles()
    spark.range(5).selectExpr("id value", "'2026-05-01' date").write.partitionBy("date").parquet(str(table))
    assert ds.dataset(table, partitioning="hive").count_rows() == 5
    assert files.create(f"{table}/date=2026-05-01/{GUARD}", GUARD_TEXT)
    with pytest.raises(ValueError, match=GUARD):  # ArrowInvalid is one.
        ds.dataset(table, partitioning="hive").to_table()
    with pytest.raises(Py4JJavaError, match=GUARD):
        spark.read.schema("value long, date string").parquet(str(table)).collect()
