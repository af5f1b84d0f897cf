"""Turns results into the table and the chart of docs/benchmarks/. Decides what a ratio means and what was aimed for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.cases import CASES, Figure
from bench.results import Results
from bench.systems import SYSTEMS

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
OURS, REFERENCE = "anabranch", "pulsar"
MEMORY = Figure("rss_mb", "resident memory", "MB", lower_is_better=True)
START = Figure("first_publish_seconds", "start to first publish", "s", lower_is_better=True, digits=2)


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    figure: Figure
    values: dict[str, float]
    spread: dict[str, tuple[float, float]]

    def times_better(self, system: str, than: str) -> float | None:
        """How many times better the system is than another: above 1 is better whatever the unit."""
        a, b = self.values.get(system), self.values.get(than)
        if not a or not b:
            return None
        return b / a if self.figure.lower_is_better else a / b


@dataclass(frozen=True, slots=True)
class Aim:
    """What ours should reach: a ratio to another system, or (than = "") a plain value."""

    factor: float
    than: str

    def text(self, row: Row) -> str:
        if self.than:
            return f"{self.factor:g}x {SYSTEMS[self.than].title}"
        return f"{'≤' if row.figure.lower_is_better else '≥'} {self.factor:g} {row.figure.unit}"

    def met(self, row: Row) -> bool | None:
        if self.than:
            ratio = row.times_better(OURS, self.than)
            return None if ratio is None else ratio >= self.factor
        ours = row.values.get(OURS)
        if ours is None:
            return None
        return ours <= self.factor if row.figure.lower_is_better else ours >= self.factor


AIMS: dict[tuple[str, str], tuple[Aim, ...]] = {
    ("produce-1k", "per_second"): (Aim(1.0, "pulsar"), Aim(1.4, "pulsar-synced")),
    ("produce-10k", "mb_per_second"): (Aim(1.5, "pulsar"),),
    ("produce-100b", "per_second"): (Aim(1.0, "pulsar"),),
    ("produce-100b", "broker_cpu_us"): (Aim(2.0, "pulsar"),),
    ("produce-1k-unbatched", "per_second"): (Aim(1.0, "pulsar"),),
    ("consume-1k", "per_second"): (Aim(1.7, "pulsar"),),
    ("consume-1k-raw", "mb_per_second"): (Aim(1000, ""),),
    **{
        (case, f"{what}_{share}_ms"): (Aim(2.0, "pulsar"),)
        for case in ("latency-1k", "latency-1k-unbatched", "latency-1k-raw")
        for what in ("publish", "end_to_end")
        for share in ("p50", "p99")
    },
    ("v5-produce-1k", "per_second"): (Aim(1.2, "pulsar"),),
    ("v5-consume-1k", "per_second"): (Aim(1.1, "pulsar"),),
    ("v5-consume-1k", "broker_cpu_us"): (Aim(2.0, "pulsar"),),
    ("v5-split", "call_p50_ms"): (Aim(15, ""),),
    ("v5-split", "child_async_p50_ms"): (Aim(1.0, "pulsar"),),
    ("v5-split", "child_sync_p50_ms"): (Aim(1.0, "pulsar"),),
    ("memory", "rss_mb"): (Aim(400, ""),),
    ("start", "first_publish_seconds"): (Aim(1.5, ""),),
}


def rows(results: Results) -> list[tuple[str, Row]]:
    """(case name, row) for every figure that some system gave."""
    found: list[tuple[str, Row]] = []
    for case in CASES.values():
        for figure in case.figures:
            title = f"{case.title}: {figure.title}"
            values = {s: results.values(s, case.name, figure.key) for s in SYSTEMS}
            found.append((case.name, _row(title, figure, values)))
    peaks = {s: [p] if (p := results.peak(s, MEMORY.key)) is not None else [] for s in SYSTEMS}
    found.append(("memory", _row("resident memory, most demanding case", MEMORY, peaks)))
    starts = {s: results.values(s, "start", START.key) for s in SYSTEMS}
    found.append(("start", _row("start on empty data to first publish", START, starts)))
    return [(case, row) for case, row in found if row.values]


def _row(title: str, figure: Figure, values: dict[str, list[float]]) -> Row:
    scaled = {system: sorted(v * figure.scale for v in found) for system, found in values.items() if found}
    middles = {system: _median(found) for system, found in scaled.items()}
    return Row(title, figure, middles, {system: (found[0], found[-1]) for system, found in scaled.items()})


def _median(ordered: list[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def table(results: Results) -> str:
    """Markdown: medians with their range, ratios, and whether each aim was met."""
    shown = [s for s in SYSTEMS if any(s in row.values for _, row in rows(results))]
    others = [s for s in shown if s != OURS] if OURS in shown else []
    heads = ["case", *(SYSTEMS[s].title for s in shown), *(f"vs {SYSTEMS[s].title}" for s in others), "aim"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    syncs = ["syncs before it confirms", *(SYSTEMS[s].syncs for s in shown), *("" for _ in others), ""]
    lines.append("| " + " | ".join(syncs) + " |")
    for case, row in rows(results):
        cells = [f"{row.title}, {row.figure.unit}", *(_value(row, s) for s in shown)]
        for other in others:
            ratio = row.times_better(OURS, other)
            cells.append("-" if ratio is None else f"**{ratio:.2f}x**")
        cells.append("; ".join(_aim(aim, row) for aim in AIMS.get((case, row.figure.key), ())))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _value(row: Row, system: str) -> str:
    if system not in row.values:
        return "-"
    digits = row.figure.digits
    low, high = row.spread[system]
    middle = f"{row.values[system]:,.{digits}f}"
    return middle if low == high else f"{middle} ({low:,.{digits}f} to {high:,.{digits}f})"


def _aim(aim: Aim, row: Row) -> str:
    return aim.text(row) + {None: "", True: " ✓", False: " ✗"}[aim.met(row)]


def growth_table(results: Results) -> str:
    if not results.growth:
        return ""
    lines = [
        "",
        "Growth, our broker alone (entries of 1 KB, unbatched, through a Python load generator that shares the cores):",
        "",
        "| what grows | count | entries/s | broker CPU per delivery, µs | publish p50 / p99, ms | memory, MB |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {g['what']} | {g['count']:,} | {g['per_second']:,.0f} | {g['broker_cpu_us']:.1f} "
        f"| {g['p50_ms']:.2f} / {g['p99_ms']:.2f} | {g['rss_mb']:.0f} |"
        for g in results.growth
    ]
    return "\n".join(lines) + "\n"


def coldread_table(results: Results) -> str:
    if not results.coldread:
        return ""
    lines = [
        "",
        "Cold catch-up on one topic of the log, its files dropped from the page cache, before and after rewriting has",
        "gathered the topic's entries (all topics together have the same bytes, so one of many is short):",
        "",
        "| topics interleaved | before, MB/s | after, MB/s | rewriting took, s |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {c['topics']:,} | {c['before_mb_per_second']:,} | {c['after_mb_per_second']:,} | {c['rewriting_seconds']} |"
        for c in results.coldread
    ]
    return "\n".join(lines) + "\n"


def scalable_table(results: Results) -> str:
    if not results.scalable:
        return ""
    lines = ["", "Scalable topics, our broker alone:", "", "| what | figure | aim |", "|---|---|---|"]
    lines += [f"| {s['what']} | {s['figure']:,} {s['unit']} | {s['aim']} |" for s in results.scalable]
    return "\n".join(lines) + "\n"


def client_table(results: Results) -> str:
    if not results.client:
        return ""
    lines = [
        "",
        "## The Python client",
        "",
        "`python -m bench.client`: our client and Pulsar's wheel (3.13, C++ core) on our broker; client and broker",
        "have a core each.",
        "",
        "| case | wheel | ours | ratio | aim |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['what']} | {r['wheel']} | {r['ours']} | {r['ratio']} | {r['aim']} |" for r in results.client
    ]
    return "\n".join([*lines, ""])


def write(results: Results, folder: Path) -> None:
    """Rewrites the generated part of README.md and the chart; prose outside the marks is left alone."""
    readme = folder / "README.md"
    prose = readme.read_text() if readme.exists() else f"# Benchmarks\n\n{BEGIN}\n{END}\n"
    machine = ", ".join(f"{key}: {value}" for key, value in results.machine.items())
    noise = f"{results.disturbed()} of {len(results.records)} runs shared the machine with other work"
    more = growth_table, coldread_table, scalable_table, client_table
    tables = f"{table(results)}\n{''.join(one(results) for one in more)}"
    body = f"\n{machine}. {noise}.\n\n{tables}\n![Ratios to Pulsar](ratios.svg)\n"
    head, rest = prose.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    readme.write_text(f"{head}{BEGIN}\n{body}{END}{tail}")
    chart(results, folder / "ratios.svg")


def chart(results: Results, path: Path) -> None:
    """Bars of how many times better each system is than stock Pulsar, on a logarithmic scale."""
    try:
        import matplotlib
    except ImportError:
        print("bench: no chart, matplotlib is not installed (pip install -r requirements/bench.txt)")
        return
    matplotlib.use("svg")
    # The same results give the same file, so that a re-render shows no difference.
    matplotlib.rcParams["svg.hashsalt"] = "anabranch"
    from matplotlib import pyplot

    drawn = [row for _, row in rows(results) if REFERENCE in row.values and row.figure.key != "broker_cpu_us"]
    systems = [s for s in SYSTEMS if s != REFERENCE and any(s in row.values for row in drawn)]
    if not systems:
        print("bench: no chart, it shows ratios to stock Pulsar")
        return
    figure, axes = pyplot.subplots(figsize=(10, 0.55 * len(drawn) + 1.6))
    height = 0.8 / max(1, len(systems))
    colours = {OURS: "#1b7f79", "pulsar-synced": "#8a9ba8", "kafka": "#c9a45c"}
    for place, system in enumerate(systems):
        points = [(i, ratio) for i, row in enumerate(drawn) if (ratio := row.times_better(system, REFERENCE))]
        label = f"{SYSTEMS[system].title} (syncs: {SYSTEMS[system].syncs.split(' ')[0]})"
        axes.barh(
            [i + (place - (len(systems) - 1) / 2) * height for i, _ in points],
            [ratio - 1 for _, ratio in points],
            height,
            left=1,
            label=label,
            color=colours.get(system),
        )
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(drawn)), [f"{row.title} ({row.figure.unit})" for row in drawn], fontsize=8)
    axes.invert_yaxis()
    ticks = [0.25, 0.5, 1, 2, 4, 8, 16]
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(f"times better than {SYSTEMS[REFERENCE].title} (syncs: no)")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
