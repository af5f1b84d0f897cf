"""What processes cost, read from /proc: CPU seconds and resident memory of a broker, and how busy the rest was."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

HZ = os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """The process and its living descendants."""
    found = [pid]
    for parent in found:
        try:
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of the process, its descendants, and those of them already reaped."""
    total = 0
    for member in family(pid):
        try:
            stat = Path(f"/proc/{member}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += sum(int(ticks) for ticks in stat[11:15])
    return total / HZ


def machine_busy_seconds() -> float:
    ticks = [int(t) for t in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / HZ


def started_at(pid: int) -> float:
    """When the process began, on the boot clock."""
    stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(stat[19]) / HZ


def is_running(pid: int) -> bool:
    """Whether the process still does anything; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident megabytes: all of it, and the part that is not pages of files."""

    rss_mb: float
    anon_mb: float


def memory(pid: int) -> Memory:
    rss = anon = 0
    for member in family(pid):
        try:
            lines = Path(f"/proc/{member}/status").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith("VmRSS:"):
                rss += int(line.split()[1])
            elif line.startswith(("RssAnon:", "RssShmem:")):
                anon += int(line.split()[1])
    return Memory(rss / 1024, anon / 1024)


@dataclass(frozen=True, slots=True)
class Reading:
    """CPU seconds used so far, by whom."""

    machine: float
    broker: float
    client: float


def read(broker: int, client: int) -> Reading:
    return Reading(machine_busy_seconds(), cpu_seconds(broker), cpu_seconds(client))


class PeakWatch:
    """Samples a broker's memory until stopped; `peak` holds the largest of each figure."""

    def __init__(self, pid: int, every: float = 0.1) -> None:
        self._pid, self._every = pid, every
        self._stop = threading.Event()
        self.peak = memory(pid)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(self._every):
            now = memory(self._pid)
            self.peak = Memory(max(self.peak.rss_mb, now.rss_mb), max(self.peak.anon_mb, now.anon_mb))

    def stop(self) -> Memory:
        self._stop.set()
        self._thread.join()
        return self.peak


def tree_bytes(folder: Path) -> int:
    """Disk blocks in use below a folder; files may vanish while it is read."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(base, name)).st_blocks * 512
            except OSError:
                continue
    return total
