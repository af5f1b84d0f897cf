"""Faults that the hostile client has found, and by which cases. Each of these cases runs in `make test`.

`OPEN` are those that are not repaired yet: their cases must still fail, so that a repaired one is taken out of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

# Empty once everything is repaired. See `docs/faults.md` for the numbers.
OPEN: Final[frozenset[str]] = frozenset({"C2", "C3"})


@dataclass(frozen=True)
class Fault:
    number: str
    # Run by their names, each against a broker of its own while the fault is open.
    examples: tuple[str, ...]
    # Of the sample that runs against one broker, what is left out while the fault is open: parts of cases' names.
    touched: str


FAULTS: Final = (
    Fault("C2", ("producing/SEND-batch/sequence_id=-1",), r"sequence_id=-1"),
    Fault("C3", ("producing/SEND/num_messages=-1",), r"/SEND.*/num_messages="),
)


def is_touched(case: str) -> str | None:
    """The open fault that the case runs into, if there is one."""
    return next((one.number for one in FAULTS if one.number in OPEN and re.search(one.touched, case)), None)
