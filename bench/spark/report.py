"""Turns the runs of `bench.spark` into a page. Decides what was aimed for."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
OURS, DEFAULT, TUNED, PARQUET, READY = "anabranch", "kafka", "kafka-tuned", "parquet", "ready"
TITLES = {
    OURS: "Anabranch",
    DEFAULT: "Kafka",
    TUNED: "Kafka, tuned fetches",
    PARQUET: "Parquet",
    READY: "ready rows from Python",
}
# How many times as fast as which other system ours should be, by case and data set.
AIMS: dict[tuple[str, str], dict[str, float]] = {
    ("read", "1 KB"): {DEFAULT: 2.4, TUNED: 2.0},
    ("read", "100 B"): {DEFAULT: 3.5, TUNED: 2.0},
    ("stream", "1 KB"): {DEFAULT: 2.0},
    ("stream", "100 B"): {DEFAULT: 3.0},
    ("write", "1 KB"): {DEFAULT: 1.5},
    ("write", "100 B"): {DEFAULT: 1.5},
    ("read_all_columns", "1 KB"): {TUNED: 1.2},
    ("read_all_columns", "100 B"): {TUNED: 1.2},
}
CASES = {
    "read": "batch read",
    "read_all_columns": "batch read, every column",
    "read_through_broker": "batch read through the broker",
    "stream": "stream, availableNow, within triggers",
    "write": "batch write",
}
BROKER_SHARE_MAX, FIRST_S_MAX = 0.05, 5.0
WIDE_S_MAX = 2.0
# By the number of segments; CPU of the broker and the driver's Python together.
IDLE_CORES_MAX = {"64": 0.05, "512": 0.1}
# More than this of a core taken by others: the run is marked.
DISTURBED_CORES = 0.2


@dataclass(frozen=True, slots=True)
class Run:
    case: str
    data: str
    system: str
    round: int
    rows: int
    seconds: float
    broker_cores: float
    others_cores: float
    # CPU of Spark, its Python workers and the broker that was read from or written to.
    cpu_seconds: float

    @property
    def rate(self) -> float:
        return self.rows / self.seconds

    @property
    def rows_per_cpu_second(self) -> float:
        """Changes less than the rate when others use the machine."""
        return self.rows / self.cpu_seconds


@dataclass(slots=True)
class Results:
    machine: dict[str, str] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    first_query_s: list[float] = field(default_factory=list)
    # The first query of a Python source that has nothing to load.
    first_ready_s: list[float] = field(default_factory=list)
    # Seconds of a micro-batch over many topics with a row each, and of a batch over many segments with a few.
    many_topics_s: list[float] = field(default_factory=list)
    many_segments_s: list[float] = field(default_factory=list)
    # CPU of an idle query, by the number of its segments: of the broker, of Python, and of Spark's JVM.
    idle_cores: dict[str, dict[str, float]] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        whole = json.loads(path.read_text())
        runs = [Run(**one) for one in whole["runs"]]
        return cls(**{**whole, "runs": runs})


def table(results: Results) -> str:
    lines = [
        f"| case, k rows/s | {' | '.join(TITLES.values())} | vs Kafka | vs Kafka, tuned | vs Parquet | aim |",
        "|---" * (len(TITLES) + 5) + "|",
    ]
    for case, title in CASES.items():
        sets = dict.fromkeys(one.data for one in results.runs if one.case == case)
        lines += [_line(results, case, data, f"{title}, {data}") for data in sets]
    return "\n".join(lines) + "\n"


def _line(results: Results, case: str, data: str, title: str) -> str:
    rates = {
        system: [one.rate for one in results.runs if _is_of(one, case, data, system)] for system in TITLES
    }
    ratios = {
        system: median(rates[OURS]) / median(found)
        for system, found in rates.items()
        if system != OURS and found and rates[OURS]
    }
    aims = [
        f"{factor:g}x {TITLES[than]} {'✓' if ratios[than] >= factor else '✗'}"
        for than, factor in AIMS.get((case, data), {}).items()
        if than in ratios
    ]
    shown = [f"{ratios[system]:.2f}x" if system in ratios else "-" for system in (DEFAULT, TUNED, PARQUET)]
    return (
        f"| {title} | {' | '.join(map(_spread, rates.values()))} | {' | '.join(shown)} | {'; '.join(aims)} |"
    )


def cpu_table(results: Results) -> str:
    """How many rows one second of CPU processes.

    Without disturbed runs: a worker of Spark that ends takes its CPU seconds along, and they seem to be others'. A case
    of which no run was undisturbed has no line.
    """
    lines = [
        f"| case, k rows per CPU second | {' | '.join(TITLES.values())} | vs Kafka | vs Kafka, tuned |",
        "|---" * (len(TITLES) + 3) + "|",
    ]
    for case, title in CASES.items():
        for data in dict.fromkeys(one.data for one in results.runs if one.case == case):
            found = {
                system: [
                    one.rows_per_cpu_second
                    for one in results.runs
                    if _is_of(one, case, data, system) and one.others_cores <= DISTURBED_CORES
                ]
                for system in TITLES
            }
            if not found[OURS]:
                continue
            ratios = [
                f"{median(found[OURS]) / median(found[than]):.2f}x" if found[OURS] and found[than] else "-"
                for than in (DEFAULT, TUNED)
            ]
            lines.append(
                f"| {title}, {data} | {' | '.join(map(_spread, found.values()))} | {' | '.join(ratios)} |"
            )
    return "\n".join(lines) + "\n"


def _is_of(run: Run, case: str, data: str, system: str) -> bool:
    # The other systems have one way of reading: ours are compared with that. Ready rows may have all columns as well.
    theirs = "read" if case.startswith("read") and system != READY else case
    return (run.case, run.data, run.system) == (case if system == OURS else theirs, data, system)


def _spread(rates: list[float]) -> str:
    if not rates:
        return "-"
    middle, low, high = (f"{one / 1000:,.0f}" for one in (median(rates), min(rates), max(rates)))
    return middle if len(rates) == 1 else f"{middle} ({low} to {high})"


def facts(results: Results) -> str:
    """What is measured beside rates."""
    lines = ["| what | figure | aim |", "|---|---|---|"]
    direct = [one for one in results.runs if one.system == OURS and one.case == "read"]
    if direct:
        share = sum(one.broker_cores * one.seconds for one in direct) / sum(one.seconds for one in direct)
        mark = "✓" if share < BROKER_SHARE_MAX else "✗"
        lines.append(
            f"| broker CPU during direct reads | {share:.1%} of a core | < {BROKER_SHARE_MAX:.0%} {mark} |"
        )
    if results.first_query_s:
        first = median(results.first_query_s)
        mark = "✓" if first <= FIRST_S_MAX else "✗"
        lines.append(f"| first query of a warm session | {first:.1f} s | ≤ {FIRST_S_MAX:g} s {mark} |")
    if results.first_ready_s:
        ready = median(results.first_ready_s)
        lines.append(f"| the same of ready rows from Python | {ready:.1f} s | |")
    for what, found in (
        ("a micro-batch over 500 topics, a row each", results.many_topics_s),
        ("a batch over 200 segments, a few rows each", results.many_segments_s),
    ):
        if found:
            mark = "✓" if median(found) <= WIDE_S_MAX else "✗"
            lines.append(f"| {what} | {median(found):.1f} s | ≤ {WIDE_S_MAX:g} s {mark} |")
    for segments, cores in results.idle_cores.items():
        ours, most = cores["broker"] + cores["python"], IDLE_CORES_MAX[segments]
        mark = "✓" if ours <= most else "✗"
        lines.append(
            f"| an idle query, {segments} segments | {ours:.3f} cores (and Spark's JVM {cores['jvm']:.3f}) "
            f"| ≤ {most:g} {mark} |"
        )
    return "\n".join(lines) + "\n"


def write(results: Results, folder: Path) -> None:
    """Rewrites the generated part of README.md; prose outside the marks is left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "README.md"
    prose = page.read_text() if page.exists() else f"# Spark\n\n{BEGIN}\n{END}\n"
    machine = ", ".join(f"{name}: {value}" for name, value in results.machine.items())
    disturbed = sum(one.others_cores > DISTURBED_CORES for one in results.runs)
    noise = f"{disturbed} of {len(results.runs)} runs shared the machine with other work"
    head, rest = prose.split(BEGIN, 1)
    body = f"\n{machine}. {noise}.\n\n{table(results)}\n{facts(results)}\n{cpu_table(results)}"
    page.write_text(f"{head}{BEGIN}\n{body}{END}{rest.split(END, 1)[1]}")
