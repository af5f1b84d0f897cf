"""The progress of a long run: a bar on standard error if that is a terminal, and one line at the end.

Short runs show no bar. The bar reads a `RunTally` a few times a second, so counting costs the run nothing.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.progress import Progress

SHOWN_AFTER_S: Final = 0.7
REDRAWN_EVERY_S: Final = 0.2
# Rates are those of the last few seconds: a run that slows down must not look fast for long.
RATE_OVER_S: Final = 3.0


@dataclass(slots=True)
class RunTally:
    """The amounts of a run so far."""

    messages: int = 0
    bytes: int = 0
    part: float | None = None  # The finished share, from 0 to 1, if that is known.


def is_terminal() -> bool:
    """Whether standard error can show a bar."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def plural(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"


def summary(tally: RunTally, done: str, seconds: float) -> str:
    """`1,000,000 messages stored in 8.1 s, 123,457 msg/s, 12.3 MB/s`; without rates if it was too short for them."""
    told = f"{plural(tally.messages)} {done}"
    if seconds < 1 or not tally.messages:
        return told
    return f"{told} in {seconds:,.1f} s, {_rates(tally.messages, tally.bytes, seconds)}"


def _rates(messages: int, size: int, seconds: float) -> str:
    rate, speed, unit = messages / seconds, size / seconds, "B"
    for larger in ("kB", "MB"):
        if speed >= 1000:
            speed, unit = speed / 1000, larger
    return f"{rate:,.{0 if rate >= 10 else 1}f} msg/s, {speed:,.{0 if unit == 'B' else 1}f} {unit}/s"


class Bar:
    """A context around a run. `look` is called before each picture, to update the tally."""

    def __init__(
        self,
        doing: str,
        tally: RunTally,
        *,
        is_shown: bool,
        look: Callable[[], None] = lambda: None,
        shown_after_s: float = SHOWN_AFTER_S,
    ) -> None:
        self._doing = doing
        self._tally = tally
        self._is_shown = is_shown
        self._look = look
        self._shown_after_s = shown_after_s
        self._progress: Progress | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._seen: deque[tuple[float, int, int]] = deque()
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def __enter__(self) -> Bar:
        if self._is_shown:
            self._loop = asyncio.get_running_loop()
            self._timer = self._loop.call_later(self._shown_after_s, self._show)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def say(self, text: str) -> None:
        """Prints a line for the user that the bar does not overwrite."""
        if self._progress is None:
            print(text, file=sys.stderr, flush=True)
        else:
            self._progress.console.print(text, markup=False, highlight=False)

    # -- drawing

    def _show(self) -> None:
        # A third of a second to load: only for runs that need it.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        is_known = self._tally.part is not None
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(None) if is_known else SpinnerColumn(),
            TextColumn("{task.fields[told]}"),
            console=Console(file=sys.stderr),
            auto_refresh=False,
            transient=True,
            expand=is_known,
        )
        self._seen.append((self._began, 0, 0))
        self._task = self._progress.add_task(self._doing, total=1.0, told=self._told())
        self._progress.start()
        # Nothing else shows the cursor again if a second Ctrl-C ends the process.
        self._progress.console.show_cursor(True)
        self._draw()

    def _draw(self) -> None:
        assert self._progress is not None
        self._look()
        self._progress.update(self._task, completed=self._tally.part or 0.0, told=self._told(), refresh=True)
        self._timer = self._loop.call_later(REDRAWN_EVERY_S, self._draw)

    def _told(self) -> str:
        now, tally = time.monotonic(), self._tally
        self._seen.append((now, tally.messages, tally.bytes))
        while now - self._seen[0][0] > RATE_OVER_S and len(self._seen) > 2:
            self._seen.popleft()
        since, messages, size = self._seen[0]
        rates = _rates(tally.messages - messages, tally.bytes - size, max(now - since, 1e-3))
        known = "" if tally.part is None else f"{tally.part:4.0%}  "
        return f"{known}{plural(tally.messages)}  {rates}  {self._time_told(tally)}"

    def _time_told(self, tally: RunTally) -> str:
        if not tally.part:
            return _clock(self.seconds)
        return f"{_clock(self.seconds / tally.part - self.seconds)} left"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
