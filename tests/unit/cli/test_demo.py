"""The demo: it holds on a real broker, and it does not hide a failure."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from anabranch.cli.demo.account import Account, StoryEnded
from anabranch.cli.main import main


@pytest.mark.interop
def test_the_demo_holds_and_leaves_nothing_behind(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = main(["demo", "--messages", "300"])
    shown = capsys.readouterr().out
    assert code == 0, shown
    assert "All 18 checks held" in shown
    assert list(tmp_path.iterdir()) == []


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
