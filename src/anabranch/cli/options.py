"""What several commands make of their arguments."""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.errors import AnabranchError


class UsageError(AnabranchError):
    """The command line asks for something that cannot be; the message is one line."""


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """`NAME=VALUE` arguments as a mapping."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {text!r}: expected NAME=VALUE")
        found[name] = value
    return found
