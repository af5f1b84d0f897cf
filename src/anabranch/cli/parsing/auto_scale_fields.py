"""The fields of the automatic split and merge policy as users write and read them. Pure.

REST and Pulsar's admin client say `maxSegments` and `splitCooldownSeconds`; here they are options, `--max-segments` and
`--split-cooldown`, whose values may have units: `5m`, `50MB`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from anabranch.broker.config import units
from anabranch.cli.parsing.options import UsageError


class FieldKind(Enum):
    """The unit of a field; the value is the name of its argument in help."""

    SWITCH = "on|off"
    COUNT = "N"
    TIME = "TIME"
    MESSAGES = "MSG/S"
    BYTES = "BYTES/S"


@dataclass(frozen=True, slots=True)
class CommandField:
    name: str  # The name in REST and in Pulsar's admin client.
    kind: FieldKind
    help: str

    @property
    def word(self) -> str:
        """The name on the command line: `max-segments`, `split-cooldown`."""
        name = self.name.removesuffix("Seconds").removesuffix("Threshold")
        return re.sub(r"(?<!^)([A-Z])", lambda found: "-" + found[1].lower(), name)


def _thresholds(word: str, what: str) -> tuple[CommandField, ...]:
    return tuple(
        CommandField(
            f"{word}{unit}Rate{way}Threshold",
            FieldKind.MESSAGES if unit == "Msg" else FieldKind.BYTES,
            f"{'messages' if unit == 'Msg' else 'bytes'} a second {way.lower()} {what}",
        )
        for way in ("In", "Out")
        for unit in ("Msg", "Bytes")
    )


FIELDS: Final = (
    CommandField("enabled", FieldKind.SWITCH, "whether segments are split and merged automatically at all"),
    CommandField("maxSegments", FieldKind.COUNT, "no split once there are so many"),
    CommandField("minSegments", FieldKind.COUNT, "no merge once there are so few"),
    CommandField("maxDagDepth", FieldKind.COUNT, "merges in a row that a range of keys may see within a day"),
    CommandField("splitCooldownSeconds", FieldKind.TIME, "between two splits (60, 60s, 1m)"),
    CommandField("mergeCooldownSeconds", FieldKind.TIME, "between two merges"),
    CommandField(
        "mergeWindowSeconds", FieldKind.TIME, "how long two neighbours must be cold before they are merged"
    ),
    CommandField(
        "rebucketCooldownSeconds", FieldKind.TIME, "between two changes of the number of entry buckets"
    ),
    CommandField(
        "rebucketIdleWindowSeconds",
        FieldKind.TIME,
        "how long no consumer must have needed added entry buckets before they are given back",
    ),
    *_thresholds("split", "over which a segment is split"),
    *_thresholds("merge", "under which a segment is cold"),
)
BY_WORD: Final = {field.word: field for field in FIELDS}

SWITCHES: Final = {"on": True, "yes": True, "true": True, "off": False, "no": False, "false": False}


_READERS: Final = {
    FieldKind.COUNT: units.rate,
    FieldKind.TIME: units.seconds,
    FieldKind.MESSAGES: units.rate,
    FieldKind.BYTES: units.bytes_rate,
}


def parsed(field: CommandField, text: str) -> bool | int | float:
    """The value to send to REST. The broker checks whether it is valid."""
    if field.kind is FieldKind.SWITCH:
        if text.lower() not in SWITCHES:
            raise UsageError(f"--{field.word} {text!r}: expected on or off")
        return SWITCHES[text.lower()]
    try:
        value = _READERS[field.kind](text.removesuffix("/s"))
    except ValueError as error:
        raise UsageError(f"--{field.word} {text!r}: {error}") from None
    if field.kind is FieldKind.MESSAGES:
        return value
    if value != int(value):
        what = "seconds" if field.kind is FieldKind.TIME else "numbers"
        raise UsageError(f"--{field.word} {text!r}: whole {what} only")
    return int(value)


def shown(field: CommandField, value: Any) -> str:
    match field.kind:
        case FieldKind.SWITCH:
            return "on" if value else "off"
        case FieldKind.TIME:
            return duration(value)
        case FieldKind.MESSAGES:
            return f"{value:,.10g} msg/s"
        case FieldKind.BYTES:
            return f"{decimal(value)}/s"
        case _:
            return f"{value:,}"


def duration(seconds: float) -> str:
    """The duration in the largest unit that needs no fraction: 90 s, 5 min, 2 h."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:,.10g} s"


def decimal(count: float) -> str:
    """Bytes in decimal units, as in settings: 50 MB is 50,000,000."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count / size < 1000 else f"{count / size:,.0f} {unit}"
    return f"{count:,.0f} B"
