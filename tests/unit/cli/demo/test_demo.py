"""The demo: it holds on a real broker, and it does not hide a failure."""

from __future__ import annotations

import io
import re
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from anabranch.cli.demo import choose_reading
from anabranch.cli.demo.account import Account, StoryEnded
from anabranch.cli.demo.core.clickstream import Clickstream
from anabranch.cli.demo.core.verify import Finding, once_each
from anabranch.cli.demo.job import MainJob, Wish
from anabranch.cli.demo.plain_reading import PlainReading, received_rows
from anabranch.cli.main import main


@pytest.mark.interop
def test_the_demo_holds_and_leaves_nothing_behind(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = main(["demo", "--durability", "--messages", "300"])
    shown = capfd.readouterr().out
    assert code == 0, shown
    assert "All 18 checks held" in shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.interop
def test_without_spark_the_main_job_holds_and_leaves_only_its_report(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    report = tmp_path / "report"
    code = main(["demo", "--no-spark", "--events", "30000", "--seconds", "8", "--report", str(report)])
    shown = capfd.readouterr().out
    assert code == 0, shown
    assert "30,000 raw rows for 30,000 events: each exactly once, under its key" in shown
    assert "All 6 checks held" in shown
    assert "all 6 checks held" in (report / "report.html").read_text(encoding="utf-8")
    assert list(scratch.iterdir()) == []


@pytest.mark.interop
def test_one_of_three_brokers_is_killed_and_nothing_is_lost(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    report = tmp_path / "report"
    options = ["--no-spark", "--brokers", "3", "--events", "30000", "--seconds", "8"]
    code = main(["demo", *options, "--report", str(report)])
    shown = capfd.readouterr().out
    assert code == 0, shown
    assert "1. Start 3 brokers, a scalable topic and a checkpoint consumer" in shown
    assert re.search(r"kill -9 of broker-\d, which serves \d+ of \d+ segments?, after [\d,]+ receipts", shown)
    assert re.search(r"its segments are served again, [\d.]+ s later", shown)
    assert "30,000 raw rows for 30,000 events: each exactly once, under its key" in shown
    assert "All 6 checks held" in shown
    assert "3 brokers on one machine" in (report / "report.html").read_text(encoding="utf-8")
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("count", ["0", "-1", "65"])
def test_a_number_of_brokers_that_no_machine_has_is_refused(
    capsys: pytest.CaptureFixture[str], count: str
) -> None:
    assert main(["demo", "--brokers", count]) == 1
    assert "--brokers must be from 1 to" in capsys.readouterr().err


def test_the_story_of_one_broker_is_not_told_with_several(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--durability", "--brokers", "3"]) == 1
    assert "--durability is the story of one broker" in capsys.readouterr().err


def test_without_java_the_demo_says_so_and_what_it_does_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/no/such/folder")
    told, page = account()
    chosen = choose_reading(told, is_spark=True)
    assert isinstance(chosen, PlainReading)
    assert "Without Spark: JAVA_HOME is /no/such/folder" in page.getvalue()
    assert "Anabranch's own consumer instead; sessions are left out" in page.getvalue()


@pytest.mark.parametrize(("option", "value"), [("--events", "10"), ("--seconds", "1"), ("--seconds", "nan")])
def test_too_little_to_show_is_refused(capsys: pytest.CaptureFixture[str], option: str, value: str) -> None:
    assert main(["demo", option, value]) == 1
    assert f"{option} must be at least" in capsys.readouterr().err


def test_a_report_that_could_not_be_written_is_refused_at_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    assert main(["demo", "--report", str(tmp_path / "file" / "report")]) == 1
    assert f"nothing can be written to {tmp_path / 'file'}; choose another" in capsys.readouterr().err


class Failing(PlainReading):
    """A reader that loses its first batch."""

    def findings(self, stream: Clickstream, start_ms: int) -> list[Finding]:
        rows = received_rows(self.received[1:])
        return [once_each(rows, stream)]


@pytest.mark.interop
def test_a_lost_batch_fails_the_demo_and_leaves_the_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    told, page = account()
    wish = Wish(5000, 5.0, tmp_path / "report", is_killing=False)
    assert MainJob(told, wish, Failing()).run() == 1
    assert "missing" in page.getvalue()
    assert "1 of " in page.getvalue()
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == ["broker.out", "report.html"]
    assert list(scratch.iterdir()) == []


def account() -> tuple[Account, io.StringIO]:
    page = io.StringIO()
    return Account(Console(file=page, width=100)), page


def test_one_failed_check_fails_the_demo() -> None:
    told, page = account()
    with told.step("one"):
        told.check(True, "this holds")
        told.check(False, "this does not")
    assert told.conclude() == 1
    assert "1 of 2 checks failed" in page.getvalue()


def test_an_error_in_a_step_is_a_failed_check_and_ends_the_story() -> None:
    told, page = account()

    def stumble() -> None:
        raise RuntimeError("the broker is gone")

    with pytest.raises(StoryEnded), told.step("one"):
        stumble()
    assert told.conclude() == 1
    assert "the broker is gone" in page.getvalue()


def test_nothing_checked_is_nothing_shown_to_hold() -> None:
    told, _ = account()
    assert told.conclude() == 1
