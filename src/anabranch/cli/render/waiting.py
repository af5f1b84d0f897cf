"""One line on a terminal while a request is not answered: that it is waited for, and for how long."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from anabranch.cli.render.progress import is_terminal

SHOWN_AFTER_S: Final = 1.0
_CLEARED: Final = "\r\x1b[K"


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Shows the line from a second on, and removes it at the end. Shows nothing where standard error is no terminal."""
    if not is_terminal():
        yield
        return
    is_over = threading.Event()
    showing = threading.Thread(target=_show, args=(what, is_over), daemon=True)
    showing.start()
    try:
        yield
    finally:
        is_over.set()
        showing.join()


def _show(what: str, is_over: threading.Event) -> None:
    seconds = 0
    while not is_over.wait(SHOWN_AFTER_S):
        seconds += 1
        sys.stderr.write(f"{_CLEARED}waiting for {what}, {seconds} s; Ctrl-C gives up")
        sys.stderr.flush()
    if seconds:
        sys.stderr.write(_CLEARED)
        sys.stderr.flush()
