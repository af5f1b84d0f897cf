"""Every route of the admin application has a right that it needs; none can be added without."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from fastapi.routing import iter_route_contexts

from anabranch.broker.admin import create_app
from anabranch.broker.admin.rules import RULES, Needs, rule_for
from unit.broker.admin.conftest import Rest

# What describes the REST itself, by routes of FastAPI's own that have no dependencies: for all who are signed in.
TENANT = re.compile(r"/admin/v2/[a-z-]+/\{tenant\}/\{namespace\}")


def routes(rest: Rest) -> Iterator[tuple[str, str]]:
    for route in iter_route_contexts(create_app(rest.broker).routes):
        for method in sorted(route.methods or ()):
            assert route.path is not None
            yield method, route.path


def example(path: str) -> str:
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: {"domain": "persistent"}.get(found[1], "x"), path)


async def test_every_route_has_a_rule(rest: Rest) -> None:
    found = list(routes(rest))
    assert len(found) > 100
    without = [f"{method} {path}" for method, path in found if rule_for(method, example(path)) is None]
    assert not without, f"add these to the table in rules.py: {without}"


async def test_only_state_and_the_pages_files_are_open_to_everybody(rest: Rest) -> None:
    open_ = {
        path
        for method, path in routes(rest)
        if (rule := rule_for(method, example(path))) is not None and rule.needs is Needs.NOTHING
    }
    assert open_ == {"/", "/status.html", "/metrics", "/docs", "/openapi.json", "/ui", "/ui/{path:path}"}


async def test_routes_that_ask_by_themselves_are_few_and_known(rest: Rest) -> None:
    asking = {
        path
        for method, path in routes(rest)
        if (rule := rule_for(method, example(path))) is not None and rule.needs is Needs.ROUTE
    }
    assert asking == {
        "/ui/api/overview",
        "/ui/api/topics/{tenant}/{namespace}/{topic:path}",
        "/admin/v2/namespaces/grantPermissionsOnTopics",
        "/admin/v2/namespaces/revokePermissionsOnTopics",
        "/admin/v2/anabranch/ledgers/{domain}/{tenant}/{namespace}/{topic:path}",
        "/admin/v2/anabranch/writes/{write}/{number}",
        "/admin/v2/anabranch/writes/{write}/{number}/drop",
        "/admin/v2/anabranch/reveal/{domain}/{tenant}/{namespace}/{topic:path}",
    }


async def test_whatever_changes_a_tenants_things_needs_more_than_looking_up(rest: Rest) -> None:
    harmless = {Needs.LOOKUP, Needs.LISTING, Needs.NAME, Needs.NOTHING}
    # Compatibility of a schema and its version are asked for with the schema in the body.
    asked_by_post = {"compatibility", "version"}
    for method, path in routes(rest):
        if (
            TENANT.match(path)
            and method not in ("GET", "HEAD")
            and path.rpartition("/")[2] not in asked_by_post
        ):
            rule = rule_for(method, example(path))
            assert rule is not None
            assert rule.needs not in harmless, f"{method} {path}: {rule.needs}"


@pytest.mark.parametrize(
    ("method", "path", "needs"),
    [
        ("GET", "/admin/v2/persistent/t/n/x/stats", Needs.LOOKUP),
        ("HEAD", "/admin/v2/persistent/t/n/x/stats", Needs.LOOKUP),
        ("DELETE", "/admin/v2/persistent/t/n/x", Needs.TENANT_ADMIN),
        ("DELETE", "/admin/v2/persistent/t/n/stats", Needs.TENANT_ADMIN),
        ("POST", "/admin/v2/persistent/t/n/x/subscription/s/skip_all", Needs.CONSUME),
        ("PUT", "/admin/v2/scalable/t/n/a/b", Needs.TENANT_ADMIN),
        ("POST", "/admin/v2/scalable/t/n/a/b/split/1", Needs.SUPER_USER),
        ("GET", "/admin/v2/segments/t/n/x/y/subscription/s/backlog", Needs.SUPER_USER),
        ("GET", "/ui/api/anything", Needs.SUPER_USER),
        ("POST", "/metrics", None),
        ("GET", "/admin/v3/persistent/t/n/x/stats", None),
    ],
)
def test_rules_by_example(method: str, path: str, needs: Needs | None) -> None:
    rule = rule_for(method, path)
    assert (rule.needs if rule is not None else None) is needs


def test_no_rule_is_shadowed_by_an_equal_one() -> None:
    seen = [(rule.methods, rule.path.pattern) for rule in RULES]
    assert len(seen) == len(set(seen))
