"""What a run leaves behind: one record per system, case and round, with the machine it ran on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

DISTURBED_CORES = 0.2
"""A run during which the rest of the machine used more than this is marked as disturbed."""


@dataclass(frozen=True, slots=True)
class Record:
    system: str
    case: str
    round: int
    metrics: dict[str, float]
    failure: str = ""


@dataclass(slots=True)
class Results:
    machine: dict[str, str] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    growth: list[dict[str, Any]] = field(default_factory=list)
    coldread: list[dict[str, Any]] = field(default_factory=list)
    scalable: list[dict[str, Any]] = field(default_factory=list)
    client: list[dict[str, Any]] = field(default_factory=list)

    def values(self, system: str, case: str, key: str) -> list[float]:
        """The figure in every round that gave one."""
        rounds = (r.metrics for r in self.records if r.system == system and r.case == case and not r.failure)
        return [metrics[key] for metrics in rounds if key in metrics]

    def middle(self, system: str, case: str, key: str) -> float | None:
        found = self.values(system, case, key)
        return median(found) if found else None

    def peak(self, system: str, key: str) -> float | None:
        """The largest of the cases' medians: what the broker needs for the most demanding case."""
        cases = {r.case for r in self.records}
        found = [value for case in cases if (value := self.middle(system, case, key)) is not None]
        return max(found, default=None)

    def disturbed(self) -> int:
        return sum(1 for r in self.records if r.metrics.get("others_cores", 0) > DISTURBED_CORES)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        rounded = [
            asdict(r) | {"metrics": {key: round(value, 4) for key, value in r.metrics.items()}}
            for r in self.records
        ]
        whole = {
            "machine": self.machine,
            "growth": self.growth,
            "coldread": self.coldread,
            "scalable": self.scalable,
            "client": self.client,
            "records": rounded,
        }
        path.write_text(json.dumps(whole, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        whole = json.loads(path.read_text())
        records = [Record(**r) for r in whole["records"]]
        return cls(
            whole["machine"],
            records,
            whole["growth"],
            whole.get("coldread", []),
            whole.get("scalable", []),
            whole.get("client", []),
        )


def describe_machine() -> dict[str, str]:
    cpu = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        "?",
    )
    memory_kb = next(
        (int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0
    )
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.split(
        "\n"
    )[0]
    return {
        "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cpu": cpu,
        "cores": str(os.cpu_count()),
        "memory": f"{memory_kb / 1024**2:.0f} GB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "client java": java,
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
