"""Finds the route of a request. The words of its path lead to the few routes that may match; of those the first that
was declared answers.

The route is found once. It is the route that runs, under the need that was declared for it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from anabranch.broker.admin.http.path_tree import PathTree
from anabranch.broker.admin.http.routes import Route

_NAME = re.compile(r"\{(\w+)(:path)?\}")


@dataclass(frozen=True, slots=True)
class FoundRoute:
    """The route that answers a request."""

    route: Route
    # The words of the path in the places of the route's names, as they were sent.
    words: Mapping[str, str]
    # False for a route of another method: it answers 405 and does not run.
    runs: bool


class RouteTable:
    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._rows = [(route, *place) for route in self.routes for place in route.paths()]
        self._tree = PathTree(path for _, path, _ in self._rows)

    def find(self, method: str, path: str) -> FoundRoute | None:
        """The route that answers the request; None if there is nothing at its path."""
        # HEAD is allowed where GET is, as in Pulsar; the server leaves the body out.
        method = "GET" if method == "HEAD" else method
        other_method: FoundRoute | None = None
        for number in self._tree.find(path):
            route, pattern, word = self._rows[number]
            if route.method != method and other_method is not None:
                continue
            if (matched := _match(pattern, path)) is None:
                continue
            words = matched.groupdict()
            if word:
                words[route.word_name] = word
            if route.method == method:
                return FoundRoute(route, words, runs=True)
            other_method = FoundRoute(route, words, runs=False)
        return other_method

    def methods(self, path: str) -> list[str]:
        """The methods that have routes at that path."""
        rows = (self._rows[number] for number in self._tree.find(path))
        return sorted({route.method for route, pattern, _ in rows if _match(pattern, path)})


def _match(pattern: str, path: str) -> re.Match[str] | None:
    # Compared first: an expression with two names of many words tries every pair of places before it finds that the end
    # is another.
    return _expression(pattern).fullmatch(path) if path.endswith(_end(pattern)) else None


@functools.lru_cache(maxsize=4096)
def _end(pattern: str) -> str:
    """What every path that matches ends in."""
    return pattern.rpartition("}")[2]


@functools.lru_cache(maxsize=4096)
def _expression(pattern: str) -> re.Pattern[str]:
    text, at = "", 0
    for name in _NAME.finditer(pattern):
        text += re.escape(pattern[at : name.start()]) + f"(?P<{name[1]}>{'.*' if name[2] else '[^/]+'})"
        at = name.end()
    return re.compile(text + re.escape(pattern[at:]))
