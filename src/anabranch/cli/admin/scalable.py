"""`anabranch topics` on scalable topics: create, split, merge, rebucket, migrate, show, explain, delete."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from typing import Any

from anabranch.admin.rest import path_part
from anabranch.cli.admin import peek
from anabranch.cli.admin.entry_ids import entry_path
from anabranch.cli.admin.rest import call
from anabranch.cli.admin.scalable_rest import rest_path, stats
from anabranch.cli.parsing.options import UsageError, pairs
from anabranch.cli.render import dag as dag_view
from anabranch.cli.render import explain as explain_view
from anabranch.cli.render.answers import show
from anabranch.cli.render.done import said
from anabranch.model.names import TopicName


def run(arguments: argparse.Namespace, topic: TopicName) -> int:
    url: str = arguments.admin_url
    path = rest_path(topic)
    found: Any = None
    match arguments.action:
        case "create":
            segments = 1 if arguments.segments is None else arguments.segments
            properties = pairs(arguments.property, "--property")
            call(url, "PUT", f"{path}?numInitialSegments={segments}", properties)
            made = f"{topic}: created with {segments} segment{'' if segments == 1 else 's'}"
            show(None, is_json=arguments.json, done=made)
            return 0
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
        case "rebucket":
            call(url, "POST", f"{path}/rebucket/{arguments.segment}?buckets={arguments.buckets}")
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
        case "last-message-id":
            show(call(url, "GET", f"{path}/lastMessageId"), is_json=arguments.json, view=_ids)
            return 0
        case "find":
            found = call(url, "GET", f"{path}/messageid/{arguments.time}")
            if not found and not arguments.json:
                print(f"{topic} has no message that was published then or later")
            show(found, is_json=arguments.json, view=_ids)
            return 0
        case "peek":
            entries = (
                f"{path}/examinemessage?initialPosition={arguments.start}&messagePosition={place}"
                for place in range(1, arguments.num + 1)
            )
            peek.show(url, entries, is_json=arguments.json)
            return 0
        case "message":
            peek.show(url, [f"{path}/{entry_path(arguments.id)}"], is_json=arguments.json)
            return 0
        case "permissions":
            found = call(url, "GET", f"{path}/permissions")
        case "grant-permission":
            call(url, "POST", f"{path}/permissions/{path_part(arguments.role)}", arguments.actions)
        case "revoke-permission":
            call(url, "DELETE", f"{path}/permissions/{path_part(arguments.role)}")
        case "truncate":
            call(url, "DELETE", f"{path}/truncate")
        case "terminate":
            show(call(url, "POST", f"{path}/terminate"), is_json=arguments.json, view=_ids)
            return 0
        case "watch":
            # Not at the top: it imports asyncio and the client, which the other actions do not need.
            from anabranch.cli.admin import watch

            return watch.run(arguments, topic)
        case other:
            raise UsageError(f"{other} is not for scalable topics")
    show(found, is_json=arguments.json, done=said(arguments.action, str(topic)))
    return 0


def _ids(found: dict[str, Any]) -> list[str]:
    return [f"segment {number}: {at['ledgerId']}:{at['entryId']}" for number, at in found.items()]


def _show_layout(record: dict[str, Any], parent: int, arguments: argparse.Namespace) -> None:
    show(record, is_json=arguments.json, view=lambda found: [_told(found, parent)])


def _told(record: dict[str, Any], parent: int) -> str:
    """What happened to that segment, which may be removed by now, and how many segments there are."""
    segments = record["segments"]
    active = sum(segment["state"] == "ACTIVE" for segment in segments.values())
    children = [
        segments[str(n)] for n in segments.get(str(parent), {}).get("childIds", ()) if str(n) in segments
    ]
    parents = dag_view.ids(children[0]["parentIds"]) if children else str(parent)
    made = ", ".join(
        f"{child['segmentId']} ({child['hashRange']['start']:04x}-{child['hashRange']['end']:04x}{_buckets(child)})"
        for child in children
    )
    arrow = dag_view.glyphs_for(sys.stdout.encoding).arrow
    left = f"{active} active segment{'' if active == 1 else 's'}"
    return f"{parents} {arrow} {made}; {left}" if made else left


def _buckets(segment: dict[str, Any]) -> str:
    # Stats have the number, the layout has it or, where buckets are uneven, their starts.
    count = segment.get("entryBuckets") or len(segment.get("entryBucketSplits", ())) + 1
    return f", {count} entry buckets" if count > 1 else ""


def _print_stats(topic: TopicName, found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found, indent=2))
        return
    parts = (
        dag_view.heading(str(topic), found, dag_view.glyphs_for(sys.stdout.encoding)),
        dag_view.segment_table(found),
        explain_view.in_short(found.get("autoScale"), explain_view.Clock(round(time.time() * 1000))),
        dag_view.subscription_table(found),
    )
    print("\n\n".join("\n".join(part) for part in parts if part))


def _explain(found: dict[str, Any], arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    # Piped output has one line per decision; on a terminal, lines are broken between words.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print("\n".join(explain_view.page(found, is_all=arguments.all, width=width)))
