"""Patterns for names of topics, as consumers by pattern use them: matching is bounded in time."""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from typing import Final

from anabranch.model.names import InvalidName

# Pulsar's limit for patterns that a broker evaluates.
PATTERN_CHARS_MAX: Final = 256
PATTERN_BYTES_MAX: Final = 1 << 20
# The most CPU time for one list, plus some for each name: most names take some microseconds.
LOOK_MAX_S: Final = 0.05
NAME_MAX_S: Final = 50e-6


class Pattern:
    """A pattern for names without their domain and without the suffix of a partition.

    Its language is RE2's, as in Pulsar's brokers: the time to match a name grows linearly with its length. Python's own
    patterns can take for ever, and block the event loop. Long patterns with long names still take milliseconds each, so
    the whole time is bounded.
    """

    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_CHARS_MAX:
            raise InvalidName(f"a pattern of {len(text)} characters, the limit is {PATTERN_CHARS_MAX}")
        # Imported with the first pattern.
        import re2

        options = re2.Options()
        options.log_errors = False
        options.max_mem = PATTERN_BYTES_MAX
        try:
            self._regex = re2.compile(_without_domain(text), options)
        except (re2.error, UnicodeError) as error:
            why = error.args[0].decode() if isinstance(error.args[0], bytes) else error
            raise InvalidName(f"the pattern {text!r} cannot be read here: {why}") from None
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
