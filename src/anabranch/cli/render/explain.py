"""Why a scalable topic was or was not split, merged or rebucketed, as a story. Pure: REST's answer in, lines out.

First comes the present state, then the last hour from its start on, then the figures for the next decision. Times are
in the reader's zone, also within the broker's sentences.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

from anabranch.cli.parsing.auto_scale_fields import FIELDS, decimal, shown
from anabranch.cli.render.dag import aligned, bucket_text, ids, rate

HOUR_MS: Final = 3_600_000
INDENT: Final = "  "

Explained = dict[str, Any]
_MOMENT: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC")
_RATE: Final = re.compile(r"\b(msg|bytes)Rate(In|Out) ([\d,.]+)( [kMG]?B)?/s")
_FIGURE: Final = re.compile(r"(\d) (%|s\b|min\b|h\b|[kMG]?B/s|msg/s)")
_WHY: Final = {
    "consumers": "for consumers",
    "load": "for its load",
    "cold": "as both were cold",
    "idle": "as no consumer needed its entry buckets",
    "manual": "by hand",
}


class Clock:
    """Moments on the reader's clock; those of another day have a date."""

    def __init__(self, now_ms: int, zone: tzinfo | None = None) -> None:
        self._zone = zone
        self._today = self._at(now_ms).date()

    def _at(self, ms: int) -> datetime:
        return datetime.fromtimestamp(ms / 1000, UTC).astimezone(self._zone)

    def __call__(self, ms: int) -> str:
        at = self._at(ms)
        return f"{at:%H:%M:%S}" if at.date() == self._today else f"{at:%Y-%m-%d %H:%M:%S}"

    def within(self, sentence: str) -> str:
        """The broker's sentence with its moments on this clock and its rates in words: `12,000 msg/s in`."""
        sentence = _MOMENT.sub(lambda found: self(_ms(found[1])), sentence)
        return _RATE.sub(lambda found: f"{found[3]}{found[4] or ' msg'}/s {found[2].lower()}", sentence)


def _ms(text: str) -> int:
    return round(datetime.strptime(text + "+0000", "%Y-%m-%d %H:%M:%S%z").timestamp() * 1000)


def page(
    found: Explained, *, is_all: bool = False, width: int | None = None, zone: tzinfo | None = None
) -> list[str]:
    """`width` is the terminal's; None does not break lines."""
    clock = Clock(found["nowMs"], zone)
    parts = (
        _heading(found),
        _now(found, clock),
        _shares(found),
        _past(found, clock, is_all=is_all),
        _figures(found, clock),
        _policy(found),
    )
    lines: list[str] = []
    for part in filter(None, parts):
        lines += ["", *part] if lines else part
    return [piece for line in lines for piece in _wrapped(line, width)]


def _wrapped(line: str, width: int | None) -> list[str]:
    """The line broken at words, with the rest of a sentence below its beginning. Tables have no sentences and stay."""
    if width is None or len(line) <= width or "\t" not in line:
        return [line.replace("\t", "")]
    before, _, text = line.partition("\t")
    # A time that leaves no room for its sentence stands on a line of its own.
    indent = len(before) if len(before) < width // 2 else 2 * len(INDENT)
    # A figure and its unit stay together.
    text = _FIGURE.sub("\\1\N{NO-BREAK SPACE}\\2", text)
    pieces = [
        piece.replace("\N{NO-BREAK SPACE}", " ")
        for piece in textwrap.wrap(
            text, max(20, width - indent), break_on_hyphens=False, break_long_words=False
        )
    ]
    if indent != len(before):
        return [before.rstrip(), *(" " * indent + piece for piece in pieces)]
    return [(before if n == 0 else " " * indent) + piece for n, piece in enumerate(pieces)]


# -- the parts of the page. A tab stands before a sentence: there it may be broken.


def _heading(found: Explained) -> list[str]:
    count = found["activeSegments"]
    return [f"\t{found['topic']} has {count} active segment{'' if count == 1 else 's'}; {switch(found)}"]


def in_short(scaling: dict[str, Any] | None, clock: Clock) -> list[str]:
    """For a topic's stats: whether automatic scaling is on, and the last decision."""
    if scaling is None:
        return []  # A classic topic.
    text = switch(scaling)
    lines = [text[0].upper() + text[1:]]
    if (last := scaling["lastDecision"]) is not None:
        lines.append(f"{_times(last, clock)}  {clock.within(sentence(last, {'segments': {}}))}")
    return lines


def switch(found: Explained) -> str:
    """Whether automatic scaling is on, and if not, why not."""
    enabled = found["policy"]["enabled"]
    if not enabled["value"]:
        return f"automatic splits and merges are off (set for the {enabled['from']})"
    if found["problems"]:
        faults = "; ".join(found["problems"])
        return f"automatic splits and merges are OFF, because the policy contradicts itself: {faults}"
    return "automatic splits and merges are on"


def _shares(found: Explained) -> list[str]:
    """Which consumers share which segments, and which cannot be shared though they have several entry buckets. A broker
    of an older release does not tell."""
    lines = [
        f"{INDENT}\tSegment {one['segment']} is shared in {one['subscription']}: "
        + ", ".join(f"{name} has {bucket_text(held)}" for name, held in one["buckets"].items())
        for one in found.get("shares", ())
    ]
    lines += [
        f"{INDENT}\tSegment {number} serves one consumer at a time: entries of late are in no single entry bucket"
        for number, segment in found["segments"].items()
        if segment["state"] == "ACTIVE" and (segment.get("load") or {}).get("unstamped")
    ]
    return ["Shares", *lines] if lines else []


def _now(found: Explained, clock: Clock) -> list[str]:
    now = found["now"]
    match now["kind"]:
        case "split":
            return [
                "Now",
                f"{INDENT}\tAbout to split segment {ids(now['segments'])}: {clock.within(now['because'])}.",
            ]
        case "merge":
            pair = " and ".join(map(str, now["segments"]))
            return ["Now", f"{INDENT}\tAbout to merge segments {pair}: {clock.within(now['because'])}."]
        case "rebucket":
            number = ids(now["segments"])
            return ["Now", f"{INDENT}\tAbout to replace segment {number}: {clock.within(now['because'])}."]
    title = "Now"
    if (standing := _standing(found)) is not None:
        looks = "one look" if standing["times"] == 1 else f"{standing['times']:,} looks"
        title = f"Now, and since {clock(standing['atMs'])} ({looks})"
    return [title, *(f"{INDENT}\t{each}" for each in _sentences(clock.within(now["because"])))]


def _standing(found: Explained) -> dict[str, Any] | None:
    """The last decision, if it equals the present one."""
    last: dict[str, Any] | None = found["decisions"][-1] if found["decisions"] else None
    if last is None or (last["kind"], last["because"]) != (found["now"]["kind"], found["now"]["because"]):
        return None
    return last


def _sentences(text: str) -> Iterable[str]:
    """The reasons for no split, no merge and no rebucket, which stand on lines of their own."""
    return re.split(r"(?<=\.) (?=No (?:merge|rebucket): )", text)


def _past(found: Explained, clock: Clock, *, is_all: bool) -> list[str]:
    decisions = found["decisions"]
    if _standing(found) is not None:
        decisions = decisions[:-1]  # Shown as the present state.
    recent = [d for d in decisions if is_all or d["untilMs"] >= found["nowMs"] - HOUR_MS]
    older = len(decisions) - len(recent)
    title = "All that is remembered" if is_all else "The last hour"
    if not recent:
        lines = [f"{title}: no split, no merge"]
    else:
        told = [(_times(d, clock), clock.within(sentence(d, found))) for d in recent]
        room = max(len(times) for times, _ in told)
        lines = [f"{title}: {_tally(recent)}"]
        lines += [f"{INDENT}{times:<{room}}  \t{text}" for times, text in told]
    if older:
        lines.append(f"{INDENT}\t{older} older decision{'' if older == 1 else 's'}: --all shows them")
    return lines


def _tally(decisions: list[dict[str, Any]]) -> str:
    kinds = [d["kind"] for d in decisions]
    parts = []
    for kind, plural in (
        ("split", "splits"),
        ("merge", "merges"),
        ("rebucket", "rebuckets"),
        ("failed", "failures"),
    ):
        if count := kinds.count(kind):
            parts.append(f"{count} {plural if count > 1 else plural[:-1]}")
    return ", ".join(parts) or "no split, no merge"


def _times(decision: dict[str, Any], clock: Clock) -> str:
    start, end = clock(decision["atMs"]), clock(decision["untilMs"])
    return start if start == end else f"{start} to {end}"


def sentence(decision: dict[str, Any], found: Explained) -> str:
    parents, because = decision["segments"], decision["because"]
    why = _WHY.get(decision["rule"], decision["rule"])
    match decision["kind"]:
        case "split":
            done = f"Split segment {ids(parents)}{_into(parents, found)} {why}"
        case "merge":
            done = f"Merged segments {' and '.join(map(str, parents))}{_into(parents, found)} {why}"
        case "rebucket":
            done = f"Replaced segment {ids(parents)}{_into(parents, found, 'by')} {why}"
        case "failed":
            done = "Failed"
        case _:
            looks = "" if decision["times"] == 1 else f", {decision['times']:,} looks"
            return f"Left as it was{looks}. {because}"
    return f"{done}: {because}." if because else f"{done}."


def _into(parents: list[int], found: Explained, word: str = "into") -> str:
    children = found["segments"].get(str(parents[0]), {}).get("childIds", ()) if parents else ()
    return f" {word} {' and '.join(map(str, children))}" if children else ""


def _figures(found: Explained, clock: Clock) -> list[str]:
    active = [(n, s) for n, s in found["segments"].items() if s["state"] == "ACTIVE"]
    rows = [("SEGMENT", "RANGE", "IN msg/s", "IN B/s", "OUT msg/s", "OUT B/s", "OF ITS LIMIT", "REPORTED")]
    for number, segment in sorted(active, key=lambda item: item[1]["hashRange"]["start"]):
        span = f"{segment['hashRange']['start']:04x}-{segment['hashRange']['end']:04x}"
        load = segment["load"]
        if load is None:
            rows.append((number, span, "?", "?", "?", "?", "?", "not yet"))
            continue
        rows.append(
            (
                number,
                span,
                rate(load["msgRateIn"]),
                decimal(load["bytesRateIn"]),
                rate(load["msgRateOut"]),
                decimal(load["bytesRateOut"]),
                _share(segment["heat"]),
                clock(load["modifiedAtMs"]),
            )
        )
    return ["Load, as last reported (a steady one is not reported again)", *aligned(rows, left={1, 7})]


def _share(heat: float | None) -> str:
    if heat is None:
        return "?"
    return f"{100 * heat:,.0f} %" if heat >= 0.01 or heat == 0 else "under 1 %"


def _policy(found: Explained) -> list[str]:
    ours = [
        f"{f.word} {shown(f, found['policy'][f.name]['value'])} ({found['policy'][f.name]['from']})"
        for f in FIELDS
        # An older broker lacks fields that are newer than it.
        if found["policy"].get(f.name, {"from": "broker"})["from"] != "broker"
    ]
    if not ours:
        return ["\tPolicy: all as the broker is configured; `anabranch topics policy get` lists it"]
    return [f"\tPolicy: {', '.join(ours)}; all else as the broker is configured"]
