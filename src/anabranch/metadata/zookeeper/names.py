"""Paths of ours as paths of ZooKeeper: below the chroot, and without characters that ZooKeeper refuses. Pure.

ZooKeeper's servers take a character outside the Basic Multilingual Plane for two forbidden ones. It is written as `␛`,
its number in hexadecimal, and `;`, and so is `␛` itself. All other names stay as they are, for people who look at the
tree with ZooKeeper's tools.
"""

from __future__ import annotations

import re
from typing import Final

from anabranch.metadata.paths import ROOT

ESCAPE: Final = "\u241b"
_TO_ESCAPE: Final = re.compile("[\u241b\U00010000-\U0010ffff]")
_ESCAPED: Final = re.compile("\u241b([0-9a-f]{1,6});")


def encoded(path: str) -> str:
    return path if path.isascii() else _TO_ESCAPE.sub(lambda found: f"{ESCAPE}{ord(found[0]):x};", path)


def decoded(path: str) -> str:
    """The inverse of `encoded`. What was never encoded, since others wrote it, stays as it is."""
    return path if path.isascii() else _ESCAPED.sub(_character, path)


def _character(found: re.Match[str]) -> str:
    number = int(found[1], 16)
    is_ours = f"{number:x}" == found[1] and (number == ord(ESCAPE) or 0x10000 <= number <= 0x10FFFF)
    return chr(number) if is_ours else found[0]


class Rooted:
    """Paths below one chroot."""

    def __init__(self, chroot: str) -> None:
        self._chroot = encoded(chroot)

    def real(self, path: str) -> str:
        """The path in ZooKeeper of a path of ours."""
        if path == ROOT:
            return self._chroot or ROOT
        return self._chroot + encoded(path)

    def ours(self, real: str) -> str | None:
        """Our path of a path in ZooKeeper; None for one outside the chroot."""
        if not self._chroot:
            return decoded(real)
        if real == self._chroot:
            return ROOT
        return decoded(real[len(self._chroot) :]) if real.startswith(f"{self._chroot}/") else None
