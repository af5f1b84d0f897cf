"""A segment's load: the four rates, whether consumers can share it, and their stored form. Pure."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Final

from anabranch.model.scalable import BadRecord


@dataclass(frozen=True, slots=True)
class Load:
    """Four rates a second: a measured load, or the limits that loads are compared with."""

    msg_rate_in: float = 0.0
    bytes_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    bytes_rate_out: float = 0.0

    @property
    def is_unstamped(self) -> bool:
        """Whether entries of late were in no single entry bucket."""
        return False

    @property
    def rates(self) -> tuple[float, float, float, float]:
        """The rates in the order of `RATES`."""
        return self.msg_rate_in, self.bytes_rate_in, self.msg_rate_out, self.bytes_rate_out

    def __add__(self, other: Load) -> Load:
        return Load(
            self.msg_rate_in + other.msg_rate_in,
            self.bytes_rate_in + other.bytes_rate_in,
            self.msg_rate_out + other.msg_rate_out,
            self.bytes_rate_out + other.bytes_rate_out,
        )

    def heat(self, limits: Load) -> float:
        """The largest ratio of a rate to its own limit; every limit must be above zero."""
        return max(
            self.msg_rate_in / limits.msg_rate_in,
            self.bytes_rate_in / limits.bytes_rate_in,
            self.msg_rate_out / limits.msg_rate_out,
            self.bytes_rate_out / limits.bytes_rate_out,
        )

    def hottest(self, limits: Load) -> int:
        """The rate (an index into `RATES`) with the largest ratio to its own limit; the first of equals."""
        ratios = [rate / limit for rate, limit in zip(self.rates, limits.rates, strict=True)]
        return ratios.index(max(ratios))

    def is_over_any(self, limits: Load) -> bool:
        """Whether a rate is above its limit; a rate equal to its limit is not."""
        return (
            self.msg_rate_in > limits.msg_rate_in
            or self.bytes_rate_in > limits.bytes_rate_in
            or self.msg_rate_out > limits.msg_rate_out
            or self.bytes_rate_out > limits.bytes_rate_out
        )

    def is_under_all(self, limits: Load) -> bool:
        """Whether every rate is below its limit; a rate equal to its limit is not."""
        return (
            self.msg_rate_in < limits.msg_rate_in
            and self.bytes_rate_in < limits.bytes_rate_in
            and self.msg_rate_out < limits.msg_rate_out
            and self.bytes_rate_out < limits.bytes_rate_out
        )

    # -- JSON

    def to_json(self) -> dict[str, float]:
        return dict(zip(RATES, self.rates, strict=True))

    def encode(self) -> bytes:
        value: dict[str, Any] = {**self.to_json()}
        if self.is_unstamped:
            value[UNSTAMPED] = True
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()

    @staticmethod
    def decode(data: bytes) -> Load:
        """Decodes an object of rates; a missing rate is zero. Raises BadRecord for anything else."""
        try:
            value = json.loads(data)
            made = UnstampedLoad if value.get(UNSTAMPED, False) is True else Load
            return made(*(_rate(value.get(name, 0.0)) for name in RATES))
        except (ValueError, TypeError, AttributeError) as error:
            raise BadRecord(f"the stored load of a segment cannot be read: {error!r}") from error


# The names of the four rates in JSON and in the names of settings.
RATES: Final = ("msgRateIn", "bytesRateIn", "msgRateOut", "bytesRateOut")
UNSTAMPED: Final = "unstamped"


class UnstampedLoad(Load):
    """The load of a segment that one consumer at a time can read, since entries may have keys of every bucket."""

    __slots__ = ()

    @property
    def is_unstamped(self) -> bool:
        return True


IDLE: Final = Load()


def _rate(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{value!r} is not a rate")
    return float(value)


@dataclass(frozen=True, slots=True)
class LoadReport:
    """A stored load, with the store's time of its last change."""

    load: Load
    modified_ms: int


def describe_rate(index: int, rate: float) -> str:
    """`msgRateIn 12,000/s` or `bytesRateIn 64.0 MB/s`, for sentences that people read."""
    return f"{RATES[index]} {describe_amount(index, rate)}"


def describe_amount(index: int, rate: float) -> str:
    if RATES[index].startswith("msg"):
        return f"{rate:,.0f}/s" if rate >= 10 or rate == int(rate) else f"{rate:,.1f}/s"
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if rate >= size:
            return f"{rate / size:,.1f} {unit}/s"
    return f"{rate:,.0f} B/s"
