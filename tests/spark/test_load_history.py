"""A live broker under load, its history as tables, and a backtest of those; and docs/load-history.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from anabranch import blocking
from anabranch.balance.core.load import BrokerLoad, BundleLoad, TopBundles
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.scalable.load.balance_records import (
    BrokerReported,
    BundleMoved,
    BundleSample,
    BundlesMeasured,
)
from anabranch.broker.scalable.load.history_records import VERSION, HistoryRecord
from anabranch.cli.main import main
from anabranch.pipelines.load_history import SAMPLES_MAX, read_history, rows, stream, write_batch
from anabranch.pipelines.replay.load_history_schema import RATE_COLUMNS
from harness.broker_process import BrokerProcess, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

PAGE = Path(__file__).parents[2] / "docs" / "load-history.md"
QUICK = {
    "scalableTopicLoadReportInterval": "500ms",
    "scalableTopicLoadReportWindow": "1s",
    "scalableTopicAutoScaleInterval": "1s",
    "scalableTopicSplitCooldown": "1s",
    "scalableTopicMergeCooldown": "1s",
    "scalableTopicMergeWindow": "1s",
    # The topic has limits of its own: under the broker's it would not split.
    "scalableTopicSplitMsgRateInThreshold": 1_000_000,
    "scalableTopicMergeMsgRateInThreshold": 10,
    "loadHistoryHeartbeatInterval": "1s",
}
TOPIC = "topic://public/default/busy"
REST = "scalable/public/default/busy"
OWN = {"splitMsgRateInThreshold": 100}


class Lived:
    """A topic that was busy, split, came to rest and was merged again."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.published = 0
        broker.put(REST)
        broker.post(f"{REST}/autoScalePolicy", OWN)
        with blocking.connect(broker.url) as client:
            with client.producer(TOPIC) as producer, client.stream_consumer(TOPIC, "readers"):

                def has_split() -> bool:
                    for number in range(200):
                        producer.post(b"x", key=f"k{number}")
                    producer.flush()
                    self.published += 200
                    return self.active >= 3

                until(has_split, within_s=60, every_s=0.2)
            until(lambda: self.active == 1, within_s=60)
        until(lambda: self.done()[-1]["kind"] == "merge")
        # Two heartbeats later every stretch of load is over and told.
        told = self.told
        until(lambda: self.told >= told + 3)

    @property
    def told(self) -> int:
        """How many records there are."""
        stats = self.broker.get("persistent/pulsar/system/__load_history/stats")
        return int(stats["msgInCounter"])

    @property
    def active(self) -> int:
        segments = self.broker.get(REST)["segments"].values()
        return sum(segment["state"] == "ACTIVE" for segment in segments)

    def done(self) -> list[dict[str, Any]]:
        decisions = self.broker.get(f"{REST}/explain")["decisions"]
        return [one for one in decisions if one["kind"] in ("split", "merge")]


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), QUICK) as broker:
        yield Lived(broker)


def written(lived: Lived, folder: Path) -> int:
    return main(["pipeline", "load-history", "--service-url", lived.broker.url, "--out", str(folder)])


@pytest.fixture(scope="module")
def history(spark: SparkSession, lived: Lived, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables") / "history"
    assert written(lived, folder) == 0
    return folder


def table(spark: SparkSession, folder: Path, name: str) -> DataFrame:
    return spark.read.parquet(str(folder / name))


def flowed(spark: SparkSession, folder: Path) -> int:
    (row,) = table(spark, folder, "loads").selectExpr("sum(msg_rate_in * seconds) messages").collect()
    messages: float = row["messages"]
    return round(messages)


def made(spark: SparkSession, folder: Path) -> list[tuple[int, str, list[int], str, str]]:
    rows = table(spark, folder, "decisions").where("kind in ('split', 'merge')").orderBy("at").collect()
    return [
        (round(row["at"].timestamp() * 1000), row["kind"], row["segments"], row["rule"], row["because"])
        for row in rows
    ]


def test_tables_hold_every_message_that_flowed_and_every_decision_once(
    spark: SparkSession, lived: Lived, history: Path
) -> None:
    assert flowed(spark, history) == lived.published
    assert made(spark, history) == [
        (one["atMs"], one["kind"], one["segments"], one["rule"], one["because"]) for one in lived.done()
    ]
    stays = table(spark, history, "decisions").where("kind = 'stay' and because <> ''")
    assert {row["no_split"] for row in stays.select("no_split").distinct().collect()} >= {"not_needed"}
    counts = table(spark, history, "consumers").orderBy("at").collect()
    assert [(row["subscriptions"], row["most"], row["total"]) for row in counts][:1] == [
        ({"readers": 1}, 1, 1)
    ]
    days = {row["date"] for row in table(spark, history, "heartbeats").select("date").distinct().collect()}
    assert (
        days == {row["date"] for row in spark.sql("select current_date() date").collect()} or len(days) == 2
    )


def test_a_second_run_adds_what_came_since(spark: SparkSession, lived: Lived, history: Path) -> None:
    told = lived.told
    until(lambda: lived.told > told)
    before = table(spark, history, "heartbeats").count()
    assert written(lived, history) == 0
    assert table(spark, history, "heartbeats").count() > before
    assert flowed(spark, history) == lived.published
    assert len(made(spark, history)) == len(lived.done())


def test_a_batch_that_runs_again_replaces_what_it_wrote(
    spark: SparkSession, lived: Lived, tmp_path: Path
) -> None:
    options = {"serviceUrl": lived.broker.url, "topic": "persistent://pulsar/system/__load_history"}
    fixed = {"decode": "true", "decodeErrors": "null", "columns": "value"}
    records = (
        spark.read.format("anabranch").options(**options, **fixed).load().where("heartbeat is null").cache()
    )
    assert records.schema == stream(spark, options).schema
    first = write_batch(records, 7, str(tmp_path))
    before = {name: table(spark, tmp_path, name).count() for name in ("loads", "decisions")}
    assert write_batch(records, 7, str(tmp_path)) == first
    assert {name: table(spark, tmp_path, name).count() for name in before} == before
    assert first.unreadable == 0
    records.unpersist()


def test_messages_that_are_no_records_are_counted_and_left_out(
    spark: SparkSession, lived: Lived, tmp_path: Path
) -> None:
    columns = stream(spark, {"serviceUrl": lived.broker.url}).schema
    bad = spark.createDataFrame([], columns).unionByName(
        spark.sql("select X'00' undecoded union all select null"), allowMissingColumns=True
    )
    later = bad.selectExpr(*("2 version" if name == "version" else name for name in columns.names))
    found = write_batch(bad.unionByName(later), 0, str(tmp_path))
    assert (found.unreadable, sum(found.records.values())) == (4, 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("claimed", "samples"), [(0, 1), (-5, 1), (4, 4), (2**31 - 1, SAMPLES_MAX)])
def test_a_record_that_claims_no_samples_or_too_many_stops_nothing(
    spark: SparkSession, claimed: int, samples: int
) -> None:
    load = ", ".join(
        [
            "'t' topic, 0L segment, 0 range_start, 65535 range_end, timestamp_millis(0) since",
            *(f"1D {name}" for name in RATE_COLUMNS),
            f"0L backlog, 0 producers, 0 consumers, {claimed} samples",
        ]
    )
    record = spark.sql(f"select timestamp_millis(200000) at, 'b' broker, named_struct({_named(load)}) load")
    found = rows(record, "loads").selectExpr("count(*)", "max(at)", "sum(seconds)").first()
    assert found is not None
    assert (found[0], found[1].timestamp()) == (samples, 200)
    assert found[2] == pytest.approx(200)


def test_records_of_the_balancer_are_tables_too(spark: SparkSession, lived: Lived, tmp_path: Path) -> None:
    """Reports, decisions and moves by their leader, bundles one by one by their owner."""
    from pyspark.sql import functions as f

    top = BundleLoad(bundle="public/default/0x00000000_0xffffffff", msg_rate_in=3.0, topics=2, sessions=1)
    records = [
        HistoryRecord(
            VERSION,
            "leader:1",
            1000,
            broker_load=BrokerReported.of(
                "one:1", BrokerLoad(measured_ms=1000, cpu=0.5, load=0.25), TopBundles(1000, (top,))
            ),
        ),
        HistoryRecord(
            VERSION, "one:1", 2000, bundle_loads=BundlesMeasured(0, 1, (BundleSample.of(top),) * 2)
        ),
        HistoryRecord(VERSION, "leader:1", 3000, moved=BundleMoved(top.bundle, "one:1", "two:1")),
    ]
    texts = [
        (json.dumps({**msgspec.to_builtins(one), "at": f"1970-01-01T00:00:{one.at // 1000:02}Z"}),)
        for one in records
    ]
    columns = stream(spark, {"serviceUrl": lived.broker.url}).schema
    frame = spark.createDataFrame(texts, "text string").select(f.from_json("text", columns).alias("one"))
    frame = frame.select("one.*")
    found = write_batch(frame, 1, str(tmp_path))
    assert found.unreadable == 0
    assert {name: count for name, count in found.records.items() if count} == {
        "broker_loads": 1,
        "bundle_loads": 1,
        "moves": 1,
    }
    [report] = table(spark, tmp_path, "broker_loads").collect()
    assert (report["leader"], report["broker"], report["cpu"], report["load"]) == (
        "leader:1",
        "one:1",
        0.5,
        0.25,
    )
    assert report["top"][0]["bundle"] == top.bundle
    bundles = table(spark, tmp_path, "bundle_loads").collect()
    assert [(one["broker"], one["bundle"], one["msg_rate_in"]) for one in bundles] == [
        ("one:1", top.bundle, 3.0)
    ] * 2
    [move] = table(spark, tmp_path, "moves").collect()
    assert (move["source"], move["destination"]) == ("one:1", "two:1")


def _named(columns: str) -> str:
    """`value name, …` as `'name', value, …`."""
    pairs = (one.rpartition(" ") for one in columns.split(", "))
    return ", ".join(f"'{name}', {value}" for value, _, name in pairs)


def test_a_backtest_under_the_recorded_policy_decides_what_the_broker_did(
    spark: SparkSession, lived: Lived, history: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Timers of a busy machine are late, so only the first decisions must be the same; simulated ones all are."""
    known = read_history(spark, str(history))
    assert known.policy is not None
    assert known.policy.split.msg_rate_in == 1_000_000
    assert {name: policy.split.msg_rate_in for name, policy in known.of_topics.items()} == {TOPIC: 100}
    assert known.timing is not None
    assert (known.timing.tick_ms, known.timing.window_ms, known.step_ms) == (1000, 1000, 500)
    words = ["--history", str(history), "--policy", "live:recorded", "--policy", "now:"]
    assert main(["pipeline", "backtest", *words, "--output", str(tmp_path / "out")]) == 0
    assert "2 replays" in capsys.readouterr().out
    rows = (
        spark.read.parquet(str(tmp_path / "out" / "decisions"))
        .where("policy = 'live'")
        .orderBy("at")
        .collect()
    )
    replayed = [(row["kind"], row["segments"], row["rule"]) for row in rows]
    first = made(spark, history)[0]
    assert replayed[0] == (first[1], first[2], first[3]) == ("split", [0], "load")
    assert abs(rows[0]["at"].timestamp() * 1000 - first[0]) <= 3000
    assert {kind for kind, _, _ in replayed} == {"split", "merge"}
    # Limits a hundred times as high are not reached by the same traffic.
    assert spark.read.parquet(str(tmp_path / "out" / "decisions")).where("policy = 'now'").count() == 0


def test_tables_whose_place_is_lost_are_left_alone(
    lived: Lived, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loads").mkdir()
    assert written(lived, tmp_path) == 1
    assert "no _checkpoint" in capsys.readouterr().err


def test_a_broker_without_history_is_told_of_in_one_line(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with BrokerProcess(tmp_path, {"loadHistoryEnabled": "false"}) as broker:
        assert (
            main(["pipeline", "load-history", "--service-url", broker.url, "--out", str(tmp_path / "x")]) == 1
        )
    assert "there is no load history at" in capsys.readouterr().err.splitlines()[-1]


# -- the page


def test_every_query_of_the_page_runs(spark: SparkSession, history: Path) -> None:
    blocks = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 10
    for statement in blocks[0].replace("/data/history", str(history)).split(";"):
        if statement.strip():
            spark.sql(statement)
    found = {query.split("\n")[0]: spark.sql(query).count() for query in blocks[1:]}
    # All but that of holes, of which there need be none.
    assert [name for name, rows in found.items() if not rows and "select broker" not in name] == []


def test_the_program_of_the_page_runs(
    spark: SparkSession, lived: Lived, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    exec(program.replace("localhost:6650", f"127.0.0.1:{lived.broker.port}"), {"spark": spark})
    assert "|because" in capsys.readouterr().out.replace(" ", "")


def test_the_page_has_every_setting() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(loadHistory\w+)`", text, re.MULTILINE))
    assert named == {name for name in BrokerConfig().spelled() if name.startswith("loadHistory")}
