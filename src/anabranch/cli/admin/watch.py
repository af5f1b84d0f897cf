"""`anabranch topics watch`: the segments of a scalable topic, live.

A layout watch on the broker notifies of changes, so a split shows at once; between splits the figures are read at an
interval. On a terminal the picture is redrawn in place, otherwise each change of the layout is a line.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator
from typing import Any, Protocol, TextIO

from anabranch.cli.admin.rest import RestRefused
from anabranch.cli.admin.scalable_rest import stats
from anabranch.cli.parsing.access import security_of
from anabranch.cli.parsing.options import UsageError
from anabranch.cli.render import dag as dag_view
from anabranch.client.security import NOBODY, Security
from anabranch.client.transport.attachment import Backoff
from anabranch.client.transport.layout_watch import LayoutWatch
from anabranch.client.transport.pool import Connections
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName

# Short, since Ctrl-C waits for the present request.
ANSWER_MAX_S = 3.0
INTERVAL_MIN_S = 0.1
# Terminal codes: another page without a cursor while the picture is shown, then everything as before.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _END_LINE, _END_PAGE = "\x1b[H", "\x1b[K", "\x1b[J"
_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"


class WatchView(Protocol):
    def show(self, found: dict[str, Any]) -> None: ...

    def trouble(self, text: str) -> None:
        """The figures cannot be read now."""
        ...

    def close(self) -> None: ...


def run(arguments: argparse.Namespace, topic: TopicName) -> int:
    if arguments.interval < INTERVAL_MIN_S:
        raise UsageError(f"--interval {arguments.interval:g}: at least {INTERVAL_MIN_S:g} seconds")
    # Read once before anything is drawn: a missing topic is an error like any other.
    first = stats(arguments.admin_url, topic)
    with contextlib.suppress(asyncio.CancelledError):
        return asyncio.run(_watch(arguments, topic, first))
    return 0


async def _watch(arguments: argparse.Namespace, topic: TopicName, first: dict[str, Any]) -> int:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    view = view_for(sys.stdout, topic)
    deleted = False
    try:
        async with _layout_changes(first["controller"], topic, changed, security_of(arguments)) as layouts:
            view.show(first)
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(arguments.interval):
                        await changed.wait()
                changed.clear()
                if layouts is not None and layouts.is_deleted:
                    # The watch reports the deletion as soon as it begins, while there still are figures.
                    deleted = True
                    return 0
                try:
                    view.show(
                        await asyncio.to_thread(stats, arguments.admin_url, topic, timeout=ANSWER_MAX_S)
                    )
                except RestRefused as refused:
                    if refused.status == 404:
                        deleted = True
                        return 0
                    view.trouble(str(refused))
    finally:
        view.close()
        if deleted:
            print(f"{topic} was deleted")


@contextlib.asynccontextmanager
async def _layout_changes(
    service_url: str, topic: TopicName, changed: asyncio.Event, security: Security | None
) -> AsyncIterator[LayoutWatch | None]:
    """Sets `changed` at every change of the layout. Without a broker to watch, only the interval applies."""
    if not service_url:
        yield None
        return
    connections = Connections(service_url, security or NOBODY)
    watch = LayoutWatch(connections, str(topic), Backoff(random.Random()))
    watch.listen(changed.set)

    async def follow() -> None:
        # Refused: the figures give the reason, if it matters.
        with contextlib.suppress(AnabranchError):
            await watch.open(create=False)

    opening = asyncio.create_task(follow())  # Awaited below.
    try:
        yield watch
    finally:
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await watch.close()
        await connections.close()


# -- views


def view_for(out: TextIO, topic: TopicName) -> WatchView:
    is_terminal = out.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return Screen(out, topic) if is_terminal else WatchLines(out, topic)


class Screen:
    """The picture, redrawn in place."""

    def __init__(self, out: TextIO, topic: TopicName) -> None:
        self._out = out
        self._topic = str(topic)
        self._glyphs = dag_view.glyphs_for(out.encoding)
        self._has_colour = not os.environ.get("NO_COLOR")
        self._last: dict[str, Any] | None = None
        out.write(_ENTER)

    def show(self, found: dict[str, Any]) -> None:
        self._last = found
        self._draw(f"{time.strftime('%H:%M:%S')}   Ctrl-C ends")

    def trouble(self, text: str) -> None:
        # One line has no room for the advice that follows.
        self._draw(f"{time.strftime('%H:%M:%S')}   {text.split(';')[0]}; trying again")

    def _draw(self, status: str) -> None:
        width, height = shutil.get_terminal_size()
        lines = (
            []
            if self._last is None
            else dag_view.page(self._topic, self._last, width, height - 2, self._glyphs)
        )
        lines = [self._coloured(number, line) for number, line in enumerate(lines)]
        lines += ["", dag_view.clip(status, width, self._glyphs)]
        self._out.write(_HOME + "\n".join(line + _END_LINE for line in lines[-height:]) + _END_PAGE)
        self._out.flush()

    def _coloured(self, number: int, line: str) -> str:
        style = _BOLD if number == 0 or line.startswith("active") else ""
        if line.startswith("sealed") or line.startswith(" " * dag_view.MARGIN):
            style = _DIM
        return f"{style}{line}{_PLAIN}" if style and self._has_colour else line

    def close(self) -> None:
        self._out.write(_LEAVE)
        self._out.flush()


class WatchLines:
    """One line for the present state, then one for each change of the layout."""

    def __init__(self, out: TextIO, topic: TopicName) -> None:
        self._out = out
        self._topic = str(topic)
        self._glyphs = dag_view.glyphs_for(out.encoding)
        self._last: dict[str, Any] | None = None
        self._trouble = ""

    def show(self, found: dict[str, Any]) -> None:
        before, self._last, self._trouble = self._last, found, ""
        if before is None:
            self._say(f"{self._topic} epoch {found['epoch']}: {dag_view.summary(found, self._glyphs)}")
        elif before["epoch"] != found["epoch"]:
            told = "; ".join(dag_view.changes(before, found, self._glyphs)) or "another layout"
            self._say(f"epoch {found['epoch']}: {told}; {dag_view.summary(found, self._glyphs)}")

    def trouble(self, text: str) -> None:
        if text != self._trouble:
            self._trouble = text
            self._say(f"{text}; trying again")

    def _say(self, text: str) -> None:
        self._out.write(f"{time.strftime('%H:%M:%S')} {text}\n")
        self._out.flush()

    def close(self) -> None: ...
