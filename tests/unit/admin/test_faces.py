"""`anabranch.admin` and its blocking face: the same names, and the requests that each method makes."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import anabranch
from anabranch.admin import RestRefused, admin, blocking
from anabranch.broker.admin.http.route_table import RouteTable
from anabranch.broker.policy.catalogue import CATALOGUE
from anabranch.broker.rest import TABLES
from anabranch.model.names import InvalidName
from harness.scripted_http import Asked, ScriptedHttp

ROUTES = RouteTable(route for routes in TABLES for route in routes)
ROOT = Path(anabranch.__file__).parents[2]
PARTS = ("topics", "subscriptions", "tenants", "namespaces", "policies", "schemas", "brokers")
KINDS = [type(getattr(admin.connect(), part)).__name__ for part in PARTS]


@pytest.fixture
def rest() -> Iterator[ScriptedHttp]:
    with ScriptedHttp(b"{}") as http:
        yield http


def public(of: object) -> dict[str, Any]:
    return {name: value for name, value in vars(of).items() if not name.startswith("_")}


# -- the same names, parameters and docstrings


@pytest.mark.parametrize("kind", KINDS)
def test_both_faces_have_the_same_methods(kind: str) -> None:
    one, other = getattr(admin, kind), getattr(blocking, kind)
    assert one.__doc__ == other.__doc__
    assert list(public(one)) == list(public(other))
    for name, method in public(one).items():
        waits = public(other)[name]
        assert inspect.signature(method).parameters == inspect.signature(waits).parameters, name
        assert (method.__doc__, method.__name__) == (waits.__doc__, waits.__name__)
        assert inspect.iscoroutinefunction(method)


def test_both_faces_have_the_same_parts_and_are_connected_alike(rest: ScriptedHttp) -> None:
    one, other = anabranch.admin.connect(rest.url), blocking.connect(rest.url)
    assert list(vars(one)) == list(vars(other)) == list(PARTS)
    assert [type(getattr(other, part)).__name__ for part in PARTS] == KINDS
    assert inspect.signature(admin.connect).parameters == inspect.signature(blocking.connect).parameters
    assert admin.connect.__doc__ == blocking.connect.__doc__


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_is_typed(kind: str) -> None:
    for name, method in public(getattr(admin, kind)).items():
        hints = get_type_hints(method)
        assert set(inspect.signature(method).parameters) - {"self"} == set(hints) - {"return"}, name
        assert "return" in hints


# -- requests


S = "topic://public/default/orders"
C = "persistent://public/default/old"
SCALABLE = "/admin/v2/scalable/public/default/orders"
CLASSIC = "/admin/v2/persistent/public/default/old"
NS = "/admin/v2/namespaces/public/default"

REQUESTS: list[tuple[str, str, tuple[Any, ...], dict[str, Any], str, str, Any]] = [
    ("topics", "create", (S,), {"segments": 3}, "PUT", f"{SCALABLE}?numInitialSegments=3", {}),
    ("topics", "create", (S,), {"properties": {"a": "b"}}, "PUT", SCALABLE, {"a": "b"}),
    ("topics", "create", (C,), {}, "PUT", CLASSIC, {}),
    ("topics", "create", (C,), {"partitions": 4}, "PUT", f"{CLASSIC}/partitions", 4),
    ("topics", "delete", (S,), {"force": True}, "DELETE", f"{SCALABLE}?force=true", None),
    ("topics", "split", (S, 0), {}, "POST", f"{SCALABLE}/split/0", None),
    ("topics", "merge", (S, 1, 2), {}, "POST", f"{SCALABLE}/merge/1/2", None),
    ("topics", "migrate", (C,), {}, "POST", "/admin/v2/scalable/public/default/old/migrate?force=false", None),
    ("topics", "remove_property", (S, "a&b"), {}, "DELETE", f"{SCALABLE}/properties?key=a%26b", None),
    ("topics", "set_partitions", (C, 9), {}, "POST", f"{CLASSIC}/partitions", 9),
    ("topics", "truncate", (C,), {}, "DELETE", f"{CLASSIC}/truncate", None),
    ("topics", "compact", (C,), {}, "PUT", f"{CLASSIC}/compaction", None),
    ("topics", "unload", (C,), {}, "PUT", f"{CLASSIC}/unload", None),
    ("topics", "grant", (C, "a/b", ["produce"]), {}, "POST", f"{CLASSIC}/permissions/a%2Fb", ["produce"]),
    ("subscriptions", "create", (S, "s"), {"type": "queue"}, "PUT", f"{SCALABLE}/subscriptions/s?type=QUEUE", None),
    ("subscriptions", "delete", (S, "a/b"), {}, "DELETE", f"{SCALABLE}/subscriptions/a%2Fb", None),
    ("subscriptions", "delete", (C, "s"), {"force": True}, "DELETE", f"{CLASSIC}/subscription/s?force=true", None),
    ("subscriptions", "skip_all", (S, "s"), {}, "POST", f"{SCALABLE}/subscriptions/s/skip-all", None),
    ("subscriptions", "skip_all", (C, "s"), {}, "POST", f"{CLASSIC}/subscription/s/skip_all", None),
    ("subscriptions", "skip", (C, "s", 5), {}, "POST", f"{CLASSIC}/subscription/s/skip/5", None),
    ("subscriptions", "skip", (S, "s", 5), {}, "POST", f"{SCALABLE}/subscription/s/skip/5", None),
    ("subscriptions", "expire", (S, "s", 60), {}, "POST", f"{SCALABLE}/subscription/s/expireMessages/60", None),
    ("subscriptions", "expire", (C, "s", 60), {}, "POST", f"{CLASSIC}/subscription/s/expireMessages/60", None),
    ("subscriptions", "seek", (S, "s", "earliest"), {}, "POST", f"{SCALABLE}/subscriptions/s/seek?timestamp=0", None),
    ("subscriptions", "seek", (S, "s", "latest"), {}, "POST", f"{SCALABLE}/subscriptions/s/skip-all", None),
    (
        "subscriptions",
        "seek",
        (C, "s", datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC)),
        {},
        "POST",
        f"{CLASSIC}/subscription/s/resetcursor/7000",
        None,
    ),
    (
        "subscriptions",
        "seek",
        (C, "s", "earliest"),
        {},
        "POST",
        f"{CLASSIC}/subscription/s/resetcursor",
        {"ledgerId": -1, "entryId": -1},
    ),
    ("tenants", "delete", ("acme",), {}, "DELETE", "/admin/v2/tenants/acme?force=false", None),
    ("namespaces", "create", ("public/default",), {}, "PUT", NS, {}),
    ("namespaces", "create", ("public/default",), {"bundles": 8}, "PUT", NS, {"bundles": {"numBundles": 8}}),
    ("namespaces", "clear_backlog", ("public/default", "s"), {}, "POST", f"{NS}/clearBacklog/s", None),
    ("policies", "set", ("public/default", "messageTTL", 60), {}, "POST", f"{NS}/messageTTL", 60),
    ("policies", "remove", (C, "messageTTL"), {}, "DELETE", f"{CLASSIC}/messageTTL", None),
    (
        "policies",
        "set_backlog_quota",
        ("public/default",),
        {"seconds_max": 60},
        "POST",
        f"{NS}/backlogQuota?backlogQuotaType=message_age",
        {"limitSize": -1, "limitTime": 60, "policy": "producer_request_hold"},
    ),
    ("policies", "set_auto_scale", (S, {"a": 1}), {}, "POST", f"{SCALABLE}/autoScalePolicy", {"a": 1}),
    ("brokers", "change_setting", ("a", "b/c"), {}, "POST", "/admin/v2/brokers/configuration/a/b%2Fc", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("part", "method", "args", "options", "verb", "path", "body"),
    REQUESTS,
    ids=[f"{one[0]}.{one[1]}-{n}" for n, one in enumerate(REQUESTS)],
)
def test_a_method_is_one_request_on_either_face(
    rest: ScriptedHttp,
    part: str,
    method: str,
    args: tuple[Any, ...],
    options: dict[str, Any],
    verb: str,
    path: str,
    body: Any,
) -> None:
    for _ in range(2):
        rest.answer(200, b"")
    asyncio.run(getattr(getattr(anabranch.admin.connect(rest.url), part), method)(*args, **options))
    getattr(getattr(blocking.connect(rest.url), part), method)(*args, **options)
    assert rest.asked == [Asked(verb, path, body)] * 2


@pytest.mark.parametrize(
    ("part", "method", "args"),
    [
        ("topics", "names", ("public/default",)),
        ("topics", "exists", (C,)),
        ("topics", "stats", (C,)),
        ("topics", "stats", (S,)),
        ("topics", "explain", (S,)),
        ("topics", "terminate", (C,)),
        ("topics", "properties", (C,)),
        ("topics", "set_properties", (C, {})),
        ("topics", "revoke", (C, "r")),
        ("subscriptions", "names", (S,)),
        ("subscriptions", "names", (C,)),
        ("tenants", "names", ()),
        ("tenants", "create", ("acme",)),
        ("namespaces", "names", ("public",)),
        ("namespaces", "delete", ("public/default",)),
        ("namespaces", "unload", ("public/default",)),
        ("namespaces", "permissions", ("public/default",)),
        ("namespaces", "grant", ("public/default", "r", ["consume"])),
        ("namespaces", "revoke", ("public/default", "r")),
        ("policies", "all", ("public/default",)),
        ("policies", "get", ("public/default", "retention")),
        ("policies", "auto_scale", ("public/default",)),
        ("policies", "remove_auto_scale", ("public/default",)),
        ("policies", "set_retention", (C,)),
        ("schemas", "get", (S, 3)),
        ("schemas", "versions", (S,)),
        ("schemas", "add", (S, "JSON")),
        ("schemas", "is_compatible", (S, "JSON")),
        ("schemas", "delete", (S,)),
        ("brokers", "names", ()),
        ("brokers", "check_health", ()),
        ("brokers", "version", ()),
        ("brokers", "settings", ()),
        ("brokers", "reset_setting", ("a",)),
    ],
)
def test_what_a_method_asks_for_is_a_route_of_the_broker(
    rest: ScriptedHttp, part: str, method: str, args: tuple[Any, ...]
) -> None:
    options = {"minutes": 1, "megabytes": 1} if method == "set_retention" else {}
    with contextlib.suppress(KeyError, TypeError, ValueError):  # The answer is that of no broker.
        getattr(getattr(blocking.connect(rest.url), part), method)(*args, **options)
    assert rest.asked
    assert [
        asked for asked in rest.asked if ROUTES.find(asked.method, asked.path.partition("?")[0]) is None
    ] == []


def test_every_listed_request_is_a_route_of_the_broker() -> None:
    assert [one for one in REQUESTS if ROUTES.find(one[4], one[5].partition("?")[0]) is None] == []


@pytest.mark.parametrize(
    ("part", "method", "args", "options", "says"),
    [
        ("topics", "create", (S,), {"partitions": 3}, "has no partitions"),
        ("topics", "create", (C,), {"segments": 3}, "has no segments"),
        ("topics", "stats", ("segment://public/default/orders/0000-ffff-0",), {}, "is a segment"),
        ("subscriptions", "create", (S, "s"), {"start": "latest"}, "begin at the earliest"),
        ("subscriptions", "create", (C, "s"), {"type": "queue"}, "type of their consumers"),
        ("subscriptions", "seek", (C, "s", datetime(2026, 1, 1)), {}, "no time zone"),
        ("subscriptions", "seek", (C, "s", "soon"), {}, "'soon'"),
        ("policies", "set_backlog_quota", (C,), {}, "bytes_max, or seconds_max"),
        ("policies", "get", ("public/default", "retention"), {"in_force": True}, "in_force is of topics"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_asked(
    rest: ScriptedHttp, part: str, method: str, args: tuple[Any, ...], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(anabranch.BadArgument, match=says):
        getattr(getattr(blocking.connect(rest.url), part), method)(*args, **options)
    assert rest.asked == []


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_an_empty_name_is_not_every_name(rest: ScriptedHttp, name: str) -> None:
    admin = blocking.connect(rest.url)
    asks: tuple[Callable[[], Any], ...] = (
        lambda: admin.namespaces.clear_backlog("public/default", name),
        lambda: admin.subscriptions.delete(C, name),
        lambda: admin.subscriptions.skip_all(S, name),
        lambda: admin.subscriptions.expire(C, name, 0),
        lambda: admin.topics.revoke(C, name),
        lambda: admin.tenants.delete(name),
    )
    for ask in asks:
        with pytest.raises(InvalidName, match="is no name"):
            ask()
    assert rest.asked == []


def test_a_refusal_has_the_brokers_reason_and_its_status(rest: ScriptedHttp) -> None:
    rest.refuse(409, "it exists")
    with pytest.raises(RestRefused, match=r"^it exists$") as refused:
        blocking.connect(rest.url).topics.create(S)
    assert (refused.value.status, refused.value.retryable) == (409, False)
    rest.refuse(503, "the disk is full")
    with pytest.raises(anabranch.AnabranchError, match="the disk is full") as busy:
        asyncio.run(anabranch.admin.connect(rest.url).brokers.check_health())
    assert busy.value.retryable


def test_what_connect_is_given_is_checked(rest: ScriptedHttp) -> None:
    with pytest.raises(anabranch.BadArgument, match="two ways to say who you are"):
        blocking.connect(rest.url, token="t", username="u", password="p")
    with pytest.raises(RestRefused, match="is no admin URL"):
        blocking.connect("pulsar://localhost:6650").brokers.names()


def test_a_scalable_topic_needs_no_second_question(rest: ScriptedHttp) -> None:
    rest.refuse(404)
    assert not blocking.connect(rest.url).topics.exists(S)
    assert len(rest.asked) == 1


def test_the_page_of_policies_names_every_policy() -> None:
    """`PolicyAdmin` takes REST's names, which users look up there."""
    page = (ROOT / "docs" / "client" / "admin.md").read_text(encoding="utf-8")
    names = {path for policy in CATALOGUE for path in (policy.namespace_path, policy.topic_path) if path}
    assert {name for name in names if f"`{name}`" not in page} == set()
