"""Patterns from users, whose cost is bounded: matching takes time linear in the length of the text.

Their language is RE2's, as in Pulsar's brokers. Python's own patterns can take for ever, and block the event loop.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final

from anabranch.model.names import InvalidName

# Pulsar's limit for patterns that a broker evaluates.
PATTERN_CHARS_MAX: Final = 256
PATTERN_BYTES_MAX: Final = 1 << 20
# Those in use at one time; the others are compiled again.
_KEPT_MAX: Final = 1024


def bounded_pattern(text: str, *, shown: str | None = None) -> re.Pattern[str]:
    """The pattern, compiled. InvalidName if it is too long or cannot be read; `shown` is how users know it."""
    if len(text) > PATTERN_CHARS_MAX:
        raise InvalidName(f"a pattern of {len(text)} characters, the limit is {PATTERN_CHARS_MAX}")
    # Imported with the first pattern.
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES_MAX
    try:
        compiled: Any = re2.compile(text, options)
    except (re2.error, UnicodeError) as error:
        why = error.args[0].decode() if isinstance(error.args[0], bytes) else error
        raise InvalidName(f"the pattern {shown or repr(text)} cannot be read here: {why}") from None
    found: re.Pattern[str] = compiled  # It has the methods of one.
    return found


@functools.lru_cache(maxsize=_KEPT_MAX)
def _kept(text: str) -> re.Pattern[str] | None:
    try:
        return bounded_pattern(text)
    except InvalidName:
        # Stored by a release that could read it.
        return None


def matches(pattern: str, text: str) -> bool:
    """Whether the pattern matches the whole text. One that cannot be read matches nothing."""
    compiled = _kept(pattern)
    return compiled is not None and compiled.fullmatch(text) is not None
