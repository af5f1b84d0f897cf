"""When a new sample of a segment's load is worth storing. Pure.

The record carries no time. The store's modified time is the only evidence of how long a segment has been cold, so a
write without new information does harm: it would start that window again.
"""

from __future__ import annotations

from typing import Final

from anabranch.autoscale.load import Load
from anabranch.autoscale.policy import ScalePolicy

# Changes up to this share of a merge threshold are ignored: an idle topic's rates vary by less.
QUIET_SHARE: Final = 0.1


def should_write(now: Load, last: Load | None, policy: ScalePolicy, change: float) -> bool:
    """Whether a sample is worth storing. `last` is the stored record, None if there is none.

    After a restart or a move, pass the stored record and not None: writing the same again would restart its cold
    window. `change` is a share of the last value: 0.25 for a quarter.
    """
    if last is None or now.is_unstamped != last.is_unstamped:
        return True
    return any(
        _is_news(rate, before, split, merge, change)
        for rate, before, split, merge in zip(
            now.rates, last.rates, policy.split.rates, policy.merge.rates, strict=True
        )
    )


def _is_news(rate: float, before: float, split: float, merge: float, change: float) -> bool:
    if before == 0.0:
        return rate != 0.0  # A rate that leaves zero is always written.
    # A change that `decide` would see is always written, however small the step.
    if (rate > split) != (before > split) or (rate < merge) != (before < merge):
        return True
    moved = abs(rate - before)
    return moved > change * before and moved > QUIET_SHARE * merge
