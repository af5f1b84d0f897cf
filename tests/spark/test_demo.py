"""The demo's main job, small: it holds with Spark, and Ctrl-C leaves neither processes nor files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.broker_process import until

# For a machine that is busy otherwise; alone the first takes some 25 s, the second 15.
WITHIN_S = 280.0


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder


def demo(scratch: Path, report: Path, *options: str) -> subprocess.Popen[str]:
    """A process group of its own, as a shell would make it; its temporary files are in `scratch`."""
    command = [sys.executable, "-m", "anabranch.cli", "demo", "--events", "50000", "--seconds", "10"]
    return subprocess.Popen(
        [*command, "--report", str(report), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )


def is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_small_demo_holds_and_leaves_its_report_and_nothing_else(scratch: Path, tmp_path: Path) -> None:
    process = demo(scratch, tmp_path / "report")
    try:
        shown, _ = process.communicate(timeout=WITHIN_S)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
    assert process.returncode == 0, shown
    assert "All 8 checks held" in shown
    assert "50,000 raw rows for 50,000 events: each exactly once, under its key" in shown
    assert "sessions with 50,000 clicks in all" in shown
    assert f"report: {(tmp_path / 'report' / 'report.html').resolve()}" in shown
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "all 8 checks held" in page
    assert list(scratch.iterdir()) == []
    until(lambda: not is_alive(process.pid), within_s=10)


def test_ctrl_c_in_the_middle_leaves_no_process_and_no_file(scratch: Path, tmp_path: Path) -> None:
    process = demo(scratch, tmp_path / "report")
    assert process.stdout is not None
    shown = ""
    for line in process.stdout:
        shown += line
        if "stored" in line:
            # As a terminal does it: to everybody in the group.
            os.killpg(process.pid, signal.SIGINT)
            break
    shown += process.stdout.read()
    process.stdout.close()
    assert process.wait(60) == 130, shown
    assert "interrupted; everything was stopped" in shown
    assert "Traceback" not in shown
    assert list(scratch.iterdir()) == []
    assert not (tmp_path / "report").exists()
    until(lambda: not is_alive(process.pid), within_s=10)
