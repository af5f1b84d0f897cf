"""Ctrl-C ends the demo at any moment: one line, no traceback, no process, no file."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import pytest

from harness.broker_process import until
from harness.demo_process import DemoProcess

MOMENTS_S = [0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.3, 1.6, 2.0, 2.5, 3.0]
OPTIONS = ("--no-spark", "--events", "20000", "--seconds", "6")
ROOT = Path(__file__).parents[4]

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")


def assert_nothing_is_left(demo: DemoProcess) -> None:
    until(lambda: not demo.processes(), within_s=10)
    assert list(demo.scratch.iterdir()) == []


@pytest.mark.parametrize("moment_s", MOMENTS_S)
def test_ctrl_c_at_any_moment_leaves_no_traceback_no_process_and_no_file(
    tmp_path: Path, moment_s: float
) -> None:
    report = tmp_path / "report"
    with DemoProcess(
        tmp_path / "tmp", *OPTIONS, "--report", str(report), command=(str(ROOT / "bin" / "demo"),)
    ) as demo:
        # Whatever the demo does then, which differs from machine to machine, is the moment that is tried.
        moment = threading.Timer(moment_s, demo.ctrl_c)
        moment.start()
        code = demo.ended()
        moment.cancel()
        assert code in (130, -signal.SIGINT), demo.shown
        assert "Traceback" not in demo.shown
        # Without a word only where the shell had not begun to read what it is to do.
        last = demo.shown.splitlines()[-1:]
        assert last == [] if code < 0 else last and "interrupted" in last[0], demo.shown
        assert_nothing_is_left(demo)
    assert not report.exists()


@pytest.mark.parametrize("words", ["Start a broker", "live page", "stored", "catches up"])
def test_ctrl_c_in_each_chapter_ends_it_with_one_line(tmp_path: Path, words: str) -> None:
    with DemoProcess(tmp_path / "tmp", *OPTIONS, "--report", str(tmp_path / "report")) as demo:
        demo.until_it_says(words)
        demo.ctrl_c()
        assert demo.ended() == 130, demo.shown
        assert "Traceback" not in demo.shown
        assert demo.shown.endswith("anabranch: interrupted; everything was stopped and its folder removed\n")
        assert_nothing_is_left(demo)


@pytest.mark.parametrize("words", ["Start 3 brokers", "live page", "kill -9", "started again"])
def test_ctrl_c_ends_a_demo_of_three_brokers_in_the_same_way(tmp_path: Path, words: str) -> None:
    """While they start, once they serve, while one of them is dead, and when it is back."""
    options = (*OPTIONS, "--brokers", "3")
    with DemoProcess(tmp_path / "tmp", *options, "--report", str(tmp_path / "report")) as demo:
        demo.until_it_says(words)
        demo.ctrl_c()
        assert demo.ended() == 130, demo.shown
        assert "Traceback" not in demo.shown
        assert demo.shown.endswith("anabranch: interrupted; everything was stopped and its folder removed\n")
        assert_nothing_is_left(demo)


def test_an_impatient_second_and_third_ctrl_c_change_nothing(tmp_path: Path) -> None:
    with DemoProcess(tmp_path / "tmp", *OPTIONS, "--report", str(tmp_path / "report")) as demo:
        demo.until_it_says("stored")
        for _ in range(3):
            demo.ctrl_c()
        assert demo.ended() == 130, demo.shown
        assert "Traceback" not in demo.shown
        assert_nothing_is_left(demo)


def test_the_story_with_pulsars_client_ends_the_same_way(tmp_path: Path) -> None:
    with DemoProcess(tmp_path / "tmp", "--durability", "--messages", "2000") as demo:
        demo.until_it_says("Produce")
        demo.ctrl_c()
        assert demo.ended() == 130, demo.shown
        assert "Traceback" not in demo.shown
        assert_nothing_is_left(demo)


def test_a_demo_whose_command_was_killed_ends_by_itself(tmp_path: Path) -> None:
    with DemoProcess(tmp_path / "tmp", *OPTIONS, "--report", str(tmp_path / "report")) as demo:
        demo.until_it_says("stored")
        demo.kill()
        demo.ended()
        assert_nothing_is_left(demo)


def test_a_demo_that_keeps_its_broker_leaves_the_folder_at_ctrl_c_and_ends_with_its_own_code(
    tmp_path: Path,
) -> None:
    with DemoProcess(tmp_path / "tmp", *OPTIONS, "--keep", "--report", str(tmp_path / "report")) as demo:
        demo.until_it_says("checkpoints stay in")
        folder = Path(demo.shown.rstrip().rpartition(" ")[2])
        until(lambda: any(folder.parent.glob("stays")), within_s=30)
        demo.ctrl_c()
        assert demo.ended() == 0, demo.shown
        assert (folder / "data").is_dir()
        until(lambda: not demo.processes(), within_s=10)
