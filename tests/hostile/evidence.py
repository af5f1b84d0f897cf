"""What a broker process gives away about its health: its log, its memory, whether it lives."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TURN: Final = re.compile(
    r"one turn of the event loop kept others waiting for (\d+) ms and used (\d+) ms of processor time"
    r" \((\d+) ms of it to collect garbage\), in (.*)"
)
_HELD: Final = re.compile(
    r"one turn of the event loop keeps others waiting for more than 1 s so far, in (.*)"
)
_FRAME: Final = re.compile(r'File ".*?/anabranch/(.+?)", line (\d+), in (\S+)')
_LINE: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S* (\w+) (\S+) (.*)")


@dataclass(frozen=True)
class Finding:
    """`place` tells one fault from another; `detail` is for the reader."""

    kind: str
    place: str
    detail: str = ""
    cpu_ms: int = 0  # Of a slow turn.

    def __str__(self) -> str:
        return f"{self.kind}: {self.place}" + (f" ({self.detail})" if self.detail else "")


class LogTail:
    """Reads what a broker has written to its log since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._rest = ""
        self.longest_ms = 0
        self.longest_cpu_ms = 0

    def look(self) -> list[Finding]:
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return []
        if size <= self._at:
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        self._at += len(data)
        text = self._rest + data.decode(errors="replace")
        whole, newline, self._rest = text.rpartition("\n")
        return list(self._read(whole.splitlines())) if newline else []

    def _read(self, lines: list[str]) -> Iterator[Finding]:
        at = 0
        while at < len(lines):
            line = lines[at]
            at += 1
            if found := _TURN.search(line):
                wall, cpu, collecting, place = int(found[1]), int(found[2]), int(found[3]), found[4]
                self.longest_ms, self.longest_cpu_ms = (
                    max(self.longest_ms, wall),
                    max(self.longest_cpu_ms, cpu),
                )
                told = (
                    f"{cpu} ms of processor time, {collecting} of them for garbage, {wall} ms in all; {place}"
                )
                yield Finding("slow turn", _inner(place), told, cpu)
            elif found := _HELD.search(line):
                yield Finding("held", _inner(found[1]), found[1])
            elif line.startswith("Traceback (most recent call last)"):
                end = at
                while end < len(lines) and not _LINE.match(lines[end]):
                    end += 1
                yield _traceback(lines[at - 2] if at > 1 else "", lines[at:end])
                at = end
            elif (event := _LINE.match(line)) and event[1] in ("ERROR", "CRITICAL"):
                if at < len(lines) and lines[at].startswith("Traceback"):
                    continue
                yield Finding("error", event[2], event[3][:200])


def _inner(place: str) -> str:
    """Without line numbers, the innermost function that is ours."""
    for part in place.split(", called by "):
        path, _, function = part.partition(" ")
        name = path.rpartition(":")[0]
        if "/" in name:
            return f"{name} {function}"
    return place


def _traceback(above: str, lines: list[str]) -> Finding:
    frames = [found for line in lines if (found := _FRAME.search(line))]
    last = next((line for line in reversed(lines) if line and not line.startswith(" ")), "")
    told = _LINE.match(above)
    where = f"{frames[-1][1]}:{frames[-1][2]} {frames[-1][3]}" if frames else "?"
    error = last.partition(":")[0]
    return Finding("traceback", f"{error} in {where}", f"{told[3][:120] if told else ''}; {last[:160]}")


class Memory:
    """Resident memory of some processes, and its highest mark since the last reset."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._folders = [Path(f"/proc/{pid}") for pid in pids]

    def _field(self, name: str) -> int:
        return sum(_field_of(folder, name) for folder in self._folders)

    @property
    def are_alive(self) -> bool:
        """Whether none of the processes has ended."""
        return all(folder.exists() for folder in self._folders)

    @property
    def resident(self) -> int:
        return self._field("VmRSS")

    @property
    def peak(self) -> int:
        return self._field("VmHWM")

    def forget_peak(self) -> None:
        for folder in self._folders:
            with contextlib.suppress(OSError):
                (folder / "clear_refs").write_text("5")


def _field_of(folder: Path, name: str) -> int:
    with contextlib.suppress(OSError):
        for line in (folder / "status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) << 10
    return 0
