"""How large the properties may be that clients give to what they create. Pure.

Properties of a subscription are written into each checkpoint of its topic, and those of a producer are kept while it is
attached: a client that could send a whole frame of them for each would fill memory and disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from anabranch.broker.errors import NotAllowedError

PROPERTIES_BYTES_MAX: Final = 16 * 1024


def is_within(properties: Iterable[tuple[str, str]], size_max: int) -> bool:
    """Whether names and values together are no longer than that. Reads no more of them than necessary."""
    size = 0
    for count, (name, value) in enumerate(properties):
        size += len(name) + len(value)
        if size > size_max or count >= size_max:
            return False
    return True


def check_properties(properties: Iterable[tuple[str, str]]) -> None:
    if not is_within(properties, PROPERTIES_BYTES_MAX):
        raise NotAllowedError(f"properties may have {PROPERTIES_BYTES_MAX} bytes at most")
