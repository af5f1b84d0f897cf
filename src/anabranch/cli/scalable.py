"""`anabranch topics` on scalable topics: create, split, merge, migrate, look at, explain, delete."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from dataclasses import astuple
from typing import Any
from urllib.parse import quote, urlencode

from anabranch.cli import dag_view, explain_view
from anabranch.cli.answers import show
from anabranch.cli.options import UsageError, pairs
from anabranch.cli.rest import RestRefused, call
from anabranch.model.names import NamespaceName, TopicName

# Off, or a broker that has never heard of scalable topics.
ABSENT = frozenset({404, 405})


def run(arguments: argparse.Namespace, topic: TopicName) -> int:
    url: str = arguments.admin_url
    path = rest_path(topic)
    found: Any = None
    match arguments.action:
        case "create":
            segments = 1 if arguments.segments is None else arguments.segments
            properties = pairs(arguments.property, "--property")
            call(url, "PUT", f"{path}?numInitialSegments={segments}", properties)
        case "delete":
            call(url, "DELETE", f"{path}?force={str(arguments.force).lower()}")
        case "migrate":
            call(url, "POST", f"{path}/migrate?force={str(arguments.force).lower()}")
            _show_layout(call(url, "GET", path), 0, arguments)
            return 0
        case "split":
            call(url, "POST", f"{path}/split/{arguments.segment}")
            _show_layout(call(url, "GET", path), arguments.segment, arguments)
            return 0
        case "merge":
            call(url, "POST", f"{path}/merge/{arguments.segment}/{arguments.other}")
            _show_layout(call(url, "GET", path), arguments.segment, arguments)
            return 0
        case "stats":
            _print_stats(topic, stats(url, topic), as_json=arguments.json)
            return 0
        case "explain":
            _explain(call(url, "GET", f"{path}/explain"), arguments)
            return 0
        case "subscriptions":
            found = list(stats(url, topic)["subscriptions"])
        case "properties":
            found = call(url, "GET", f"{path}/properties")
        case "watch":
            # Not at the top: it brings asyncio and the client, which the other actions do without.
            from anabranch.cli import watch

            return watch.run(arguments, topic)
        case other:
            raise UsageError(f"{other} is not for scalable topics")
    show(found, is_json=arguments.json)
    return 0


def rest_path(topic: TopicName) -> str:
    return f"/admin/v2/scalable/{topic.namespace}/{quote(topic.local, safe='')}"


def stats(url: str, topic: TopicName, *, timeout: float = 60.0) -> dict[str, Any]:
    found: dict[str, Any] = call(url, "GET", f"{rest_path(topic)}/stats", timeout=timeout)
    return found


def exists(url: str, topic: TopicName) -> bool:
    try:
        call(url, "GET", rest_path(topic))
    except RestRefused as refused:
        if refused.status in ABSENT:
            return False
        raise
    return True


def listed(url: str, namespace: NamespaceName, properties: dict[str, str]) -> list[str]:
    query = urlencode([("property", f"{name}={value}") for name, value in properties.items()])
    try:
        found: list[str] = call(url, "GET", f"/admin/v2/scalable/{namespace}{'?' if query else ''}{query}")
    except RestRefused as refused:
        # Without a filter the list of classic topics has reported a missing namespace already.
        if refused.status in ABSENT and not properties:
            return []
        raise
    return found


def _show_layout(record: dict[str, Any], parent: int, arguments: argparse.Namespace) -> None:
    show(record, is_json=arguments.json, view=lambda found: [_told(found, parent)])


def _told(record: dict[str, Any], parent: int) -> str:
    """What became of that segment, which may have gone by now, and how many there are."""
    segments = record["segments"]
    active = sum(segment["state"] == "ACTIVE" for segment in segments.values())
    children = [
        segments[str(n)] for n in segments.get(str(parent), {}).get("childIds", ()) if str(n) in segments
    ]
    parents = dag_view.ids(children[0]["parentIds"]) if children else str(parent)
    made = ", ".join(
        f"{child['segmentId']} ({child['hashRange']['start']:04x}-{child['hashRange']['end']:04x})"
        for child in children
    )
    arrow = glyphs_for(sys.stdout.encoding).arrow
    return f"{parents} {arrow} {made}; {active} active segments" if made else f"{active} active segments"


def _print_stats(topic: TopicName, found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found, indent=2))
        return
    parts = (
        dag_view.heading(str(topic), found, glyphs_for(sys.stdout.encoding)),
        dag_view.segment_table(found),
        explain_view.in_short(found.get("autoScale"), explain_view.Clock(round(time.time() * 1000))),
        dag_view.subscription_table(found),
    )
    print("\n\n".join("\n".join(part) for part in parts if part))


def _explain(found: dict[str, Any], arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    # A pipe gets a decision a line; a terminal's lines are broken between words.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print("\n".join(explain_view.page(found, is_all=arguments.all, width=width)))


def glyphs_for(encoding: str | None) -> dag_view.Glyphs:
    """Drawing characters where the terminal's encoding has them."""
    try:
        "".join(astuple(dag_view.UNICODE)).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return dag_view.ASCII
    return dag_view.UNICODE
