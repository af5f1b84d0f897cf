"""Whether a client can share a segment by entry buckets (PIP-486), as its version tells. Pure.

The protocol has no field for it but our own. Of Pulsar's Java clients, release 5.0.0-M1 is the last that cannot; what
was built after it, from 5.0.0-M1-SNAPSHOT on, can. A client that is not known to can not: it is given whole segments.
"""

from __future__ import annotations

import re
from typing import Final

# A release may be followed by a description that the application has chosen.
_JAVA: Final = re.compile(
    r"Pulsar-Java-v(\d{1,6})\.(\d{1,6})\.(\d{1,6})(?:\.\d{1,6})*(?:-M(\d{1,6}))?(-SNAPSHOT)?(?:-.*)?",
    re.DOTALL,
)
_FIRST: Final = (5, 0, 0)


def can_share(client_version: str) -> bool:
    """Whether a client that calls itself so in CONNECT knows buckets."""
    found = _JAVA.fullmatch(client_version)
    if found is None:
        return False
    release, milestone = (int(found[1]), int(found[2]), int(found[3])), found[4]
    if release != _FIRST or milestone is None:
        return release >= _FIRST
    return int(milestone) > 1 or (int(milestone) == 1 and found[5] is not None)
