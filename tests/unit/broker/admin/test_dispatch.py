"""The table of routes finds what trying one route after the other would find, and tries few."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from anabranch.broker.admin import create_app
from anabranch.broker.admin.dispatch import RouteTable
from anabranch.broker.admin.path_tree import PathTree
from anabranch.broker.authorization import AllowAll, Rights
from unit.broker.admin.conftest import Rest

WORDS = ("a", "b", "stats")
patterns = st.lists(st.sampled_from([*WORDS, "{one}", "{two}"]), min_size=1, max_size=4).map(
    lambda words: "/" + "/".join(f"{{n{at}}}" if "{" in word else word for at, word in enumerate(words))
)
endings = st.sampled_from(["", "/{rest:path}", "/{rest:path}/stats", "/"])
paths = st.lists(st.sampled_from([*WORDS, "", "c"]), max_size=6).map(lambda words: "/" + "/".join(words))
methods = st.sampled_from(["GET", "PUT"])


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None: ...


def _linear(routes: list[BaseRoute], scope: Scope) -> BaseRoute | None:
    partial = None
    for route in routes:
        match, _ = route.matches(scope)
        if match is Match.FULL:
            return route
        if match is Match.PARTIAL and partial is None:
            partial = route
    return partial


class Seen(Route):
    """A route that does nothing."""

    def __init__(self, path: str, method: str) -> None:
        super().__init__(path, _nothing, methods=[method])
        self.methods = {method}  # Without the HEAD that comes with a GET.


@settings(max_examples=300)
@given(st.lists(st.tuples(patterns, endings, methods), min_size=1, max_size=12), paths, methods)
def test_it_chooses_as_trying_one_after_the_other_would(
    declared: list[tuple[str, str, str]], path: str, method: str
) -> None:
    routes: list[BaseRoute] = [Seen(pattern + ending, verb) for pattern, ending, verb in declared]
    scope = {"type": "http", "method": method, "path": path, "headers": []}
    found = RouteTable(routes, _nothing, Rights(AllowAll())).find(scope)
    assert (None if found is None else found.route) is _linear(routes, dict(scope))


async def test_no_request_asks_more_than_a_handful_of_the_applications_routes(rest: Rest) -> None:
    declared = [path for route in create_app(rest.broker).routes if (path := getattr(route, "path", None))]
    assert len(declared) > 300
    tree = PathTree(declared)
    for pattern in declared:
        path = re.sub(r"\{[^}]*\}", "x", pattern)
        found = tree.find(path)
        assert declared.index(pattern) in found
        # Routes of one path and several methods are several.
        assert len({declared[number] for number in found}) < 20, (path, [declared[n] for n in found])


async def test_what_can_be_got_can_be_asked_for_with_head(rest: Rest) -> None:
    for path in ("/status.html", "/metrics", "/admin/v2/clusters"):
        assert (await rest.http.head(path)).status_code == 200
    assert (await rest.http.head("/nothing/there")).status_code == 404
