"""Runs the demo as a process of its own, and ends all of it at any moment: Ctrl-C, SIGTERM, a closed terminal.

The demo calls Java, compiles, draws and has threads; an exception that a signal raises in the middle of any of these
causes long error output. So no exception is raised. The process that receives the signal does nothing but wait: it ends
every process of the demo's session, removes their folder and says so in a line.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from anabranch.cli.demo.listed import listed

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED: Final = 130
# A file in the demo's folder with the exit code, once the demo is over and its broker goes on until Ctrl-C.
STAYS: Final = "stays"
LOOK_EVERY_S: Final = 0.05
ENDS_MAX_S: Final = 20.0


def supervise(options: Mapping[str, Any]) -> int:
    """Runs the demo with `options` and returns its exit code. Its processes and its folder are gone afterwards."""
    noted: list[int] = []
    before = {one: signal.signal(one, lambda number, _: noted.append(number)) for one in SIGNALS}
    try:
        return _supervised(options, noted)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _supervised(options: Mapping[str, Any], noted: list[int]) -> int:
    folder = Path(tempfile.mkdtemp(prefix="anabranch-demo-"))
    lifeline, ours = os.pipe()
    demo = subprocess.Popen(
        [sys.executable, "-m", "anabranch.cli.demo", str(folder), str(lifeline), json.dumps(options)],
        stdin=subprocess.DEVNULL,
        pass_fds=(lifeline,),
        # A terminal signals its own session only: none of the demo's processes gets Ctrl-C.
        start_new_session=True,
        # All temporary files, Java's too, are made in that folder.
        env={**os.environ, "TMPDIR": str(folder)},
    )
    os.close(lifeline)
    while demo.poll() is None and not noted:
        time.sleep(LOOK_EVERY_S)
    code = demo.poll()
    end_session(demo.pid)
    demo.wait()
    os.close(ours)
    stayed = folder / STAYS
    if code is None and stayed.exists():
        return int(stayed.read_text())
    if not stayed.exists():
        remove(folder)
    if code is not None and code >= 0:
        return code
    with suppress(OSError):  # The terminal was closed.
        _say(code)
    return INTERRUPTED if code is None else 128 - code


def _say(code: int | None) -> None:
    if sys.stdout.isatty():
        print("\x1b[?25h", flush=True)  # Shows the cursor, which the display had hidden.
    told = "interrupted" if code is None else f"the demo's process got {signal.Signals(-code).name}"
    print(f"anabranch: {told}; everything was stopped and its folder removed", file=sys.stderr, flush=True)


def end_session(session: int, *, but: int = 0) -> None:
    """Sends SIGKILL to all processes of a session, except `but`; their work is not needed any more."""
    deadline = time.monotonic() + ENDS_MAX_S
    while True:
        found = members(session) - {but}
        if not found or time.monotonic() > deadline:
            return
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        # A process that was being started may have been missed.
        time.sleep(0.01)


def members(session: int) -> set[int]:
    """The living processes of a session. Their groups may differ: Spark's Python workers make one of their own."""
    found = set()
    for process in listed():
        with suppress(OSError):
            if not process.has_ended and os.getsid(process.pid) == session:
                found.add(process.pid)
    return found


def remove(folder: Path) -> None:
    """Removes the folder. Call it once no process is left that would write to it."""
    shutil.rmtree(folder, ignore_errors=True)
