"""What the cases of `bench.cluster` found, held against their bars, and the page that shows it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
PROSE = f"""# Several brokers on one machine

`make bench-cluster` measures (`python -m bench.cluster --help`; `--only CASE` measures one case and keeps the
others) and rewrites the part between the marks. `results.json` holds every figure.

{BEGIN}
{END}
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure and its bar. `most` is the largest figure that holds; None is a figure that is only shown."""

    what: str
    figure: float
    unit: str = ""
    most: float | None = None
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.most is None or (not math.isnan(self.figure) and self.figure <= self.most)

    @property
    def told(self) -> str:
        return f"{self.figure:,.4g} {self.unit}".strip()

    @property
    def bar(self) -> str:
        return "" if self.most is None else f"≤ {self.most:,.4g} {self.unit}".strip()

    def line(self, case: str) -> str:
        verdict = "" if self.most is None else f"   {self.bar}: {'holds' if self.holds else 'MISSED'}"
        return f"{case:<10} {self.what:<62} {self.told:>14}{verdict}{'   ' + self.note if self.note else ''}"


@dataclass(slots=True)
class CaseResult:
    title: str
    when: str
    findings: list[Finding] = field(default_factory=list)
    others_cores: float = 0.0
    is_quick: bool = False
    # Where it was another machine's than that of most cases.
    cpu: str = ""


@dataclass(slots=True)
class Results:
    machine: dict[str, str] = field(default_factory=dict)
    cases: dict[str, CaseResult] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        whole = json.loads(path.read_text())
        cases = {
            name: CaseResult(**{**one, "findings": [Finding(**each) for each in one["findings"]]})
            for name, one in whole["cases"].items()
        }
        return cls(whole["machine"], cases)


def write(results: Results, folder: Path) -> None:
    """Rewrites the generated part of README.md; prose outside the marks is left alone."""
    page = folder / "README.md"
    prose = page.read_text() if page.exists() else PROSE
    machine = ", ".join(f"{name}: {value}" for name, value in results.machine.items())
    lines = [f"{machine}.", ""]
    for name, case in results.cases.items():
        noise = f", {case.others_cores:.2f} cores used by others" if case.others_cores > 0.2 else ""
        if case.cpu and case.cpu != results.machine.get("cpu"):
            noise += f", on {case.cpu}"
        lines += [
            f"## {case.title}",
            "",
            f"`--only {name}`, {case.when}{', --quick' if case.is_quick else ''}{noise}",
            "",
        ]
        lines += ["| | figure | bar | |", "|---|---|---|---|"]
        for one in case.findings:
            mark = "" if one.most is None else "✓" if one.holds else "✗"
            lines.append(f"| {one.what} | {one.told} | {one.bar} {mark} | {one.note} |")
        lines.append("")
    head, rest = prose.split(BEGIN, 1)
    page.write_text(f"{head}{BEGIN}\n\n" + "\n".join(lines) + f"{END}{rest.split(END, 1)[1]}")


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed; NaN of none."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
