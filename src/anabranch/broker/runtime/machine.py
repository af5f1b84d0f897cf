"""What the process uses of its machine, and how much of it there is: memory, and the speed of the network."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/")
# Larger limits of a control group mean that there is none.
_UNLIMITED_BYTES: Final = 1 << 60
_BYTES_PER_MEGABIT: Final = 125_000
# An interface of Linux that is an Ethernet port, or looks like one.
_ETHERNET: Final = "1"


def resident_bytes() -> int:
    """The present memory use; the peak, where the system reports only that."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        # Kilobytes everywhere except on macOS.
        scale = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def memory_bytes_max(root: Path = _ROOT) -> int:
    """The memory that this process can have: the machine's, or less if its control group, or one around it, says so."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(machine, *(limit for limit in _group_limits(root) if limit < _UNLIMITED_BYTES))


def _group_limits(root: Path) -> Iterator[int]:
    yield _UNLIMITED_BYTES - 1
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            folder, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the path is the host's, and the group's own files are at the top.
        within = Path(path.lstrip("/"))
        for one in (within, *within.parents):
            limit = _text(folder / one / name).strip()
            if limit.isdecimal():
                yield int(limit)


def network_bytes_per_s(names: Collection[str] = (), root: Path = _ROOT) -> float | None:
    """What the network takes in each direction: the speeds of these interfaces, or of all physical ones that are up,
    together. None if they do not say, as virtual machines' often do not."""
    folder = root / "sys/class/net"
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return None
    total = 0.0
    for interface in found:
        is_wanted = interface.name in names if names else _is_physical(interface)
        speed = _text(interface / "speed").strip()
        if is_wanted and speed.isdecimal():
            total += int(speed) * _BYTES_PER_MEGABIT
    return total or None


def _is_physical(interface: Path) -> bool:
    return (
        "/virtual/" not in str(interface.resolve())
        and _text(interface / "type").strip() == _ETHERNET
        and _text(interface / "operstate").strip() == "up"
    )


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
