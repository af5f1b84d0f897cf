"""Sizes, durations, times and switches as people type them. Pure."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

_AMOUNT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_SECONDS: Final[Mapping[str, int]] = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
# The units of Pulsar's tools.
_BYTES: Final[Mapping[str, int]] = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def seconds(text: str) -> int:
    """`90`, `15m`, `2d`; -1 for ever."""
    return _amount(text, _SECONDS, "a duration such as 90s, 15m, 3h or 7d, or -1 for no end")


def size(text: str) -> int:
    """`512M`, `10G` in bytes; -1 for any."""
    return _amount(
        text.removesuffix("B").removesuffix("i"), _BYTES, "a size such as 512M or 10G, or -1 for no limit"
    )


def _amount(text: str, units: Mapping[str, int], expected: str) -> int:
    if text.strip() == "-1":
        return -1
    found = _AMOUNT.fullmatch(text.strip())
    if found is None or found[2].lower() not in units:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {expected}")
    return round(float(found[1]) * units[found[2].lower()])


def count(text: str) -> int:
    """`1` and more."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, 1 or more")
    return number


def switch(text: str) -> bool:
    match text.lower():
        case "on" | "true" | "yes" | "enable":
            return True
        case "off" | "false" | "no" | "disable":
            return False
    raise argparse.ArgumentTypeError(f"{text!r}: expected on or off")


def moment(text: str) -> int:
    """A time in milliseconds since 1970, written as that number or as 2026-01-31T15:00, local unless it names its
    zone."""
    if text.isdigit():
        return int(text)
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a time such as 2026-01-31T15:00, or milliseconds since 1970"
        ) from None


def words(text: str) -> list[str]:
    """The parts of `a,b`."""
    return [word.strip() for word in text.split(",") if word.strip()]
