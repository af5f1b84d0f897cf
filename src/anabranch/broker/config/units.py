"""Settings as people write them: `60s`, `1m`, `50MB`, `25%`, `alice,bob`. Pure.

A plain number is in the setting's own unit. Units of size are decimal, as for rates: MB is 1,000,000 bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

_NUMBER: Final = re.compile(r"([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z%]*)")

_SECONDS: Final[Mapping[str, float]] = {
    "": 1,
    "ms": 0.001,
    "s": 1,
    "sec": 1,
    "m": 60,
    "min": 60,
    "h": 3600,
    "d": 86_400,
}
_BYTES: Final[Mapping[str, float]] = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "kb": 10**3,
    "m": 10**6,
    "mb": 10**6,
    "g": 10**9,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
_PLAIN: Final[Mapping[str, float]] = {"": 1}
_FRACTION: Final[Mapping[str, float]] = {"": 1, "%": 0.01}

# Cores are best left to the disk, the metadata and the kernel, and one disk is busy with this many brokers.
BROKERS_AUTO_MAX: Final = 8
BROKERS_MAX: Final = 64

Reader = Callable[[Any], float]


def _reader(units: Mapping[str, float], shown: str) -> Reader:
    def read(value: Any) -> float:
        number, unit = value, ""
        if isinstance(value, str):
            found = _NUMBER.fullmatch(value.strip())
            if found is None or found[2].lower() not in units:
                raise ValueError(f"expected {shown}")
            number, unit = found[1], found[2].lower()
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"expected {shown}")
        # Division is exact where possible: a hundredth is no binary number, and 25 % is.
        result = float(number) / 100 if unit == "%" else float(number) * units[unit]
        if not math.isfinite(result):
            raise ValueError(f"expected {shown}")
        return result

    return read


seconds: Final = _reader(_SECONDS, "a duration such as 60s, 1m or 90 (seconds)")
bytes_rate: Final = _reader(_BYTES, "a size such as 50MB or 50000000 (bytes)")
rate: Final = _reader(_PLAIN, "a number")
fraction: Final = _reader(_FRACTION, "a share such as 25% or 0.25")


def names(value: Any) -> tuple[str, ...]:
    """A list of names, given as a list or as text with commas."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError("expected names with commas between them")
    return tuple(part.strip() for part in parts if part.strip())


def brokers(value: Any) -> str:
    """A number of brokers, or `auto`."""
    text = str(value).strip().lower()
    if text != "auto" and not (text.isdecimal() and len(text) < 4 and 1 <= int(text) <= BROKERS_MAX):
        raise ValueError(f"expected auto, or a number from 1 to {BROKERS_MAX}")
    return text if text == "auto" else str(int(text))


def broker_count(setting: str, cores: int) -> int:
    """How many brokers a setting asks for on a machine with so many cores: `auto` leaves one of them free."""
    return max(1, min(BROKERS_AUTO_MAX, cores - 1)) if setting == "auto" else int(setting)
