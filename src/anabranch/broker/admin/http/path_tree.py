"""Finds the patterns that may match a path: a tree of their words instead of a list to be tried in order. Pure.

A pattern is a path with names in it: `/clusters/{cluster}`. A name stands for one word, or for all words that follow if
it is written `{topic:path}` or `{topic**}`; words behind such a name are not compared, so the caller has to check which
of the patterns found do match.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

_MANY: Final = (":path}", "**}")


class _Place:
    """How patterns may continue after some of their words."""

    __slots__ = ("ends", "named", "rest", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Place] = {}
        self.named: _Place | None = None  # Behind a name of one word.
        self.ends: list[int] = []  # Patterns that end here,
        self.rest: list[int] = []  # and those that match all that follows.


class PathTree:
    """Patterns are identified by their number."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._root = _Place()
        for number, pattern in enumerate(patterns):
            self._add(number, pattern)

    def _add(self, number: int, pattern: str) -> None:
        place = self._root
        for word in pattern.split("/")[1:]:
            if word.endswith(_MANY):
                place.rest.append(number)
                return
            if "{" in word:
                place.named = place.named or _Place()
                place = place.named
            else:
                place = place.words.setdefault(word, _Place())
        place.ends.append(number)

    def find(self, path: str) -> list[int]:
        """Every pattern that may match, in order of their numbers."""
        return sorted(_below(self._root, path.split("/"), 1))


def _below(place: _Place, words: Sequence[str], at: int) -> Iterator[int]:
    yield from place.rest
    if at == len(words):
        yield from place.ends
        return
    if (next_place := place.words.get(words[at])) is not None:
        yield from _below(next_place, words, at + 1)
    if place.named is not None:
        yield from _below(place.named, words, at + 1)
