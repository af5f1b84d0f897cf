"""`anabranch topics`: a few requests to the admin REST.

A name without a domain means the scalable topic of that name if there is one, else the classic one; actions that only
scalable topics have need no domain either.
"""

from __future__ import annotations

import argparse
import functools
import shlex
from typing import Any
from urllib.parse import quote

from anabranch.admin.rest import path_part
from anabranch.cli.admin import peek, scalable, scalable_rest
from anabranch.cli.admin.entry_ids import entry_path
from anabranch.cli.admin.rest import RestRefused, call
from anabranch.cli.parsing.options import UsageError, pairs
from anabranch.cli.render import topic as topic_view
from anabranch.cli.render.answers import View, show
from anabranch.cli.render.done import said
from anabranch.model.names import Domain, InvalidName, NamespaceName, TopicName

CONFLICT = 409
SCALABLE_ONLY = frozenset({"split", "merge", "rebucket", "watch", "explain", "migrate"})
# Actions that are one request: its method, and the end of its path.
SIMPLE = {
    "subscriptions": ("GET", "subscriptions"),
    "properties": ("GET", "properties"),
    "permissions": ("GET", "permissions"),
    "unload": ("PUT", "unload"),
    "truncate": ("DELETE", "truncate"),
    "compact": ("PUT", "compaction"),
    "compaction-status": ("GET", "compaction"),
}
ANY_TOPIC = frozenset(
    {
        *("create", "delete", "stats", "subscriptions", "properties"),
        *("last-message-id", "find", "peek", "message", "truncate", "terminate"),
        *("permissions", "grant-permission", "revoke-permission"),
    }
)


def run(arguments: argparse.Namespace) -> int:
    url: str = arguments.admin_url
    if arguments.action == "list":
        _list(arguments, NamespaceName.parse(arguments.namespace), pairs(arguments.property, "--property"))
        return 0
    name = TopicName.parse(arguments.topic)
    if _is_scalable(arguments, url, name):
        try:
            return scalable.run(arguments, TopicName(Domain.TOPIC, name.namespace, name.local))
        except RestRefused as refused:
            is_of_segments = arguments.action in SCALABLE_ONLY and arguments.action != "migrate"
            if refused.status != 404 or not is_of_segments or (classic := _classic_of(url, name)) is None:
                raise
            raise UsageError(
                f"{classic} is a classic topic, which has no segments; `anabranch topics migrate "
                f"{shlex.quote(arguments.topic)}` makes it a scalable one"
            ) from None
    if name.domain is Domain.SEGMENT:
        raise UsageError(f"{name} is a segment: `anabranch topics stats` of its topic shows it")
    _classic(arguments, url, name)
    return 0


def _is_scalable(arguments: argparse.Namespace, url: str, name: TopicName) -> bool:
    action = arguments.action
    if action == "create":
        is_scalable = bool(arguments.scalable) or name.domain is Domain.TOPIC
        if not is_scalable and (arguments.segments is not None or arguments.property):
            raise UsageError("--segments and --property are for scalable topics: add --scalable")
        if is_scalable and arguments.partitions:
            raise UsageError("a scalable topic has no partitions: use --segments instead of --partitions")
        return is_scalable
    if action in SCALABLE_ONLY:
        if name.domain is Domain.PERSISTENT and "://" in arguments.topic and action != "migrate":
            raise UsageError(f"{name} is a classic topic; `anabranch topics migrate` makes it a scalable one")
        return True
    if name.domain is Domain.TOPIC and action not in ANY_TOPIC:
        raise UsageError(f"{action} is for classic topics; {name} is scalable")
    if name.domain is Domain.TOPIC:
        return True
    if "://" in arguments.topic or not scalable_rest.exists(url, name):
        return False
    if action not in ANY_TOPIC:
        raise UsageError(f"{action} is for classic topics; topic://{name.namespace}/{name.local} is scalable")
    return True


def _classic_of(url: str, name: TopicName) -> TopicName | None:
    """The classic topic of that name, if there is one."""
    try:
        classic = TopicName(Domain.PERSISTENT, name.namespace, name.local)
        call(url, "GET", f"/admin/v2/{classic.rest_path}/partitions")
    except (InvalidName, RestRefused):
        return None
    return classic


def _create(arguments: argparse.Namespace, url: str, name: TopicName) -> None:
    path = f"/admin/v2/{name.rest_path}"
    try:
        if arguments.partitions:
            call(url, "PUT", f"{path}/partitions", arguments.partitions)
        else:
            call(url, "PUT", path)
    except RestRefused as refused:
        if name.is_persistent and scalable_rest.exists(url, name):
            raise RestRefused(
                refused.status,
                f"{Domain.TOPIC}://{name.namespace}/{name.local} exists already, a scalable topic",
            ) from None
        if refused.status == CONFLICT:
            raise RestRefused(refused.status, f"{name} exists already") from None
        raise


def _classic(arguments: argparse.Namespace, url: str, name: TopicName) -> None:
    path = f"/admin/v2/{name.rest_path}"
    view: View | None = None
    found: Any = None
    match arguments.action:
        case "create":
            _create(arguments, url, name)
        case "update-partitions":
            call(url, "POST", f"{path}/partitions", arguments.partitions)
        case "delete":
            tail = "/partitions" if is_partitioned(url, path) else ""
            call(url, "DELETE", f"{path}{tail}?force={str(arguments.force).lower()}")
        case "stats":
            found = stats(url, path)
            view = functools.partial(topic_view.page, str(name))
        case "internal-stats":
            kind = "partitioned-internalStats" if is_partitioned(url, path) else "internalStats"
            found = call(url, "GET", f"{path}/{kind}")
        case "partitions":
            found = call(url, "GET", f"{path}/partitions")
        case "terminate":
            tail = "/partitions" if is_partitioned(url, path) else ""
            found = call(url, "POST", f"{path}/terminate{tail}")
            view = _ids if tail else _id
        case "skip-damage":
            found = call(url, "POST", f"{path}/skip-damage")
            view = _given_up
        case "last-message-id" | "find":
            tail = "lastMessageId" if arguments.action == "last-message-id" else f"messageid/{arguments.time}"
            found, view = call(url, "GET", f"{path}/{tail}"), _id
        case "peek":
            entries = (
                f"{path}/examinemessage?initialPosition={arguments.start}&messagePosition={place}"
                for place in range(1, arguments.num + 1)
            )
            peek.show(url, entries, is_json=arguments.json)
            return
        case "message":
            peek.show(url, [f"{path}/{entry_path(arguments.id)}"], is_json=arguments.json)
            return
        case "unload" if arguments.dest:
            call(url, "PUT", f"{path}/unload?destinationBroker={quote(arguments.dest, safe='')}")
        case "grant-permission":
            call(url, "POST", f"{path}/permissions/{path_part(arguments.role)}", arguments.actions)
        case "revoke-permission":
            call(url, "DELETE", f"{path}/permissions/{path_part(arguments.role)}")
        case other:
            method, tail = SIMPLE[other]
            found = call(url, method, f"{path}/{tail}")
    show(found, is_json=arguments.json, view=view, done=_done(arguments, name))


def _done(arguments: argparse.Namespace, name: TopicName) -> str:
    if arguments.action == "create":
        parts = f" with {arguments.partitions} partitions" if arguments.partitions else ""
        return f"{name}: created{parts}"
    return said(arguments.action, str(name))


def _id(found: Any) -> list[str]:
    return [f"{found['ledgerId']}:{found['entryId']}"]


def _ids(found: Any) -> list[str]:
    return [f"partition {part}: {_id(one)[0]}" for part, one in found.items()]


def _given_up(found: Any) -> list[str]:
    return [f"{found['skippedEntries']} entries given up"]


def stats(url: str, path: str) -> dict[str, Any]:
    kind = "partitioned-stats" if is_partitioned(url, path) else "stats"
    found: dict[str, Any] = call(url, "GET", f"{path}/{kind}")
    return found


def _list(arguments: argparse.Namespace, namespace: NamespaceName, properties: dict[str, str]) -> None:
    url = arguments.admin_url
    # Classic topics cannot be found by their properties.
    found = [] if properties else _listed(url, namespace)
    found += [
        {"topic": topic, "kind": "scalable"} for topic in scalable_rest.listed(url, namespace, properties)
    ]
    show(sorted(found, key=lambda one: str(one["topic"])), is_json=arguments.json, view=_listing)


def _listing(found: list[dict[str, Any]]) -> list[str]:
    kinds = {"classic": "", "non-persistent": "", "scalable": "  (scalable)"}
    return [
        one["topic"] + (f"  ({one['partitions']} partitions)" if "partitions" in one else kinds[one["kind"]])
        for one in found
    ]


def _listed(url: str, namespace: NamespaceName) -> list[dict[str, Any]]:
    """Lists partitioned topics once, with their number of partitions, instead of every partition."""
    single: list[str] = call(url, "GET", f"/admin/v2/persistent/{namespace}")
    whole: list[str] = call(url, "GET", f"/admin/v2/persistent/{namespace}/partitioned")
    counts: dict[str, int] = {}
    for topic in whole:
        found: dict[str, Any] = call(url, "GET", f"/admin/v2/{TopicName.parse(topic).rest_path}/partitions")
        counts[topic] = found["partitions"]
    volatile: list[str] = call(url, "GET", f"/admin/v2/non-persistent/{namespace}")
    plain = [topic for topic in single if str(TopicName.parse(topic).base) not in counts]
    return [
        *({"topic": topic, "kind": "classic"} for topic in plain),
        *({"topic": topic, "kind": "non-persistent"} for topic in volatile),
        *({"topic": topic, "kind": "partitioned", "partitions": n} for topic, n in counts.items()),
    ]


def is_partitioned(url: str, path: str) -> bool:
    try:
        found: dict[str, Any] = call(url, "GET", f"{path}/partitions")
    except RestRefused as refused:
        if refused.status == 404:
            return False
        raise
    return bool(found["partitions"])
