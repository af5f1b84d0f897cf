"""The report of a backtest: one HTML file without external parts. Pure.

First comes the decision: the cost of each policy, and which policy to use for which topics. Then come some of the
topics that were split and merged most, so that a reader sees what the figures mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import numpy as np

from anabranch.autoscale.policy import DEFAULT, ScalePolicy
from anabranch.autoscale.verdict import moment
from anabranch.pipelines.replay import svg
from anabranch.pipelines.replay.outcomes import PolicyOutcome, Recommended, Summary, Weights, front, recommend
from anabranch.pipelines.replay.replay import Replayed
from anabranch.pipelines.replay.trace import Trace

_POINTS: Final = 360  # The points of a line: more would not be visible.


@dataclass(frozen=True, slots=True)
class Example:
    """A topic worth a plot."""

    topic: str
    topic_class: str
    trace: Trace
    replayed: Mapping[str, Replayed]


@dataclass(frozen=True, slots=True)
class Told:
    """All data of the report."""

    title: str
    facts: Sequence[str]  # Short sentences about what was replayed.
    policies: Mapping[str, ScalePolicy]
    summary: Summary
    weights: Weights
    examples: Sequence[Example]


def report(told: Told) -> str:
    by_policy = told.summary.by_policy
    best = front(by_policy)
    recommended = recommend(told.summary.by_class, told.summary.topics, told.weights)
    parts = [
        f"<h1>{escape(told.title)}</h1>",
        f'<p class="lead">{escape(" ".join(told.facts))}</p>',
        _policies(told, by_policy, best),
        _trade(by_policy, best),
        _costs(by_policy, told.weights),
        _classes(told, recommended),
        *(_example(one) for one in told.examples),
        _meaning(told.weights),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(told.title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _policies(told: Told, by_policy: Mapping[str, PolicyOutcome], best: Sequence[str]) -> str:
    least = min(told.weights.cost(one) for one in by_policy.values())
    rows = []
    for number, (name, one) in enumerate(by_policy.items()):
        cost = told.weights.cost(one)
        mark = f'<i style="background:{svg.colour(number)}"></i>'
        rows.append(
            [
                f"{mark}<b>{escape(name)}</b><br><small>{escape(differences(told.policies[name]))}</small>",
                f"{one.segment_hours:,.0f}",
                f"{one.over_minutes:,.0f}",
                f"{one.hot_minutes:,.0f}",
                f"{one.splits:,}",
                f"{one.merges:,}",
                f"{one.rebuckets:,}",
                f"{one.flaps:,}",
                f"{one.segments_max:,}",
                f"<b>{cost:,.0f}</b>" if cost == least else f"{cost:,.0f}",
                "yes" if name in best else "no",
            ]
        )
    head = ("Policy", "Segment-hours", "Overloaded, min", "Over own limit, min", "Splits", "Merges")
    rest = ("Rebuckets", "Flaps", "Most segments", "Cost", "On the front")
    return "<h2>Policies</h2>" + _table([*head, *rest], rows)


def differences(policy: ScalePolicy) -> str:
    """The settings in which the policy differs from the default."""
    usual = DEFAULT.to_json()
    found = [f"{name} {_value(value)}" for name, value in policy.to_json().items() if value != usual[name]]
    return ", ".join(found) or "the defaults"


def _value(value: bool | float) -> str:
    return str(value).lower() if isinstance(value, bool) else svg.short(value)


def _trade(by_policy: Mapping[str, PolicyOutcome], best: Sequence[str]) -> str:
    points = {name: (one.segment_hours, one.over_minutes) for name, one in by_policy.items()}
    drawn = svg.scatter(points, best, ("segment-hours", "overloaded minutes"))
    return (
        "<h2>Fewer segments, or less overload</h2>"
        "<p>The line joins the policies that no other beats: whatever has less of the one has more of the other, or "
        f"needs more operations for it.</p>{drawn}"
    )


def _costs(by_policy: Mapping[str, PolicyOutcome], weights: Weights) -> str:
    rows = {
        name: {
            "segments": weights.segment_hour * one.segment_hours,
            "overload": weights.over_minute * one.over_minutes,
            "operations": weights.operation * one.operations,
            "flaps": weights.flap * one.flaps,
        }
        for name, one in by_policy.items()
    }
    names = list(next(iter(rows.values())))
    return f"<h2>What each costs</h2>{svg.stacked(rows, 'cost')}{svg.legend(names)}"


def _classes(told: Told, recommended: Sequence[Recommended]) -> str:
    rows = []
    for one in recommended:
        costs = {name: told.weights.cost(o) for name, o in told.summary.by_class[one.topic_class].items()}
        saved = 1 - one.cost / one.cost_of_first if one.cost_of_first else 0.0
        rows.append(
            [
                escape(one.topic_class),
                f"{one.topics:,}",
                f"<b>{escape(one.policy)}</b>",
                f"{saved:.1%}" if saved > 0 else "",
                *(f"{cost / max(one.topics, 1):,.1f}" for cost in costs.values()),
            ]
        )
    head = ["Class of topics", "Topics", "Recommended", f"Saves against {next(iter(told.policies))}"]
    return (
        "<h2>Which policy for which topics</h2><p>The one that costs least, or the first if that "
        "saves less than half a percent. The last columns are the cost of a topic under each policy.</p>"
        + _table([*head, *told.policies], rows)
    )


def _example(one: Example) -> str:
    trace = one.trace
    rates = trace.whole[0]
    each = max(1, -(-len(rates) // _POINTS))
    thin = [float(np.max(rates[n : n + each])) for n in range(0, len(rates), each)]
    hours = trace.step_ms / 3_600_000
    end = trace.samples * hours
    points = [(n * each * hours, rate) for n, rate in enumerate(thin)]
    load = svg.Line("messages a second", [*points, (end, thin[-1])], svg.PALETTE[6], is_filled=True)
    steps = []
    for number, (name, replayed) in enumerate(one.replayed.items()):
        points = [(0.0, float(trace.segments))]
        points += [((d.at_ms - trace.start_ms) / 3_600_000, float(d.active)) for d in replayed.decisions]
        steps.append(svg.Line(name, [*points, (end, points[-1][1])], svg.colour(number), is_step=True))
    told = _hours
    return (
        f"<h2>{escape(one.topic)}</h2><p>{escape(one.topic_class)}; from {moment(trace.start_ms)}.</p>"
        f"{svg.lines([load], ('', 'messages/s'), told, height=150)}"
        f"{svg.lines(steps, ('hours', 'segments'), told)}{svg.legend(list(one.replayed))}"
    )


def _hours(value: float) -> str:
    return f"{value:.3g} h"


def _meaning(weights: Weights) -> str:
    return (
        "<h2>What the figures mean</h2><ul>"
        "<li><b>Overloaded</b>: minutes, summed over segments, in which more flowed through a segment than the limits "
        "that are the same for all policies; by what flowed in each sample, without any average.</li>"
        "<li><b>Over own limit</b>: the same, against the split limits of the policy itself.</li>"
        "<li><b>Flap</b>: an operation that undoes another of the hour before: the split of a range that a merge has "
        "made, a merge of the two halves that a split has made, or a rebucket that takes back what another gave.</li>"
        f"<li><b>Cost</b>: {weights.segment_hour:g} for a segment-hour, {weights.over_minute:g} for an overloaded "
        f"minute, {weights.operation:g} for a split, a merge or a rebucket, {weights.flap:g} more for a flap.</li>"
        "<li><b>Front</b>: the policies to which no other is better in one of segment-hours, overloaded minutes and "
        "operations, and as good in the others.</li>"
        "<li><b>Classes</b>: by the load that a topic exceeds in 1 % of the time, in segments of what one can take: "
        "cold under a tenth of one, small under one, medium under eight, large above. Steady if that is at most 1.3 "
        "times the mean, varying up to 6 times, bursty beyond; hot key if, at its highest, more than half falls to a "
        "64th of the keys.</li></ul>"
    )


_STYLE: Final = """
:root{--ink:#1c2733;--faint:#66727f;--line:#dfe4ea;--back:#fff;--mark:#f4f7fa}
@media (prefers-color-scheme:dark){:root{--ink:#e4eaf0;--faint:#93a1af;--line:#2d3844;--back:#12181f;--mark:#1a222b}}
body{margin:0;background:var(--back);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:980px;margin:0 auto;padding:32px 24px 64px}
h1{font-size:26px;margin:0 0 8px}h2{font-size:19px;margin:44px 0 8px}
.lead{color:var(--faint)}p,li{max-width:75ch}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:7px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{font-weight:600;color:var(--faint);font-size:13px;vertical-align:bottom;white-space:normal}
th:first-child,td:first-child{text-align:left;white-space:normal;min-width:150px}
tbody tr:hover{background:var(--mark)}small{color:var(--faint)}
i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:7px}
svg{display:block;width:100%;max-width:860px;height:auto;margin:10px 0}
svg text{font:12px system-ui,sans-serif;fill:var(--ink)}svg .tick,svg .axis{fill:var(--faint)}
svg .mid{text-anchor:middle}svg .end{text-anchor:end}svg .name{font-weight:600}
.grid{stroke:var(--line);fill:none}.front{stroke:var(--faint);stroke-dasharray:5 4;fill:none}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}.off{opacity:.45}
.legend span{margin-right:18px;white-space:nowrap}
"""
