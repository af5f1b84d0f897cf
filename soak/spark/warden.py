"""No process of a run outlives it: `python -m soak.spark.warden RUN` kills what is left of the run when its starter is
gone.

Its input is a pipe that the conductor holds and never writes to; it ends when the conductor ends, for whatever reason.
Processes of a run are known by an environment variable, which their children inherit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "SOAK_RUN"
# A JVM that is being killed may just be starting a process.
QUIET_S = 1.0
WITHIN_S = 30.0


def processes() -> list[int]:
    return sorted(int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit())


def members(run: str) -> list[int]:
    """The processes of a run, but for this one."""
    mark = f"{VARIABLE}={run}".encode()
    return [pid for pid in processes() if pid != os.getpid() and mark in _environment(pid)]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def kill(pid: int) -> bool:
    """kill -9; returns whether the process existed."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def end_all(run: str) -> None:
    """Kills until there has been no process for a while."""
    deadline = time.monotonic() + WITHIN_S
    quiet_since = time.monotonic()
    while (now := time.monotonic()) < deadline and now - quiet_since < QUIET_S:
        if [pid for pid in members(run) if kill(pid)]:
            quiet_since = now
        time.sleep(0.05)


@contextlib.contextmanager
def watching(run: str) -> Iterator[None]:
    """All processes started within belong to the run, and are gone when the block is left or this process dies."""
    # Before the variable is set: the warden is not part of the run. In a session of its own it is not interrupted with
    # us.
    warden = subprocess.Popen(
        [sys.executable, "-m", "soak.spark.warden", run], stdin=subprocess.PIPE, start_new_session=True
    )
    os.environ[VARIABLE] = run
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        assert warden.stdin is not None
        warden.stdin.close()
        warden.wait()


def main() -> None:
    sys.stdin.buffer.read()
    end_all(sys.argv[1])


if __name__ == "__main__":
    main()
