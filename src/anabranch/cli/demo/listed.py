"""The processes of the system, as the demo looks for its own among them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ListedProcess:
    pid: int
    parent: int
    state: str  # The first letter of it: Z and X are those that have ended.
    words: list[str]  # The command line.

    @property
    def has_ended(self) -> bool:
        return self.state in "ZX"


def listed() -> Iterator[ListedProcess]:
    """Every process, also one that has ended and was not waited for."""
    if not Path("/proc/self/stat").exists():
        told = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid=,stat=,args="], capture_output=True, text=True, check=True
        )
        for line in told.stdout.splitlines():
            pid, parent, state, *words = line.split()
            yield ListedProcess(int(pid), int(parent), state[0], words)
        return
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # State and parent stand behind the name, which may hold any character.
            state, parent, *_ = (folder / "stat").read_text(errors="replace").rpartition(") ")[2].split()
            words = (folder / "cmdline").read_text(errors="replace").split("\0")
            yield ListedProcess(int(folder.name), int(parent), state, words)
