"""The processes that are killed, but for the broker: the driver, and the executors it started."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from soak.spark.driver import Setup


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def kill(pid: int) -> bool:
    """kill -9; whether it was there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


class Driver:
    """One driver after the other. Executors of one that was killed may live on for a while, as they do anywhere."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.log = setup.path("driver.log")
        self._process: subprocess.Popen[bytes] | None = None
        self._sessions: list[int] = []
        self.starts = 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        assert not self.is_running
        with self.log.open("ab") as log:
            # A session of its own, so that all it starts can be found again.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "soak.spark.driver", self.setup.text()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._sessions.append(self._process.pid)
        self.starts += 1

    def kill(self) -> None:
        """The driver's two halves, Python and the JVM."""
        assert self._process is not None
        for pid in [*self._own("org.apache.spark.deploy.SparkSubmit"), self._process.pid]:
            kill(pid)
        self._process.wait()

    def executors(self) -> list[int]:
        """Those of a cluster, else the Python processes that run tasks."""
        return self._own("CoarseGrainedExecutorBackend") or self._own("pyspark.daemon")

    def kill_executor(self, chance: random.Random) -> bool:
        found = self.executors()
        return bool(found) and kill(chance.choice(found))

    def _own(self, what: str) -> list[int]:
        """Processes of the running driver whose command has that in it."""
        assert self._process is not None
        pids = sorted(int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit())
        return [pid for pid in pids if _session_of(pid) == self._process.pid and what in _command(pid)]

    def end(self) -> None:
        """Nothing that any of them started is left."""
        for session in self._sessions:
            for one in Path("/proc").iterdir():
                if one.name.isdigit() and _session_of(int(one.name)) == session:
                    kill(int(one.name))
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)

    def reason(self) -> str:
        """Why the last one ended by itself."""
        lines = self.log.read_text(errors="replace").splitlines()
        told = [line for line in lines if line.startswith("driver: ")]
        return (told or lines or ["nothing was said"])[-1][:300]
