"""The demo as a terminal runs it: a session of its own, Ctrl-C for all of its foreground group."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

ENDS_MAX_S = 120.0  # For a machine that is busy otherwise.


class DemoProcess:
    """A context manager: it leaves no process behind. Its temporary files are in `scratch`."""

    def __init__(self, scratch: Path, *options: str, command: Sequence[str] = ()) -> None:
        self.scratch = scratch
        scratch.mkdir(exist_ok=True)
        # A signal that is ignored here would be ignored there, as in tests that a shell runs in the background. One
        # that has a handler here has its default there, as in a terminal.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self._process = subprocess.Popen(
                [*(command or (sys.executable, "-m", "anabranch.cli", "demo")), *options],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "TMPDIR": str(scratch), "VENV": sys.prefix},
                start_new_session=True,
            )
        finally:
            signal.signal(signal.SIGINT, before)
        assert self._process.stdout is not None
        self._output = self._process.stdout
        self.pid = self._process.pid
        self.shown = ""

    def __enter__(self) -> DemoProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._output.close()

    def until_it_says(self, words: str) -> None:
        for line in self._output:
            self.shown += line
            if words in line:
                return
        raise AssertionError(f"the demo never said {words!r}:\n{self.shown}")

    def ctrl_c(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL for the process that was started, and for no other."""
        self._process.kill()

    def ended(self, within_s: float = ENDS_MAX_S) -> int:
        """Waits for its end; `shown` has all its output."""
        shown, _ = self._process.communicate(timeout=within_s)
        self.shown += shown
        return self._process.returncode

    def processes(self) -> set[int]:
        """All processes that run with its temporary folder, or with one in it."""
        found = set()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if f"TMPDIR={self.scratch}".encode() in path.read_bytes():
                    found.add(int(path.parent.name))
        return found
