"""Several brokers on one folder, `anabranch standalone --brokers N`: a supervisor and processes that can be killed."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Self

from harness.broker_process import METADATA, START_MAX_S, BrokerProcess, until

__all__ = ["METADATA", "ClusterProcess", "broker", "connected_ports", "is_alive"]


def broker(index: int) -> str:
    return f"broker-{index}"


class ClusterProcess(BrokerProcess):
    """As a `BrokerProcess`: `url` and `http_port` are those that the brokers share, `pid` is the supervisor's."""

    def start(self) -> Self:
        """Returns once every broker serves."""
        super().start()
        until(lambda: len(self.pids) == self.brokers + 1, within_s=START_MAX_S)
        return self

    def kill_one(self, name: str) -> int:
        """SIGKILL for one process; returns the pid that it had."""
        pid = self.pids[name]
        os.kill(pid, signal.SIGKILL)
        return pid

    def await_again(self, name: str, former: int) -> int:
        """Waits until the process that had this pid serves again under another; returns that."""
        told = f"{name} serves again"
        before = self._counted.get(told, 0)
        until(lambda: self.log_since_start.count(told) > before)
        self._counted[told] = before + 1
        pid = self.pids[name]
        assert pid != former
        return pid


def is_alive(pid: int) -> bool:
    """A process that has ended and was not waited for is not alive."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] not in "ZX"
    except OSError:
        return False


def connected_ports() -> set[int]:
    """The ports to which this process has open connections."""
    numbers = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            numbers.add(str(entry.readlink()).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[2].partition(":")[2], 16) for row in rows if row[3] == "01" and row[9] in numbers}
