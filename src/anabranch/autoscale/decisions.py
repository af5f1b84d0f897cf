"""The decisions about a topic in the last hour, with their reasons: a bounded value that is stored with the topic.
Pure.

The same answer given again only lengthens the latest entry, so an idle hour is one entry. Manual operations, and
decisions that failed, are noted here too: to a reader they belong to the same story.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, assert_never

from anabranch.autoscale.verdict import Merge, Rebucket, Split, Stay, Verdict
from anabranch.model.scalable import BadRecord
from anabranch.model.segments import SegmentId

KEPT_MS: Final = 3_600_000
# Entries that are kept at any age, so that a quiet week still shows what came before it.
KEPT_MIN: Final = 50
# The most entries that are kept: the record must fit into any store.
KEPT_MAX: Final = 200


class DecisionKind(StrEnum):
    SPLIT = "split"
    MERGE = "merge"
    REBUCKET = "rebucket"
    STAY = "stay"
    FAILED = "failed"  # Decided, but the operation was refused or did not succeed.


@dataclass(frozen=True, slots=True)
class Decision:
    """One answer, given `times` times from `at_ms` to `until_ms`."""

    at_ms: int
    until_ms: int
    kind: DecisionKind
    segments: tuple[
        SegmentId, ...
    ]  # The split, merged or replaced segments; for a failure, those of the operation.
    rule: str  # "consumers", "load" or "manual" for a split, "cold" or "manual" for a merge,
    # "consumers", "idle" or "manual" for a rebucket, else empty.
    because: str
    times: int = 1

    def is_same_answer(self, other: Decision) -> bool:
        """Whether both are one answer. Operations happen once each: two of them are never one answer."""
        return self._answer == other._answer and self.kind in (DecisionKind.STAY, DecisionKind.FAILED)

    @property
    def _answer(self) -> tuple[object, ...]:
        return self.kind, self.segments, self.rule, self.because

    def to_json(self) -> dict[str, Any]:
        return {
            "atMs": self.at_ms,
            "untilMs": self.until_ms,
            "kind": self.kind.value,
            "segments": list(self.segments),
            "rule": self.rule,
            "because": self.because,
            "times": self.times,
        }


@dataclass(frozen=True, slots=True)
class DecisionHistory:
    """The decisions about one topic, oldest first."""

    decisions: tuple[Decision, ...] = ()

    @property
    def latest(self) -> Decision | None:
        return self.decisions[-1] if self.decisions else None

    def since(self, ms: int) -> tuple[Decision, ...]:
        """The decisions that were still given at that moment or later."""
        return tuple(d for d in self.decisions if d.until_ms >= ms)

    def add(self, verdict: Verdict, now_ms: int) -> DecisionHistory:
        match verdict:
            case Split(segment, rule, because):
                return self.note(DecisionKind.SPLIT, because, now_ms, (segment,), rule)
            case Merge(one, other, because):
                return self.note(DecisionKind.MERGE, because, now_ms, (one, other), "cold")
            case Rebucket(segment, _, rule, because):
                return self.note(DecisionKind.REBUCKET, because, now_ms, (segment,), rule)
            case Stay(because):
                return self.note(DecisionKind.STAY, because, now_ms)
            case _:
                assert_never(verdict)

    def note(
        self,
        kind: DecisionKind,
        because: str,
        now_ms: int,
        segments: Iterable[SegmentId] = (),
        rule: str = "",
    ) -> DecisionHistory:
        new = Decision(now_ms, now_ms, kind, tuple(segments), rule, because)
        last = self.latest
        if last is None or not last.is_same_answer(new):
            return DecisionHistory(_kept((*self.decisions, new), now_ms))
        return self.given_again(1, now_ms)

    def given_again(self, times: int, now_ms: int) -> DecisionHistory:
        """The history with the latest answer given so many times more, the last time now."""
        assert self.decisions
        last = self.decisions[-1]
        longer = replace(last, until_ms=max(now_ms, last.until_ms), times=last.times + times)
        return DecisionHistory(_kept((*self.decisions[:-1], longer), now_ms))

    def is_news_after(self, stored: DecisionHistory) -> bool:
        """Whether it says more than that the last answer of `stored` still holds: then it is worth a write."""
        mine, its = self.latest, stored.latest
        return mine is not None and (its is None or mine.at_ms != its.at_ms or mine._answer != its._answer)

    def to_json(self) -> list[dict[str, Any]]:
        return [decision.to_json() for decision in self.decisions]

    def encode(self) -> bytes:
        return json.dumps({"decisions": self.to_json()}, separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes) -> DecisionHistory:
        try:
            return DecisionHistory(tuple(_read(item) for item in json.loads(data)["decisions"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadRecord(f"the stored decisions about a topic cannot be read: {error!r}") from error


def _kept(decisions: tuple[Decision, ...], now_ms: int) -> tuple[Decision, ...]:
    decisions = decisions[-KEPT_MAX:]
    old = sum(1 for d in decisions[:-KEPT_MIN] if d.until_ms < now_ms - KEPT_MS)
    return decisions[old:]


def _read(value: Any) -> Decision:
    return Decision(
        value["atMs"],
        value["untilMs"],
        DecisionKind(value["kind"]),
        tuple(SegmentId(number) for number in value["segments"]),
        value["rule"],
        value["because"],
        value["times"],
    )
