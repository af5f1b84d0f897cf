"""What the balancer decided on this broker, and why: the latest decisions, for people who ask, and each one in the log.

A "no" is a decision too. The same answer about the same subject, given again, lengthens the entry that there is: an
hour without anything to do is one entry. The oldest entries are dropped.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

log = logging.getLogger(__name__)

KEPT_MAX: Final = 5000


class BalanceAct(StrEnum):
    """What a decision is about."""

    ASSIGN = "assign"
    SHED = "shed"
    SPLIT = "split"
    UNLOAD = "unload"
    TRANSFER = "transfer"
    REPAIR = "repair"
    REPORT = "report"


@dataclass(frozen=True, slots=True)
class BalanceDecision:
    """One answer, given `times` times from `at_ms` to `until_ms`."""

    act: BalanceAct
    # The bundle or the broker; empty for all of them.
    subject: str
    # Whether something was done.
    is_done: bool
    # A short word for counters.
    label: str
    because: str
    at_ms: int
    until_ms: int
    times: int = 1
    # Of a move.
    source: str = ""
    destination: str = ""

    @property
    def brokers(self) -> tuple[str, ...]:
        return tuple(one for one in (self.source, self.destination) if one)

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "act": self.act.value,
            "subject": self.subject,
            "isDone": self.is_done,
            "label": self.label,
            "because": self.because,
            "atMs": self.at_ms,
            "untilMs": self.until_ms,
            "times": self.times,
            "source": self.source,
            "destination": self.destination,
        }
        return {name: value for name, value in told.items() if value != ""}


class BalanceLog:
    def __init__(
        self, now_ms: Callable[[], int], *, kept_max: int = KEPT_MAX, is_debugging: Callable[[], bool] = bool
    ) -> None:
        """While `is_debugging`, a "no" that was given before is logged again."""
        self._now_ms = now_ms
        self._kept_max = kept_max
        self._is_debugging = is_debugging
        self._numbers = 0
        self._kept: OrderedDict[int, BalanceDecision] = OrderedDict()
        # The number of the last "no" about each subject.
        self._last_no: dict[tuple[BalanceAct, str], int] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def done(
        self,
        act: BalanceAct,
        subject: str,
        label: str,
        because: str,
        *,
        source: str = "",
        destination: str = "",
    ) -> None:
        """Something is done, or was begun."""
        now_ms = self._now_ms()
        self._last_no.pop((act, subject), None)
        made = BalanceDecision(
            act, subject, True, label, because, now_ms, now_ms, source=source, destination=destination
        )
        self._keep(made)
        self._tell(made, logging.INFO)

    def left(
        self,
        act: BalanceAct,
        subject: str,
        label: str,
        because: str,
        *,
        failed: bool = False,
        is_detail: bool = False,
    ) -> None:
        """Nothing is done, for that reason, or what was begun has `failed`. A detail is one of many in a round: it is
        logged only while debugging."""
        now_ms, key = self._now_ms(), (act, subject)
        number = self._last_no.get(key)
        before = None if number is None else self._kept.get(number)
        if number is not None and before is not None and before.label == label:
            # Its figures may differ from those of the last time: the latest ones are kept.
            again = replace(before, because=because, until_ms=now_ms, times=before.times + 1)
            self._kept[number] = again
            self._kept.move_to_end(number)
            self._tell(again, self._level(is_detail=True))
            return
        made = BalanceDecision(act, subject, False, label, because, now_ms, now_ms)
        self._last_no[key] = self._keep(made)
        self._tell(made, logging.WARNING if failed else self._level(is_detail=is_detail))

    def _level(self, *, is_detail: bool) -> int:
        return logging.DEBUG if is_detail and not self._is_debugging() else logging.INFO

    def _keep(self, made: BalanceDecision) -> int:
        self._numbers += 1
        self._kept[self._numbers] = made
        while len(self._kept) > self._kept_max:
            number, oldest = self._kept.popitem(last=False)
            if self._last_no.get((oldest.act, oldest.subject)) == number:
                del self._last_no[oldest.act, oldest.subject]
        return self._numbers

    def recent(self, subject: str | None = None, most: int = KEPT_MAX) -> list[BalanceDecision]:
        """The latest decisions, the newest first: all, or those about a bundle or a broker."""
        found: list[BalanceDecision] = []
        for made in self._newest_first():
            if len(found) >= most:
                break
            if subject is None or made.subject == subject or subject in made.brokers:
                found.append(made)
        return found

    def _newest_first(self) -> Iterator[BalanceDecision]:
        return (self._kept[number] for number in reversed(self._kept))

    @staticmethod
    def _tell(made: BalanceDecision, level: int) -> None:
        log.log(
            level,
            "%s%s: %s (%s)%s",
            f"{made.act} of {made.subject}" if made.subject else made.act,
            _moved(made),
            made.because if made.is_done else f"no: {made.because}",
            made.label,
            f", {made.times} times" if made.times > 1 else "",
            extra={"act": made.act.value, "subject": made.subject, "label": made.label},
        )


def _moved(made: BalanceDecision) -> str:
    if not made.source:
        return f" to {made.destination}" if made.destination else ""
    return f" from {made.source}" + (f" to {made.destination}" if made.destination else "")
