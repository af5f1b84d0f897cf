"""Patterns for names of topics, as consumers by pattern use them: matching is bounded in time."""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from typing import Final

from anabranch.broker.policy.bounded_patterns import bounded_pattern
from anabranch.model.names import InvalidName

# The most CPU time for one list, plus some for each name: most names take some microseconds.
LOOK_MAX_S: Final = 0.05
NAME_MAX_S: Final = 50e-6


class Pattern:
    """A pattern for names without their domain and without the suffix of a partition.

    Long patterns with long names take milliseconds each, so the whole time of matching many is bounded, too.
    """

    def __init__(self, text: str) -> None:
        self._regex = bounded_pattern(_without_domain(text), shown=repr(text))
        self._text = text

    def matching(self, topics: Collection[str]) -> list[str]:
        """The topics that match. InvalidName if matching takes too long."""
        matches, found = self._regex.fullmatch, []
        end_s = time.thread_time() + LOOK_MAX_S + len(topics) * NAME_MAX_S
        for topic in topics:
            if matches(_without_partition(_without_domain(topic))) is not None:
                found.append(topic)
            if time.thread_time() > end_s:
                raise InvalidName(
                    f"the pattern {self._text!r} cannot be used here: matching it takes too long for the existing names"
                )
        return found


def _without_domain(text: str) -> str:
    return text.split("://", 1)[-1]


def _without_partition(text: str) -> str:
    return re.sub(r"-partition-\d+$", "", text)
