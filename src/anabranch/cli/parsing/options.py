"""Functions by which several commands read their arguments."""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.errors import AnabranchError


class UsageError(AnabranchError):
    """The command line is invalid; the message is one line."""


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """`NAME=VALUE` arguments as a mapping."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {text!r}: expected NAME=VALUE")
        found[name] = value
    return found


def unescaped(separator: str) -> bytes:
    r"""`\t` and the like may be spelled out: few people can type a tab into a shell."""
    try:
        found = separator.encode().decode("unicode_escape").encode("latin-1") if "\\" in separator else None
    except UnicodeError:
        found = None
    if not separator or found == b"":
        raise UsageError(r"--key-separator is empty: give a text such as ':' or '\t'")
    return separator.encode() if found is None else found
