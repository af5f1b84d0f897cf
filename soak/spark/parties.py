"""The processes that are killed, but for the broker: the driver, and the executors it started."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

from soak.spark.driver import Setup
from soak.spark.warden import kill, processes

ROOT = Path(__file__).parents[2]


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


class Driver:
    """One driver after the other. Executors of a killed one may live on for a while, as they do anywhere."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.log = setup.path("driver.log")
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        assert not self.is_running
        scratch = self.setup.path("scratch")
        scratch.mkdir(exist_ok=True)
        paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        with self.log.open("ab") as log:
            # A session of its own, so that its executors can be distinguished from those of the one before.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "soak.spark.driver", self.setup.text()],
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                    # Killed processes leave files behind: these are removed with the folder.
                    "TMPDIR": str(scratch),
                    "SPARK_LOCAL_DIRS": str(scratch),
                },
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.starts += 1

    def kill(self) -> None:
        """The driver's two halves, Python and the JVM."""
        assert self._process is not None
        for pid in [*self._own("org.apache.spark.deploy.SparkSubmit"), self._process.pid]:
            kill(pid)
        self._process.wait()

    def executors(self) -> list[int]:
        """The executors of a cluster, else the Python processes that run tasks; other Python processes belong to the
        driver."""
        return self._own("CoarseGrainedExecutorBackend") or self._own("pyspark.daemon pyspark.worker")

    def kill_executor(self, chance: random.Random) -> bool:
        found = self.executors()
        return bool(found) and kill(chance.choice(found))

    def _own(self, what: str) -> list[int]:
        """Processes of the running driver whose command contains `what`."""
        assert self._process is not None
        return [pid for pid in processes() if _session_of(pid) == self._process.pid and what in _command(pid)]

    def reason(self) -> str:
        """Why the last one ended by itself."""
        lines = self.log.read_text(errors="replace").splitlines()
        told = [line for line in lines if line.startswith("driver: ")]
        return (told or lines or ["nothing was said"])[-1][:300]
