"""The demo's report: one HTML file without external parts. Pure.

First come the checks, then the pictures: the river of segments, throughput, how far readers were behind, and segments
over time. Each picture is drawn twice, for wide and for narrow windows, so that its words can be read in both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from anabranch.cli.demo.core import river
from anabranch.cli.demo.core.colours import variables
from anabranch.cli.demo.core.ran import Killed, MicroBatch, Ran
from anabranch.pipelines.replay import svg

WIDE, NARROW = 900, 360
SMOOTH_MS: Final = 1500
AFTER_MS: Final = 2500  # How much of the river after the end is shown: it is level by then.
BEFORE_MS: Final = 1500  # How much of the quiet before the first event is shown.


def report(ran: Ran) -> str:
    parts = [
        _head(ran),
        _checks(ran),
        _river(ran),
        _throughput(ran),
        _lag(ran),
        _segments(ran),
        _decisions(ran),
        _how(ran),
    ]
    style = _STYLE.replace("/*light*/", variables("light")).replace("/*dark*/", variables("dark"))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Anabranch demo</title>'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head>'
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


# -- words


def _head(ran: Ran) -> str:
    failed = sum(not held for _, held in ran.checks)
    verdict = (
        f'<span class="good">all {len(ran.checks)} checks held</span>'
        if ran.checks and not failed
        else f'<span class="bad">{failed} of {len(ran.checks)} checks failed</span>'
    )
    past = ran.past
    most = max((count for _, count in past.active_at()), default=0)
    tiles = {
        "events": f"{ran.stream.events:,}",
        "keys": f"{ran.stream.visitors:,}",
        "splits": str(past.count("split")),
        "merges": str(past.count("merge")),
        "segments at most": str(most),
        "sessions": f"{ran.sessions:,}" if ran.sessions else "",
        "micro-batches": str(
            sum(bool(one.rows) for batches in ran.batches.values() for one in batches) or ""
        ),
        "kill -9 survived": f"{ran.killed.away_s:.1f} s" if ran.killed else "",
    }
    shown = "".join(
        f"<div><b>{value}</b><small>{name}</small></div>" for name, value in tiles.items() if value
    )
    return (
        f"<h1>A clickstream on a topic that scales itself</h1><p class='lead'>{verdict}, in "
        f"{ran.took_s:.0f} s. {_brokers(ran.brokers)}, one scalable topic, {ran.stream.events:,} keyed events in "
        f"{ran.stream.seconds:.0f} s whose rate rises and falls, and {escape(ran.readers)} that read them meanwhile."
        f'</p><div class="tiles">{shown}</div>'
    )


def _brokers(count: int) -> str:
    return "A standalone broker" if count == 1 else f"{count} brokers on one machine"


def _checks(ran: Ran) -> str:
    items = "".join(
        f'<li class="{"held" if held else "failed"}">{escape(claim)}</li>' for claim, held in ran.checks
    )
    return f'<h2>What was checked</h2><ul class="checks">{items}</ul>'


def _decisions(ran: Ran) -> str:
    rows = "".join(
        f"<tr><td>{(change.at_ms - ran.start_ms) / 1000:.1f} s</td><td>{change.kind}</td>"
        f"<td>{' and '.join(map(str, change.segments))}</td><td>{escape(change.because)}</td></tr>"
        for change in sorted(ran.past.changes.values(), key=lambda change: change.at_ms)
    )
    return (
        "<h2>Why it split and merged</h2><p>The broker's own words, as <code>anabranch topics explain</code> tells "
        "them.</p><div class='wide'><table><thead><tr><th>at</th><th></th><th>segments</th><th>because</th></tr>"
        f"</thead><tbody>{rows}</tbody></table></div>"
    )


def _how(ran: Ran) -> str:
    policy = ", ".join(f"{name} {value:,g}" for name, value in ran.policy.items())
    return (
        "<h2>How it was made</h2><ul>"
        f"<li>{escape(ran.software)}. The events are made by seed {ran.stream.seed}: a run on another machine has the "
        "same ones.</li>"
        f"<li>The topic's policy, with limits and waits for a demo of a minute: {escape(policy)}. Everything else is "
        "as usual; what is stored is synced before its receipt.</li>"
        "<li>Order is judged by the micro-batch that wrote a row, and within one by its <code>position</code>. Which "
        "batch wrote a file is read from the log of Spark's file sink.</li>"
        "<li>Sessions are compared with those computed from the events alone: visitor, start, end and clicks.</li>"
        "<li>How far a reader is behind is what has a receipt less what its finished micro-batches have read; a batch "
        "counts when it is committed, so the line falls in steps.</li></ul>"
    )


# -- pictures


def _both(draw: Callable[[int], str]) -> str:
    return f'<div class="w">{draw(WIDE)}</div><div class="n">{draw(NARROW)}</div>'


def _span(ran: Ran) -> tuple[int, int]:
    last = max((moment.at_ms for moment in ran.moments), default=ran.end_ms)
    return ran.start_ms - BEFORE_MS, max(last, ran.start_ms + 1000)


def _killed(killed: Killed) -> str:
    return f"kill -9 of {killed.name}" if killed.name else "kill -9"


def _river(ran: Ran) -> str:
    from_ms, to_ms = _span(ran)
    changed = max((change.at_ms for change in ran.past.changes.values()), default=0)
    to_ms = min(to_ms, max(ran.end_ms, changed) + AFTER_MS)
    notes = {ran.killed.at_ms: _killed(ran.killed)} if ran.killed else {}

    def draw(width: int) -> str:
        view = river.RiverView(from_ms, to_ms, width, 400 if width == WIDE else 340)
        return river.picture(ran.past, view, origin_ms=ran.start_ms, notes=notes)

    return (
        "<h2>The river of segments</h2><p>Each stream is a segment, the home of one range of keys. Thicker: more "
        "events. Warmer: closer to the limit at which it splits. A pointer over a mark tells why.</p>"
        f"{_both(draw)}{river.legend()}"
    )


def _lines(ran: Ran, drawn: Sequence[svg.Line], unit: str, height: int = 210) -> str:
    from_ms, to_ms = _span(ran)
    end = (to_ms - ran.start_ms) / 1000
    marked = {(ran.killed.at_ms - ran.start_ms) / 1000: _killed(ran.killed)} if ran.killed else {}

    def draw(width: int) -> str:
        step = next(s for s in (1, 2, 5, 10, 20, 30, 60, 120, 300, 3600) if width / 90 * s >= end)
        ticks = [float(second) for second in range(0, int(end) + 1, step)]
        return svg.lines(
            drawn,
            ("", unit),
            lambda second: f"{second:.0f} s",
            height=height,
            width=width,
            ends=((from_ms - ran.start_ms) / 1000, end),
            x_ticks=ticks,
            marked=marked,
        )

    names = "".join(
        f'<span><i style="background:{line.colour}"></i>{escape(line.name)}</span>' for line in drawn
    )
    legend = f'<p class="legend">{names}</p>' if len(drawn) > 1 else ""
    return _both(draw) + legend


def _throughput(ran: Ran) -> str:
    drawn = [svg.Line("stored by the broker", stored_rates(ran), svg.PALETTE[5], is_filled=True)]
    for number, (name, batches) in enumerate(ran.batches.items()):
        line = svg.Line(f"read by {name}", batch_rates(batches, ran.start_ms), _colour(number), is_step=True)
        if line.points:
            drawn.append(line)
    return f"<h2>Throughput</h2>{_lines(ran, drawn, 'events/s')}"


def _lag(ran: Ran) -> str:
    names = list(ran.moments[0].rows) if ran.moments else []
    drawn = [
        svg.Line(
            f"{name} is behind by",
            [
                ((m.at_ms - ran.start_ms) / 1000, float(max(0, m.stored - m.rows.get(name, 0))))
                for m in ran.moments
            ],
            _colour(number),
            is_filled=True,
        )
        for number, name in enumerate(names)
    ]
    return f"<h2>How far behind the readers were</h2>{_lines(ran, drawn, 'events')}"


def _segments(ran: Ran) -> str:
    steps = ran.past.active_at()
    from_ms, to_ms = _span(ran)
    points = [(max(at, from_ms) - ran.start_ms, count) for at, count in steps if at <= to_ms]
    points.append((to_ms - ran.start_ms, points[-1][1] if points else 0))
    line = svg.Line(
        "active segments",
        [(at / 1000, float(n)) for at, n in points],
        svg.PALETTE[2],
        is_step=True,
        is_filled=False,
    )
    return f"<h2>Active segments</h2>{_lines(ran, [line], 'segments', 170)}"


def _colour(number: int) -> str:
    return svg.PALETTE[(1, 3, 4)[number % 3]]


def stored_rates(ran: Ran) -> list[tuple[float, float]]:
    """Receipts a second, each averaged over a second and a half."""
    found = [(-BEFORE_MS / 1000, 0.0)]
    moments = ran.moments
    back = 0
    for moment in moments:
        while moments[back].at_ms < moment.at_ms - SMOOTH_MS:
            back += 1
        before = moments[max(0, back - 1)]
        if moment.at_ms > before.at_ms:
            rate = (moment.stored - before.stored) * 1000 / (moment.at_ms - before.at_ms)
            found.append(((moment.at_ms - ran.start_ms) / 1000, rate))
    return found


def batch_rates(batches: Sequence[MicroBatch], start_ms: int) -> list[tuple[float, float]]:
    """Rows a second of each micro-batch, from the end of the one before until its own."""
    found: list[tuple[float, float]] = []
    before = min((one.at_ms for one in batches), default=0)
    for one in batches:
        end = one.at_ms + one.took_ms
        if one.rows and end > before:
            found.append((max(before - start_ms, -BEFORE_MS) / 1000, one.rows * 1000 / (end - before)))
        elif end > before:
            found.append((max(before - start_ms, -BEFORE_MS) / 1000, 0.0))
        before = max(before, end)
    if found:
        found.append(((before - start_ms) / 1000, 0.0))
    return found


_STYLE: Final = """
:root{--ink:#1c2733;--faint:#5d6a77;--line:#dfe4ea;--back:#fff;--mark:#f4f7fa;--good:#0a7d52;--bad:#c0322b;/*light*/}
@media (prefers-color-scheme:dark){:root{--ink:#e4eaf0;--faint:#93a1af;--line:#2d3844;--back:#10161d;--mark:#182029;
--good:#4fd19a;--bad:#ff8078;/*dark*/}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1000px;margin:0 auto;padding:32px 24px 64px}
h1{font-size:27px;line-height:1.25;margin:0 0 8px}h2{font-size:19px;margin:40px 0 6px}
.lead{color:var(--faint)}p,li{max-width:80ch}.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}
.tiles{display:grid;grid-template-columns:repeat(4,1fr);gap:10px;margin:20px 0}
.tiles div{background:var(--mark);border:1px solid var(--line);border-radius:10px;padding:10px 12px}
.tiles b{display:block;font-size:20px;white-space:nowrap;font-variant-numeric:tabular-nums}small{color:var(--faint)}
.checks{list-style:none;padding:0}.checks li{padding:4px 0 4px 28px;position:relative}
.checks li::before{position:absolute;left:4px;font-weight:700}
.held::before{content:"✓";color:var(--good)}.failed::before{content:"✗";color:var(--bad)}.failed{color:var(--bad)}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:14px}
th,td{padding:5px 10px 5px 0;text-align:left;border-bottom:1px solid var(--line);vertical-align:top}
td:first-child,td:nth-child(3){white-space:nowrap}th{font-weight:600;color:var(--faint);font-size:13px}
code{font-size:.92em}
svg{display:block;width:100%;height:auto;margin:8px 0}
svg text{font:12px system-ui,sans-serif;fill:var(--ink)}svg .tick,svg .axis{fill:var(--faint)}
svg .mid{text-anchor:middle}svg .end{text-anchor:end}
.bed{fill:var(--mark)}.grid{stroke:var(--line);fill:none}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}
.note{stroke:var(--bad);stroke-dasharray:4 3;fill:none}svg .noted{fill:var(--bad);font-weight:600}
.mark circle,.mark rect{fill:var(--back);stroke:var(--ink);stroke-width:1.2}
.mark path{fill:none;stroke:var(--ink);stroke-width:1.5;stroke-linecap:round}
.legend{color:var(--faint);font-size:14px}.legend>span{margin-right:18px;white-space:nowrap;display:inline-block}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}
.scale i{width:13px;height:11px;margin:0;border-radius:0}
.glyph{display:inline-block;width:18px;vertical-align:-4px;margin:0}
.n{display:none}@media (max-width:640px){.tiles{grid-template-columns:1fr 1fr}
.w{display:none}.n{display:block}main{padding:20px 14px 48px}}
"""
