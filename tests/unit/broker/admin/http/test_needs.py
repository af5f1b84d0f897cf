"""Each route of the admin application runs under the need that is meant for it, whatever a path looks like."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Final

import pytest

from anabranch.broker.admin.http.app import RestApp
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.route_table import FoundRoute
from anabranch.broker.admin.http.routes import Route, Routes
from anabranch.broker.rest import create_app
from harness.guarded import guarded
from unit.broker.admin.conftest import Rest

# The first line that fits a route says what it needs. Names are those of the route; `{any**}` is whatever follows.
TABLE: Final = """
GET   /                                                  NOTHING
GET   /status.html                                       NOTHING
GET   /metrics                                           NOTHING
GET   /docs                                              NOTHING
GET   /openapi.json                                      NOTHING
GET   /ui/api/overview                                   ROUTE
GET   /ui/api/cluster                                    ROUTE
GET   /ui/api/topics/{tenant}/{namespace}/{topic**}      ROUTE
GET   /ui/api/messages/{tenant}/{namespace}/{topic**}    ROUTE
GET   /ui                                                NOTHING
GET   /ui/{path**}                                       NOTHING

GET   /admin/v2/clusters                                 NAME
*     /admin/v2/clusters/{any**}                         SUPER_USER
GET   /admin/v2/brokers/ready                            NAME
GET   /admin/v2/brokers/version                          NAME
*     /admin/v2/brokers                                  SUPER_USER
*     /admin/v2/brokers/{any**}                          SUPER_USER
*     /admin/v2/broker-stats/{any**}                     SUPER_USER
*     /admin/v2/load-manager                             SUPER_USER
*     /admin/v2/load-manager/{any**}                     SUPER_USER
*     /admin/v2/bookies/{any**}                          SUPER_USER
*     /admin/v2/resourcegroups                           SUPER_USER
*     /admin/v2/resourcegroups/{any**}                   SUPER_USER
*     /admin/v2/resource-quotas                          SUPER_USER
*     /admin/v2/resource-quotas/{any**}                  SUPER_USER
*     /admin/v2/functions/{any**}                        SUPER_USER
*     /admin/v2/worker/{any**}                           SUPER_USER
*     /admin/v2/worker-stats/{any**}                     SUPER_USER
*     /admin/v3/functions/{any**}                        SUPER_USER
*     /admin/v3/source/{any**}                           SUPER_USER
*     /admin/v3/sources/{any**}                          SUPER_USER
*     /admin/v3/sink/{any**}                             SUPER_USER
*     /admin/v3/sinks/{any**}                            SUPER_USER
*     /admin/v3/packages/{any**}                         SUPER_USER
*     /admin/v3/transactions/{any**}                     SUPER_USER
*     /admin/v2/tenants                                  SUPER_USER
*     /admin/v2/tenants/{tenant}                         SUPER_USER

POST  /admin/v2/namespaces/grantPermissionsOnTopics      ROUTE
POST  /admin/v2/namespaces/revokePermissionsOnTopics     ROUTE
GET   /admin/v2/namespaces/{cluster}/antiAffinity/{group}  ROUTE
GET   /admin/v2/namespaces/{tenant}                      TENANT_ADMIN
*     /admin/v2/namespaces/{tenant}/{namespace}          TENANT_ADMIN
GET   /admin/v2/namespaces/{tenant}/{namespace}/topics   LISTING
GET   /admin/v2/namespaces/{tenant}/{namespace}/bundles  LISTING
PUT   /admin/v2/namespaces/{tenant}/{namespace}/unload                 SUPER_USER
PUT   /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/unload        SUPER_USER
PUT   /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/split         SUPER_USER
POST  /admin/v2/namespaces/{tenant}/{namespace}/clearBacklog           NAMESPACE_CONSUME
POST  /admin/v2/namespaces/{tenant}/{namespace}/clearBacklog/{subscription}     NAMESPACE_CONSUME
POST  /admin/v2/namespaces/{tenant}/{namespace}/unsubscribe/{subscription}      NAMESPACE_CONSUME
POST  /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/clearBacklog         NAMESPACE_CONSUME
POST  /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/clearBacklog/{subscription}   NAMESPACE_CONSUME
POST  /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/unsubscribe/{subscription}    NAMESPACE_CONSUME
*     /admin/v2/namespaces/{tenant}/{namespace}/{any**}                TENANT_ADMIN

GET   /admin/v2/{kind}/{tenant}/{namespace}                            LISTING
GET   /admin/v2/{kind}/{tenant}/{namespace}/partitioned                LISTING
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/partitions         LOOKUP
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/properties         LOOKUP
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/stats              LOOKUP
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/internalStats      LOOKUP
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/internal-info      LOOKUP
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/partitioned-stats          LOOKUP
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/partitioned-internalStats  LOOKUP
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/subscriptions              CONSUME
*     /admin/v2/{kind}/{tenant}/{namespace}/{topic}/subscription/{subscription}         CONSUME
*     /admin/v2/{kind}/{tenant}/{namespace}/{topic}/subscription/{subscription}/{any**} CONSUME
POST  /admin/v2/{kind}/{tenant}/{namespace}/{topic}/all_subscription/{any**}   CONSUME
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/ledger/{any**}             CONSUME
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/examinemessage             CONSUME
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/lastMessageId              CONSUME
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/messageid/{timestamp}      CONSUME
*     /admin/v2/{kind}/{tenant}/{namespace}/{topic}/backlogSize                CONSUME
*     /admin/v2/{kind}/{tenant}/{namespace}/{any**}                            TENANT_ADMIN

GET   /admin/v2/{form}/{tenant}/{namespace}/{topic}/subscriptions              CONSUME
GET   /admin/v2/{form}/{tenant}/{namespace}/{topic}/lastMessageId              CONSUME
GET   /admin/v2/{form}/{tenant}/{namespace}/{topic}/messageid/{timestamp}      CONSUME
GET   /admin/v2/{form}/{tenant}/{namespace}/{topic}/examinemessage             CONSUME
GET   /admin/v2/{form}/{tenant}/{namespace}/{topic}/ledger/{any**}             CONSUME
*     /admin/v2/{form}/{tenant}/{namespace}/{topic}/subscription/{subscription}/{any**} CONSUME
POST  /admin/v2/{form}/{tenant}/{namespace}/{topic}/all_subscription/{any**}   CONSUME
*     /admin/v2/topic/{tenant}/{namespace}/{any**}                             TENANT_ADMIN
POST  /admin/v2/scalable/{tenant}/{namespace}/{topic**}/split/{segment}                       SUPER_USER
POST  /admin/v2/scalable/{tenant}/{namespace}/{topic**}/merge/{one}/{other}                   SUPER_USER
POST  /admin/v2/scalable/{tenant}/{namespace}/{topic**}/rebucket/{segment}                    SUPER_USER
POST  /admin/v2/scalable/{tenant}/{namespace}/{topic**}/migrate                               PRODUCE
*     /admin/v2/scalable/{tenant}/{namespace}/{topic**}/subscriptions/{subscription**}        CONSUME
POST  /admin/v2/scalable/{tenant}/{namespace}/{topic**}/subscriptions/{subscription**}/{any**} CONSUME
GET   /admin/v2/scalable/{tenant}/{namespace}/{topic**}/autoScalePolicy                       TENANT_ADMIN
GET   /admin/v2/scalable/{tenant}/{namespace}/{topic**}/permissions                           TENANT_ADMIN
GET   /admin/v2/scalable/{tenant}/{namespace}                                                 LISTING
GET   /admin/v2/scalable/{tenant}/{namespace}/{topic**}                                       LOOKUP
GET   /admin/v2/scalable/{tenant}/{namespace}/{topic**}/stats                                 LOOKUP
GET   /admin/v2/scalable/{tenant}/{namespace}/{topic**}/explain                               LOOKUP
GET   /admin/v2/scalable/{tenant}/{namespace}/{topic**}/properties                            LOOKUP
*     /admin/v2/scalable/{tenant}/{namespace}/{any**}                                         TENANT_ADMIN
*     /admin/v2/segments/{any**}                                               SUPER_USER

DELETE /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema                   TENANT_ADMIN
POST  /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema                    PRODUCE
*     /admin/v2/schemas/{tenant}/{namespace}/{topic}/{any**}                   LOOKUP
GET   /lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}                   LOOKUP
GET   /lookup/v2/destination/{domain}/{tenant}/{namespace}/{topic}             LOOKUP
GET   /lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}/bundle            LISTING

GET   /admin/v2/anabranch/read-plan/{any**}                                    SUPER_USER
GET   /admin/v2/anabranch/ledgers/{domain}/{tenant}/{namespace}/{topic**}      ROUTE
GET   /admin/v2/anabranch/tables                                               SUPER_USER
GET   /admin/v2/anabranch/tables/{domain}/{tenant}/{namespace}/{topic**}       CONSUME
POST  /admin/v2/anabranch/tables/reports                                       SUPER_USER
GET   /admin/v2/anabranch/writes                                               ROUTE
*     /admin/v2/anabranch/writes/{any**}                                       ROUTE
POST  /admin/v2/anabranch/reveal/{domain}/{tenant}/{namespace}/{topic**}       ROUTE
"""
TENANT = re.compile(r"/admin/v2/[a-z-]+/\{tenant\}/\{namespace\}")


def _expression(pattern: str) -> re.Pattern[str]:
    text = re.escape(pattern.replace("**}", ":path}"))
    text = text.replace(re.escape("{any:path}"), ".+")
    text = text.replace(re.escape("{form}"), "(?:scalable|topic)")
    return re.compile(text.replace(re.escape("{kind}"), "(?:persistent|non-persistent)"))


RULES: Final = [
    (method, _expression(path), Needs[needs])
    for method, path, needs in map(str.split, filter(None, map(str.strip, TABLE.splitlines())))
]


def meant(method: str, path: str) -> Needs | None:
    """By the list, for a route with that path."""
    for methods, pattern, needs in RULES:
        if methods in ("*", method) and pattern.fullmatch(path):
            return needs
    return None


def routes(app: RestApp) -> Iterator[tuple[str, str, Route]]:
    """Every method of every path. A route for one of several words is as many."""
    for route in app.table.routes:
        for path, _ in route.paths():
            yield route.method, path, route


async def test_every_route_has_the_need_that_is_meant_for_it(rest: Rest) -> None:
    found = list(routes(create_app(rest.broker.admin_services(), rest.broker.page)))
    assert len(found) > 500
    missing = [f"{method} {path}" for method, path, _ in found if meant(method, path) is None]
    assert not missing, f"add these to the list: {missing}"
    wrong = [
        f"{method} {path}: {route.needs.name}, meant {needs.name}"
        for method, path, route in found
        if (needs := meant(method, path)) is not None and route.needs is not needs
    ]
    assert not wrong


async def test_every_line_of_the_list_is_of_some_route(rest: Rest) -> None:
    found = [
        (method, path)
        for method, path, _ in routes(create_app(rest.broker.admin_services(), rest.broker.page))
    ]
    used = {
        number
        for method, path in found
        for number in itertools.islice(
            (n for n, rule in enumerate(RULES) if rule[0] in ("*", method) and rule[1].fullmatch(path)), 1
        )
    }
    assert [RULES[n][1].pattern for n in range(len(RULES)) if n not in used] == []


async def test_every_route_has_the_names_that_its_need_is_about(rest: Rest) -> None:
    about = {
        Needs.TENANT_ADMIN: {"tenant"},
        Needs.LISTING: {"tenant", "namespace"},
        Needs.NAMESPACE_CONSUME: {"tenant", "namespace"},
        Needs.LOOKUP: {"tenant", "namespace", "topic"},
        Needs.PRODUCE: {"tenant", "namespace", "topic"},
        Needs.CONSUME: {"tenant", "namespace", "topic"},
    }
    for _, path, route in routes(create_app(rest.broker.admin_services(), rest.broker.page)):
        names = set(re.findall(r"\{(\w+)", path))
        assert about.get(route.needs, set()) <= names, path


def test_a_route_that_does_not_say_what_it_needs_is_for_super_users() -> None:
    async def endpoint() -> None: ...

    table = Routes("/admin")
    table.add("GET", "/x", endpoint)
    table.put("/x")(endpoint)
    assert [route.needs for route in table] == [Needs.SUPER_USER] * 2


async def test_only_state_and_the_pages_files_are_open_to_everybody(rest: Rest) -> None:
    found = routes(create_app(rest.broker.admin_services(), rest.broker.page))
    open_ = {path for _, path, route in found if route.needs is Needs.NOTHING}
    assert open_ == {"/", "/status.html", "/metrics", "/docs", "/openapi.json", "/ui", "/ui/{path:path}"}


async def test_routes_that_ask_by_themselves_are_few_and_known(rest: Rest) -> None:
    asking = {
        path
        for _, path, route in routes(create_app(rest.broker.admin_services(), rest.broker.page))
        if route.needs is Needs.ROUTE
    }
    assert asking == {
        "/ui/api/overview",
        "/ui/api/cluster",
        "/ui/api/topics/{tenant}/{namespace}/{topic:path}",
        "/ui/api/messages/{tenant}/{namespace}/{topic:path}",
        "/admin/v2/namespaces/grantPermissionsOnTopics",
        "/admin/v2/namespaces/revokePermissionsOnTopics",
        "/admin/v2/namespaces/{cluster}/antiAffinity/{group}",
        "/admin/v2/anabranch/ledgers/{domain}/{tenant}/{namespace}/{topic:path}",
        "/admin/v2/anabranch/writes",
        "/admin/v2/anabranch/writes/{write}/{number}",
        "/admin/v2/anabranch/writes/{write}/{number}/drop",
        "/admin/v2/anabranch/reveal/{domain}/{tenant}/{namespace}/{topic:path}",
    }


async def test_whatever_changes_a_tenants_things_needs_more_than_looking_up(rest: Rest) -> None:
    harmless = {Needs.LOOKUP, Needs.LISTING, Needs.NAME, Needs.NOTHING}
    # Compatibility of a schema and its version are asked for with the schema in the body.
    asked_by_post = {"compatibility", "version"}
    for method, path, route in routes(create_app(rest.broker.admin_services(), rest.broker.page)):
        is_change = method != "GET" and path.rpartition("/")[2] not in asked_by_post
        if TENANT.match(path) and is_change:
            assert route.needs not in harmless, f"{method} {path}"


@pytest.mark.parametrize(
    ("method", "path", "answers", "needs"),
    [
        ("GET", "/admin/v2/persistent/t/n/x/stats", "{topic}/stats", Needs.LOOKUP),
        ("HEAD", "/admin/v2/persistent/t/n/x/stats", "{topic}/stats", Needs.LOOKUP),
        ("DELETE", "/admin/v2/persistent/t/n/stats", "{namespace}/{topic}", Needs.TENANT_ADMIN),
        # A topic, role or subscription that is called like the end of another route.
        ("POST", "/admin/v2/scalable/t/n/a/permissions/migrate", "permissions/{role}", Needs.TENANT_ADMIN),
        (
            "POST",
            "/admin/v2/scalable/t/n/a/subscriptions/x/permissions/bob",
            "permissions/{role}",
            Needs.TENANT_ADMIN,
        ),
        (
            "DELETE",
            "/admin/v2/scalable/t/n/a/subscriptions/x/autoScalePolicy",
            "autoScalePolicy",
            Needs.TENANT_ADMIN,
        ),
        ("POST", "/admin/v2/scalable/t/n/a/subscriptions/x/split/1", "split/{segment}", Needs.SUPER_USER),
        ("POST", "/admin/v2/scalable/t/n/a/subscriptions/s/seek", "/seek", Needs.CONSUME),
        ("PUT", "/admin/v2/scalable/t/n/a/migrate", "{topic:path}", Needs.TENANT_ADMIN),
        (
            "POST",
            "/admin/v2/persistent/t/n/x/subscription/dispatchRate",
            "{subscription}/dispatchRate",
            Needs.TENANT_ADMIN,
        ),
        (
            "DELETE",
            "/admin/v2/persistent/t/n/x/subscription/dispatchRate",
            "{subscription}/dispatchRate",
            Needs.TENANT_ADMIN,
        ),
        (
            "POST",
            "/admin/v2/namespaces/t/n/permissions/clearBacklog",
            "permissions/{role}",
            Needs.TENANT_ADMIN,
        ),
        ("GET", "/ui/api/anything", "/ui/{path:path}", Needs.NOTHING),
    ],
)
async def test_a_request_is_judged_by_the_route_that_answers_it(
    rest: Rest, method: str, path: str, answers: str, needs: Needs
) -> None:
    found = create_app(rest.broker.admin_services(), rest.broker.page).table.find(method, path)
    assert isinstance(found, FoundRoute)
    assert found.runs
    assert found.route.path.endswith(answers)
    assert found.route.needs is needs


async def test_what_another_method_of_a_path_needs_opens_nothing(rest: Rest) -> None:
    for method, path in (("POST", "/metrics"), ("OPTIONS", "/status.html"), ("DELETE", "/ui")):
        answer = await rest.http.request(method, path)
        assert answer.status_code == 405
    async with guarded() as acme:
        for method, path in (("POST", "/metrics"), ("OPTIONS", "/status.html"), ("PATCH", "/nothing")):
            assert (await acme.rest(None, method, path)).status_code == 401


CONFUSED = (
    ("POST", "/admin/v2/scalable/acme/news/river/permissions/migrate"),
    ("POST", "/admin/v2/scalable/acme/news/river/subscriptions/x/permissions/eve"),
    ("DELETE", "/admin/v2/scalable/acme/news/river/subscriptions/x/permissions/boss"),
    ("POST", "/admin/v2/scalable/acme/news/river/subscriptions/x/autoScalePolicy"),
    ("DELETE", "/admin/v2/scalable/acme/news/river/subscriptions/x/autoScalePolicy"),
    ("POST", "/admin/v2/scalable/acme/news/river//subscriptions//x/permissions/eve/"),
    ("POST", "/admin/v2/persistent/acme/news/t/subscription/dispatchRate"),
    ("DELETE", "/admin/v2/persistent/acme/news/t/subscription/dispatchRate"),
    ("POST", "/admin/v2/namespaces/acme/news/permissions/clearBacklog"),
    ("POST", "/admin/v2/namespaces/acme/news/resourcegroup/clearBacklog"),
    ("PUT", "/admin/v2/scalable/acme/news/river/subscriptions%2Fx"),
    ("DELETE", "/admin/v2/scalable/acme/news/river%2Fsubscriptions%2Fx"),
)


@pytest.mark.parametrize(("method", "path"), CONFUSED)
async def test_names_that_look_like_routes_are_no_way_around_the_tenants_admins(
    method: str, path: str
) -> None:
    async with guarded() as acme:
        await acme.rest("boss", "PUT", "/admin/v2/persistent/acme/news/t", 204)
        await acme.rest("boss", "PUT", "/admin/v2/scalable/acme/news/river", 204)
        grant = "/admin/v2/namespaces/acme/news/permissions/eve"
        await acme.rest("boss", "POST", grant, 204, json=["produce", "consume"])
        before = {path: record.value for path, record in await acme.broker.metadata.scan("/admin")}
        body = ["produce"] if "permissions" in path else {"dispatchThrottlingRateInMsg": 1}
        answer = await acme.rest("eve", method, path, json=body)
        assert answer.status_code == 403, answer.text
        assert {path: record.value for path, record in await acme.broker.metadata.scan("/admin")} == before


async def test_a_wrong_name_is_refused_to_whoever_may_not_ask(rest: Rest) -> None:
    async with guarded() as acme:
        for path in (
            "/lookup/v2/topic/nowhere/acme/news/t",
            "/admin/v2/namespaces/acme/%20",
            "/admin/v2/persistent/acme/news/%00/stats",
        ):
            assert 400 <= (await acme.rest("nobody", "GET", path)).status_code < 500


# Each with others that would be it, were they decoded once more or once less.
SPELLINGS = (
    ("persistent", "a%252Fb", ("a", "a%25252Fb")),
    ("persistent", "a+b", ("a%2Bb",)),
    ("persistent", "a%2Bb", ("a+b", "a%252Bb")),
    ("persistent", "a;x=1", ("a", "a%253Bx=1")),
    ("persistent", "%C3%BC", ("u", "%25C3%25BC")),
    ("scalable", "a/b", ("a%252Fb", "a", "b")),
    ("scalable", "a+b", ("a%20b",)),
    ("scalable", "a%2Fstats", ("a",)),
    ("scalable", "a%2Fsubscriptions%2Fb", ("a", "b")),
)


@pytest.mark.parametrize(("kind", "name", "others"), SPELLINGS)
async def test_the_right_is_asked_for_the_topic_that_the_route_reads(
    kind: str, name: str, others: tuple[str, ...]
) -> None:
    async with guarded() as acme:
        base = f"/admin/v2/{kind}/acme/news"
        for one in (name, *others):
            await acme.rest("boss", "PUT", f"{base}/{one}", 204)
        await acme.rest("boss", "POST", f"{base}/{name}/permissions/eve", 204, json=["consume"])
        assert (await acme.rest("eve", "GET", f"{base}/{name}/stats")).status_code == 200
        for one in others:
            answer = await acme.rest("eve", "GET", f"{base}/{one}/stats")
            assert answer.status_code == 403, f"{one}: {answer.text}"
