"""One line for a user out of the pages that Spark makes of an error."""

from __future__ import annotations

import re
from typing import Final

from anabranch.errors import AnabranchError

# As Python prints an exception of ours at the end of a traceback, which Spark puts into the middle of its own.
_OURS: Final = re.compile(r"^(?:\w+Error: )?anabranch(?:\.\w+)+: (.+)$", re.MULTILINE)
_CONDITION: Final = re.compile(r"^\[[A-Z_.0-9]+\] ")


class JobFailed(AnabranchError):
    """A job on Spark ended with an error that is told in one line."""


def told(error: BaseException) -> str:
    """What our code said, if it was that; else the first line of what Spark said."""
    text = str(error)
    if (found := _OURS.search(text)) is not None:
        return found[1].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _CONDITION.sub("", lines[0]) if lines else type(error).__name__
