"""The fields of the automatic split and merge policy as users write and read them. Pure.

REST and Pulsar's admin client say `maxSegments` and `splitCooldownSeconds`; here they are options, `--max-segments` and
`--split-cooldown`, whose values may have units: `5m`, `50MB`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from anabranch.broker import units
from anabranch.cli.options import UsageError


class Kind(Enum):
    """What a field counts; the value is what help calls an argument of it."""

    SWITCH = "on|off"
    COUNT = "N"
    TIME = "TIME"
    MESSAGES = "MSG/S"
    BYTES = "BYTES/S"


@dataclass(frozen=True, slots=True)
class Field:
    name: str  # As REST and Pulsar's admin client have it.
    kind: Kind
    help: str

    @property
    def word(self) -> str:
        """As the command line has it: `max-segments`, `split-cooldown`."""
        name = self.name.removesuffix("Seconds").removesuffix("Threshold")
        return re.sub(r"(?<!^)([A-Z])", lambda found: "-" + found[1].lower(), name)


def _thresholds(word: str, what: str) -> tuple[Field, ...]:
    return tuple(
        Field(
            f"{word}{unit}Rate{way}Threshold",
            Kind.MESSAGES if unit == "Msg" else Kind.BYTES,
            f"{'messages' if unit == 'Msg' else 'bytes'} a second {way.lower()} {what}",
        )
        for way in ("In", "Out")
        for unit in ("Msg", "Bytes")
    )


FIELDS: Final = (
    Field("enabled", Kind.SWITCH, "whether segments are split and merged automatically at all"),
    Field("maxSegments", Kind.COUNT, "no split once there are so many"),
    Field("minSegments", Kind.COUNT, "no merge once there are so few"),
    Field("maxDagDepth", Kind.COUNT, "merges in a row that a range of keys may see within a day"),
    Field("splitCooldownSeconds", Kind.TIME, "between two splits (60, 60s, 1m)"),
    Field("mergeCooldownSeconds", Kind.TIME, "between two merges"),
    Field("mergeWindowSeconds", Kind.TIME, "how long two neighbours must be cold before they are merged"),
    *_thresholds("split", "over which a segment is split"),
    *_thresholds("merge", "under which a segment is cold"),
)
BY_WORD: Final = {field.word: field for field in FIELDS}

SWITCHES: Final = {"on": True, "yes": True, "true": True, "off": False, "no": False, "false": False}


_READERS: Final = {
    Kind.COUNT: units.rate,
    Kind.TIME: units.seconds,
    Kind.MESSAGES: units.rate,
    Kind.BYTES: units.bytes_rate,
}


def parsed(field: Field, text: str) -> bool | int | float:
    """What REST is sent for it. Whether the value makes sense is for the broker to say."""
    if field.kind is Kind.SWITCH:
        if text.lower() not in SWITCHES:
            raise UsageError(f"--{field.word} {text!r}: expected on or off")
        return SWITCHES[text.lower()]
    try:
        value = _READERS[field.kind](text.removesuffix("/s"))
    except ValueError as error:
        raise UsageError(f"--{field.word} {text!r}: {error}") from None
    if field.kind is Kind.MESSAGES:
        return value
    if value != int(value):
        what = "seconds" if field.kind is Kind.TIME else "numbers"
        raise UsageError(f"--{field.word} {text!r}: whole {what} only")
    return int(value)


def shown(field: Field, value: Any) -> str:
    match field.kind:
        case Kind.SWITCH:
            return "on" if value else "off"
        case Kind.TIME:
            return duration(value)
        case Kind.MESSAGES:
            return f"{value:,.10g} msg/s"
        case Kind.BYTES:
            return f"{decimal(value)}/s"
        case _:
            return f"{value:,}"


def duration(seconds: float) -> str:
    """In the largest unit that needs no fraction: 90 s, 5 min, 2 h."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:,.10g} s"


def decimal(count: float) -> str:
    """Bytes with the decimal units that settings have: 50 MB is 50,000,000."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count / size < 1000 else f"{count / size:,.0f} {unit}"
    return f"{count:,.0f} B"
