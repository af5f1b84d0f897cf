"""The table of routes finds what trying one route after the other would find, and tries few."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.path_tree import PathTree
from anabranch.broker.admin.http.route_table import RouteTable
from anabranch.broker.admin.http.routes import Route
from anabranch.broker.rest import TABLES, create_app
from unit.broker.admin.conftest import Rest

WORDS = ("a", "b", "stats")
patterns = st.lists(st.sampled_from([*WORDS, "{one}", "{two}"]), min_size=1, max_size=4).map(
    lambda words: "/" + "/".join(f"{{n{at}}}" if "{" in word else word for at, word in enumerate(words))
)
endings = st.sampled_from(["", "/{rest:path}", "/{rest:path}/stats", "/"])
paths = st.lists(st.sampled_from([*WORDS, "", "c"]), max_size=6).map(lambda words: "/" + "/".join(words))
methods = st.sampled_from(["GET", "PUT"])


async def _nothing() -> None: ...


def _route(path: str, method: str) -> Route:
    return Route(method=method, path=path, needs=Needs.SUPER_USER, handler=_nothing)


def _fits(pattern: str, path: str) -> dict[str, str] | None:
    """What the pattern reads in the path; None if it does not fit."""
    text = re.escape(pattern).replace(r"\{rest:path\}", "(?P<rest>.*)")
    found = re.fullmatch(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", text), path)
    return None if found is None else found.groupdict()


def _linear(routes: list[Route], method: str, path: str) -> tuple[Route, dict[str, str], bool] | None:
    other_method = None
    for route in routes:
        if (words := _fits(route.path, path)) is not None:
            if route.method == method:
                return route, words, True
            other_method = other_method or (route, words, False)
    return other_method


@settings(max_examples=300)
@given(st.lists(st.tuples(patterns, endings, methods), min_size=1, max_size=12), paths, methods)
def test_it_chooses_as_trying_one_after_the_other_would(
    declared: list[tuple[str, str, str]], path: str, method: str
) -> None:
    routes = [_route(pattern + ending, verb) for pattern, ending, verb in declared]
    found = RouteTable(routes).find(method, path)
    expected = _linear(routes, method, path)
    assert (None if found is None else (found.route, dict(found.words), found.runs)) == expected


def test_a_route_for_several_words_answers_for_those_alone_and_is_told_which() -> None:
    one = Route(
        method="GET",
        path="/{tenant}/{what}/x",
        needs=Needs.SUPER_USER,
        handler=_nothing,
        words=("a", "b/c"),
        word_name="what",
    )
    other = _route("/{tenant}/{bundle}/x", "GET")
    table = RouteTable([one, other])
    for path, route, words in (
        ("/t/a/x", one, {"tenant": "t", "what": "a"}),
        ("/t/b/c/x", one, {"tenant": "t", "what": "b/c"}),
        ("/t/b/x", other, {"tenant": "t", "bundle": "b"}),
    ):
        found = table.find("GET", path)
        assert found is not None
        assert (found.route, found.words) == (route, words)
    assert table.find("GET", "/t/b/d/x") is None


async def test_no_request_asks_more_than_a_handful_of_the_applications_routes(rest: Rest) -> None:
    routes = create_app(rest.broker.admin_services(), rest.broker.page).table.routes
    declared = [path for route in routes for path, _ in route.paths()]
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


async def test_a_method_that_is_not_possible_is_answered_with_those_that_are(rest: Rest) -> None:
    answer = await rest.http.patch("/admin/v2/clusters/standalone")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "DELETE, GET, POST, PUT"


@pytest.mark.parametrize(
    "path",
    [
        "/admin/v2/scalable/a/b" + "/subscriptions" * 2000,
        "/admin/v2/segments/a/b" + "/x/subscription" * 2000,
        "/admin/v2/segments/a/b" + "/subscription" * 2000 + "/seek",
    ],
    ids=lambda path: path[:30],
)
def test_a_path_of_many_words_that_routes_look_for_is_found_at_once(path: str) -> None:
    table = RouteTable(route for routes in TABLES for route in routes)
    table.find("GET", "/admin/v2/scalable/a/b/c")  # Compiles expressions.
    began = time.process_time()
    for method in ("GET", "POST", "PUT", "DELETE"):
        table.find(method, path)
    table.methods(path)
    assert time.process_time() - began < 0.5  # It took many seconds.
