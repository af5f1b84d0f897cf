"""The bar on a terminal, and the line at the end."""

from __future__ import annotations

import asyncio
import contextlib
import io

import pytest

from anabranch.cli.render.progress import Bar, RunTally, is_terminal, summary


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


def terminal() -> contextlib.redirect_stderr[Terminal]:
    return contextlib.redirect_stderr(Terminal())


async def drawn(bar: Bar, looked: asyncio.Event) -> None:
    """Runs until the bar was drawn twice."""
    for _ in range(2):
        looked.clear()
        await asyncio.wait_for(looked.wait(), 10)


async def test_a_known_total_shows_a_bar_with_the_time_left() -> None:
    looked = asyncio.Event()
    tally = RunTally(messages=250_000, bytes=25_000_000, part=0.25)
    with terminal() as out, Bar("sending", tally, is_shown=True, look=looked.set, shown_after_s=0.0) as bar:
        await drawn(bar, looked)
        bar.say("by the way")
    shown = out.getvalue()
    for text in ("sending", "━", " 25%  250,000 messages", "msg/s", "MB/s", "left", "by the way\n"):
        assert text in shown


async def test_an_unknown_total_shows_the_time_it_took() -> None:
    looked = asyncio.Event()
    tally = RunTally(messages=1)
    with terminal() as out, Bar("receiving", tally, is_shown=True, look=looked.set, shown_after_s=0.0) as bar:
        await drawn(bar, looked)
    shown = out.getvalue()
    assert "1 message " in shown
    assert "%" not in shown
    assert "left" not in shown


async def test_the_cursor_is_never_left_hidden() -> None:
    looked = asyncio.Event()
    with (
        terminal() as out,
        Bar("sending", RunTally(), is_shown=True, look=looked.set, shown_after_s=0.0) as bar,
    ):
        await drawn(bar, looked)
        shown = out.getvalue()
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


async def test_a_short_run_shows_no_bar() -> None:
    with terminal() as out, Bar("sending", RunTally(), is_shown=True) as bar:
        await asyncio.sleep(0)
        bar.say("a line")
    assert out.getvalue() == "a line\n"


def test_only_terminals_that_can_redraw_have_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal():
        assert is_terminal()
        monkeypatch.setenv("TERM", "dumb")
        assert not is_terminal()
    monkeypatch.setenv("TERM", "xterm")
    with contextlib.redirect_stderr(io.StringIO()):
        assert not is_terminal()


@pytest.mark.parametrize(
    ("tally", "seconds", "text"),
    [
        (RunTally(1, 5), 0.2, "1 message stored"),
        (RunTally(0, 0), 7.0, "0 messages stored"),
        (RunTally(2, 10), 4.0, "2 messages stored in 4.0 s, 0.5 msg/s, 2 B/s"),
        (RunTally(3000, 30_000), 2.0, "3,000 messages stored in 2.0 s, 1,500 msg/s, 15.0 kB/s"),
        (RunTally(10**6, 10**8), 8.0, "1,000,000 messages stored in 8.0 s, 125,000 msg/s, 12.5 MB/s"),
    ],
)
def test_the_summary_has_rates_once_they_mean_something(tally: RunTally, seconds: float, text: str) -> None:
    assert summary(tally, "stored", seconds) == text
