"""What `pipeline backtest` makes of its arguments, and what it refuses before Spark is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anabranch.autoscale.policy import DEFAULT, ScalePolicy
from anabranch.cli.main import main
from anabranch.cli.parsing.options import UsageError
from anabranch.cli.pipelines.backtest_policies import policies


def test_a_policy_may_be_spelled_as_commands_or_as_rest_spell_it() -> None:
    found = policies(
        ["now:", "a:max-segments=16,split-cooldown=30s", "b:maxSegments=16,splitCooldownSeconds=30"], None
    )
    assert found["now"] == DEFAULT
    assert found["a"] == found["b"] == ScalePolicy(max_segments=16, split_cooldown_ms=30_000)


def test_without_any_policy_the_defaults_come_first_among_others() -> None:
    found = policies([], None)
    assert next(iter(found.values())) == DEFAULT
    assert len(set(found.values())) == len(found) > 3


def test_policies_come_from_files_too(tmp_path: Path) -> None:
    one, other = tmp_path / "p.json", tmp_path / "p.toml"
    one.write_text(json.dumps({"small": {"maxSegments": 4}}))
    other.write_text("[small]\nmaxSegments = 4\n")
    wanted = {"small": ScalePolicy(max_segments=4), "more": ScalePolicy(max_segments=99)}
    for file in (one, other):
        assert policies(["more:max-segments=99"], str(file)) == wanted


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["max-segments=16"], "expected NAME:FIELD=VALUE"),
        (["a:segments=16"], "fields are enabled, max-segments"),
        (["a:max-segments=many"], "many"),
        (["a:min-segments=99"], "minSegments is 99"),
        (["a:", "a:max-segments=2"], "name of its own"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_with_what_to_change(texts: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        policies(texts, None)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("p.json", "{", "cannot be read as JSON"),
        ("p.toml", "=", "cannot be read as TOML"),
        ("p.json", "[]", "a policy for each name"),
        ("p.json", '{"a": {"maxSegment": 3}}', "no field 'maxSegment'"),
        ("p.json", '{"a": {"maxSegments": "3"}}', "without quotes"),
        ("p.json", '{"a": 7}', "JSON object"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, name: str, text: str, why: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=why):
        policies([], str(tmp_path / name))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--topics", "0"], "0 topics"),
        (["--days", "-1"], "-1 days"),
        (["--kind", "odd"], "steady, diurnal"),
        (["--cost", "hours=1"], "segment-hour"),
        (["--cost", "flap=much"], "expected a number"),
        (["--history", "nowhere"], "no load history at nowhere"),
        (["--history", ".", "--topics", "3"], "brings its own topics"),
        (["--policies", "nowhere.json"], "cannot read nowhere.json"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], why: str
) -> None:
    assert main(["pipeline", "backtest", "--output", str(tmp_path / "out"), *words]) == 1
    told = capsys.readouterr().err
    assert why in told
    assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_there_is_not_written_into(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "backtest", "--output", str(tmp_path)]) == 1
    assert "exists already" in capsys.readouterr().err


def test_without_java_the_fix_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert main(["pipeline", "backtest", "--output", str(tmp_path / "out")]) == 1
    assert "set it to a Java runtime" in capsys.readouterr().err
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["pipeline", "backtest", "--output", str(tmp_path / "out")]) == 1
    assert "openjdk" in capsys.readouterr().err
