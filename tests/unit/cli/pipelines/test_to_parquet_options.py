"""What `anabranch pipeline to-parquet` makes of its arguments, and what it says to those that make no sense."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.cli.main import main, parsed
from anabranch.cli.pipelines.to_parquet import Asked, read
from anabranch.client.security import Security
from anabranch.errors import AnabranchError

pytest.importorskip("pyspark")

TOPIC = "topic://public/default/clicks"


def asked(*words: str) -> Asked:
    return read(parsed(["pipeline", "to-parquet", "--output", "/lake/t", *words]))


def test_a_topic_is_read_from_its_beginning_in_batches_of_a_gigabyte() -> None:
    found = asked(TOPIC)
    assert found.source["topic"] == TOPIC
    assert found.source["start"] == "earliest"
    assert found.source["maxBytesPerTrigger"] == str(1 << 30)
    assert found.work == "/lake/_t.anabranch"
    assert found.every_ms is None
    assert found.plan.time == "publish_time"


def test_what_is_given_to_the_source_wins() -> None:
    found = asked(
        TOPIC, "--option", "START=latest", "--option", "maxRowsPerTrigger=7", "--option", "ordering=key"
    )
    assert found.source["START"] == "latest"
    assert "start" not in found.source
    assert "maxBytesPerTrigger" not in found.source
    assert found.chosen.limit.rows == 7
    assert found.chosen.ordering == "key"


def test_who_asks_is_said_as_with_every_other_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_TOKEN", "of-the-environment")
    monkeypatch.setenv("ANABRANCH_PASSWORD", "hush")
    assert asked(TOPIC).chosen.security == Security(token="of-the-environment")
    assert asked(TOPIC, "--token", "file:///t").chosen.security == Security(token="file:///t")
    assert asked(TOPIC, "--user", "ann").chosen.security == Security(username="ann", password="hush")
    assert asked(TOPIC, "--option", "authtoken=mine").chosen.security == Security(token="mine")
    named = ("--option", "username=bob", "--option", "password=his")
    assert asked(TOPIC, *named).chosen.security == Security(username="bob", password="his")
    trusted = asked(TOPIC, "--tls-trust-certs", "ca.pem", "--tls-cert", "me.pem", "--tls-key", "me.key")
    assert trusted.chosen.security.tls_trust_certs_file == "ca.pem"
    assert trusted.chosen.security.tls_key_file == "me.key"


def test_topics_are_named_or_chosen() -> None:
    assert asked(TOPIC, "topic://public/default/orders").source["topics"].count(",") == 1
    assert asked("--namespace", "public/default", "--filter", "team=blue").chosen.choice.filters
    assert asked("--pattern", "public/default/a.*").chosen.choice.pattern == "a.*"
    assert asked("--namespace", "public/default", "--decode").chosen.decode
    assert asked(TOPIC, "--decode", "--time", "event", "--follow", "--every", "5s").every_ms == 5000


def test_paths_of_this_machine_are_whole_and_urls_stay() -> None:
    assert read(parsed(["pipeline", "to-parquet", TOPIC, "--output", "t"])).output == str(
        Path("t").absolute()
    )
    assert (
        read(parsed(["pipeline", "to-parquet", TOPIC, "--output", "s3a://lake/t/"])).work
        == "s3a://lake/_t.anabranch"
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "which topics"),
        ((TOPIC, "--namespace", "public/default"), "exclude each other"),
        (("topic://nonsense",), "option topic="),
        ((TOPIC, "--option", "columms=key"), "did you mean columns"),
        ((TOPIC, "--option", "columns"), "expected NAME=VALUE"),
        ((TOPIC, "--option", "topic=x"), "given twice"),
        ((TOPIC, "--start", "yesterday"), "option start="),
        ((TOPIC, "--file-size", "many"), "--file-size many"),
        ((TOPIC, "--batch-size", "0"), "--batch-size 0"),
        ((TOPIC, "--follow", "--every", "often"), "--every often"),
        ((TOPIC, "--date-column", "a b"), "--date-column a b"),
        ((TOPIC, "--output", "s3a://bucket/"), "give a folder in there"),
        ((TOPIC, "--service-url", "http://localhost"), "option serviceUrl"),
    ],
)
def test_a_question_that_makes_no_sense_is_answered_with_the_way_out(
    words: tuple[str, ...], told: str
) -> None:
    with pytest.raises(AnabranchError, match=told):
        asked(*words)


def test_a_broker_that_is_not_there_is_told_in_one_line_before_spark_is_started(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [TOPIC, "--output", str(tmp_path / "t"), "--service-url", "pulsar://127.0.0.1:1"]
    assert main(["pipeline", "to-parquet", *words]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "is a broker running there?" in told
    assert list(tmp_path.iterdir()) == []
