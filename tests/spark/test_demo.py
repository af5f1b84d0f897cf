"""The demo's main job, small: it holds with Spark, and Ctrl-C leaves neither processes nor files."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.broker_process import until
from harness.demo_process import DemoProcess

OPTIONS = ("--events", "50000", "--seconds", "10")
# For a machine that is busy otherwise; alone it takes some 25 s.
WITHIN_S = 280.0


def test_a_small_demo_holds_and_leaves_its_report_and_nothing_else(tmp_path: Path) -> None:
    report = tmp_path / "report"
    with DemoProcess(tmp_path / "tmp", *OPTIONS, "--report", str(report)) as demo:
        assert demo.ended(WITHIN_S) == 0, demo.shown
        assert "All 9 checks held" in demo.shown
        assert "50,000 raw rows for 50,000 events: each exactly once, under its key" in demo.shown
        assert "sessions with 50,000 clicks in all" in demo.shown
        assert f"report: {(report / 'report.html').resolve()}" in demo.shown
        assert "all 9 checks held" in (report / "report.html").read_text(encoding="utf-8")
        until(lambda: not demo.processes(), within_s=10)
        assert list(demo.scratch.iterdir()) == []


@pytest.mark.parametrize("moment", ["starting two Spark queries", "the busiest", "stored", "catch up"])
def test_ctrl_c_in_the_middle_leaves_no_process_and_no_file(tmp_path: Path, moment: str) -> None:
    """While Java starts, once it serves, while queries run, and while they are asked how far they are."""
    report = tmp_path / "report"
    with DemoProcess(tmp_path / "tmp", *OPTIONS, "--report", str(report)) as demo:
        demo.until_it_says(moment)
        demo.ctrl_c()
        assert demo.ended() == 130, demo.shown
        assert demo.shown.endswith("anabranch: interrupted; everything was stopped and its folder removed\n")
        assert "Traceback" not in demo.shown
        until(lambda: not demo.processes(), within_s=10)
        assert list(demo.scratch.iterdir()) == []
    assert not report.exists()
