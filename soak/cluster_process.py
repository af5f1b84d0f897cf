"""A real `anabranch standalone --brokers N` for fault injection: each of its processes can be hit by itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from soak.broker import START_SECONDS_MAX, BrokerProcess
from soak.ports import free_port

METADATA = "metadata"
_CHILD = b"anabranch.supervisor.child"


class ClusterProcesses(BrokerProcess):
    """As a broker's process: `pid` and signals are the supervisor's, ports are those that the brokers share."""

    def __init__(self, data: Path, settings: Mapping[str, object] | None = None, *, brokers: int) -> None:
        own = {"brokersFirstPort": _free_ports(brokers), "brokersFirstWebPort": _free_ports(brokers)}
        super().__init__(data, {**(settings or {}), **own})
        self.brokers = brokers
        self.arguments = ("--brokers", str(brokers))

    @property
    def pids(self) -> dict[str, int]:
        """The living processes by name: `metadata`, `broker-0`, `broker-1`, …"""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if _CHILD in words and _parent(folder) == self.pid:
                    found[words[words.index(_CHILD) + 1].decode()] = int(folder.name)
        return found

    def signal_one(self, name: str, pid: int, number: int) -> bool:
        """False if the process of that name has another pid, or none."""
        if self.pids.get(name) != pid:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return True

    def kill(self) -> None:
        """kill -9 of the supervisor. Returns once its processes, which end with it, have ended."""
        pids = list(self.pids.values())
        super().kill()
        deadline = time.monotonic() + START_SECONDS_MAX
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes outlive their supervisor: {pids}")
            time.sleep(0.01)

    def wait_ready(self) -> None:
        """Until every broker stores entries, and is known to the others."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            if not self.is_running:
                raise RuntimeError(f"the supervisor ended by itself:\n{self.log_tail()}")
            with contextlib.suppress(OSError, urllib.error.URLError):
                known = self.addresses()
                if len(known) == self.brokers and all(
                    self.get(one, "admin/v2/brokers/health") == "ok" for one in known
                ):
                    return
            time.sleep(0.05)
        raise TimeoutError(f"not all brokers were ready in {START_SECONDS_MAX:.0f} s:\n{self.log_tail()}")

    def addresses(self) -> list[str]:
        """The HTTP address of each registered broker, which is also its name for moves."""
        return sorted(self.rest("GET", "brokers/standalone", timeout=5))

    def bundle_of(self, topic: str) -> str:
        return str(self.get(f"127.0.0.1:{self.http_port}", f"lookup/v2/topic/persistent/{topic}/bundle"))

    def get(self, address: str, path: str) -> Any:
        with urllib.request.urlopen(f"http://{address}/{path}", timeout=5) as response:
            text = response.read().decode()
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text

    def log_files(self, pid: int) -> list[Path]:
        """The log files that one broker has written so far: those beside the one that it has open."""
        folders = set()
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                path = link.readlink()
                if path.suffix == ".wal":
                    folders.add(path.parent)
        return [path for folder in folders for path in folder.glob("*.wal")]


def _free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    found = [free_port()]
    while len(found) < count:
        port = free_port()
        found = [*found, port] if port == found[-1] + 1 else [port]
    return found[0]


def stop_to_cut(pid: int) -> None:
    """SIGSTOP; returns once the process does nothing any more."""
    os.kill(pid, signal.SIGSTOP)
    while _state(Path(f"/proc/{pid}")) not in "TtZX":
        time.sleep(0.001)


def _state(folder: Path) -> str:
    return (folder / "stat").read_text().rpartition(") ")[2].split()[0]


def _parent(folder: Path) -> int:
    return int((folder / "stat").read_text().rpartition(") ")[2].split()[1])
