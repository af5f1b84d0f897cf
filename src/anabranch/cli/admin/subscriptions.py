"""`anabranch subscriptions`: subscriptions of classic topics, partitioned or not, and of scalable ones.

Both kinds have the same names; an action that only one kind has is refused for the other with the reason.
"""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import urlencode

from anabranch.admin.rest import path_part
from anabranch.cli.admin import peek, scalable_rest
from anabranch.cli.admin.rest import RestRefused, call
from anabranch.cli.admin.topics import CONFLICT, stats
from anabranch.cli.parsing.admin_options import declare_group
from anabranch.cli.parsing.amounts import count, moment, seconds
from anabranch.cli.parsing.options import UsageError, pairs
from anabranch.cli.parsing.topics_options import TOPIC
from anabranch.cli.render import dag as dag_view
from anabranch.cli.render import topic as topic_view
from anabranch.cli.render.answers import View, show, table
from anabranch.cli.render.done import said
from anabranch.model.names import Domain, TopicName

_LONG_MAX = 2**63 - 1
_ENDS = {
    "earliest": {"ledgerId": -1, "entryId": -1},
    "latest": {"ledgerId": _LONG_MAX, "entryId": _LONG_MAX},
}


def declare_subscriptions(parser: argparse.ArgumentParser) -> None:
    declared = declare_group(parser)

    def action(name: str, help: str, subscription: str = "one") -> argparse.ArgumentParser:
        made = declared(name, help)
        made.set_defaults(module="admin.subscriptions")
        made.add_argument("topic", help=TOPIC)
        if subscription == "one":
            made.add_argument("subscription", help="its name")
        elif subscription == "all":
            made.add_argument("subscription", nargs="?", help="only this one")
        return made

    action("list", "list a topic's subscriptions", subscription="")
    create = action("create", "make a subscription")
    create.add_argument(
        "--start",
        default="latest",
        metavar="WHERE",
        help="earliest, latest, a time such as 2026-01-31T15:00, or on a classic topic a message id as LEDGER:ENTRY "
        "(default: latest)",
    )
    create.add_argument(
        "--type", choices=("stream", "queue"), help="of a scalable topic's subscription (default: stream)"
    )
    create.add_argument(
        "--property", action="append", default=[], metavar="NAME=VALUE", help="may be repeated"
    )
    action("delete", "delete a subscription").add_argument(
        "--force", action="store_true", help="with its consumers"
    )
    action("stats", "show how far a topic's subscriptions are", subscription="all").add_argument(
        "--consumers", action="store_true", help="with all that is known about each consumer"
    )
    action("skip", "skip the next messages").add_argument("count", type=count, metavar="N", help="how many")
    action("skip-all", "skip everything published so far")
    action("expire", "skip what is older than a time").add_argument(
        "age", type=seconds, metavar="TIME", help="90s, 15m, 3h, 7d"
    )
    reset = action("reset", "move a subscription, forwards or back")
    reset.add_argument(
        "where",
        metavar="WHERE",
        help="earliest, latest, a message id as LEDGER:ENTRY, or a time such as 2026-01-31T15:00",
    )
    reset.add_argument("--exclusive", action="store_true", help="continue after that message, not with it")
    peek = action("peek", "print the next messages without acknowledging them")
    peek.add_argument("-n", "--num", type=count, default=1, metavar="N", help="how many entries (default: 1)")
    action("analyze-backlog", "count what a subscription has not acknowledged, by reading it")
    action("properties", "show a subscription's properties")


def run(arguments: argparse.Namespace) -> int:
    name = TopicName.parse(arguments.topic)
    is_scalable = name.domain is Domain.TOPIC or (
        "://" not in arguments.topic and scalable_rest.exists(arguments.admin_url, name)
    )
    if is_scalable:
        _scalable(arguments, TopicName(Domain.TOPIC, name.namespace, name.local))
    else:
        _classic(arguments, name)
    return 0


# -- classic topics


def _classic(arguments: argparse.Namespace, name: TopicName) -> None:
    url, topic = arguments.admin_url, f"/admin/v2/{name.rest_path}"
    if arguments.action == "list":
        show(call(url, "GET", f"{topic}/subscriptions"), is_json=arguments.json)
        return
    if arguments.action == "stats":
        _stats(arguments, str(name), stats(url, topic))
        return
    path = f"{topic}/subscription/{path_part(arguments.subscription)}"
    found: Any = None
    match arguments.action:
        case "create":
            if arguments.type:
                raise UsageError("--type is for subscriptions of scalable topics: consumers choose it here")
            _create_classic(url, name, path, arguments)
        case "delete":
            call(url, "DELETE", f"{path}?force={str(arguments.force).lower()}")
        case "skip":
            call(url, "POST", f"{path}/skip/{arguments.count}")
        case "skip-all":
            call(url, "POST", f"{path}/skip_all")
        case "expire":
            call(url, "POST", f"{path}/expireMessages/{arguments.age}")
        case "reset":
            _reset(url, path, arguments)
        case "peek":
            entries = (f"{path}/position/{place}" for place in range(1, arguments.num + 1))
            peek.show(url, entries, is_json=arguments.json)
            return
        case "analyze-backlog":
            found = call(url, "POST", f"{path}/analyzeBacklog")
        case "properties":
            found = call(url, "GET", f"{path}/properties")
    show(found, is_json=arguments.json, done=_done(arguments, name))


def _create_classic(url: str, name: TopicName, path: str, arguments: argparse.Namespace) -> None:
    is_place = arguments.start in _ENDS or _is_id(arguments.start)
    when = None if is_place else _time(arguments.start)
    earliest = {**_ENDS["earliest"], "properties": pairs(arguments.property, "--property")}
    try:
        call(url, "PUT", path, _start(arguments) if is_place else earliest)
    except RestRefused as refused:
        if refused.status != CONFLICT:
            raise
        # The broker's words, which Pulsar's clients compare, name neither.
        raise RestRefused(
            refused.status,
            f"{name} has a subscription {arguments.subscription} already: `subscriptions reset` moves it",
        ) from None
    if when is not None:
        call(url, "POST", f"{path}/resetcursor/{when}")


def _done(arguments: argparse.Namespace, topic: TopicName) -> str:
    return said(arguments.action, f"{topic}, subscription {arguments.subscription}")


def _start(arguments: argparse.Namespace) -> Any:
    properties = pairs(arguments.property, "--property")
    place = _ENDS.get(arguments.start) or message_id(arguments.start)
    return {**place, "properties": properties} if properties else place


def message_id(text: str) -> dict[str, int]:
    """`12:5`, or with the partition and the place in a batch as clients print it: `12:5:-1:0`."""
    parts = text.strip("()").replace(",", ":").split(":")
    try:
        numbers = [int(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3, 4):
        raise UsageError(f"{text!r}: expected earliest, latest or a message id as LEDGER:ENTRY")
    names = ("ledgerId", "entryId", "partitionIndex", "batchIndex")
    return dict(zip(names, numbers, strict=False))


def _reset(url: str, path: str, arguments: argparse.Namespace) -> None:
    where: str = arguments.where
    if where in _ENDS:
        call(url, "POST", f"{path}/resetcursor", _ENDS[where])
    elif _is_id(where):
        call(url, "POST", f"{path}/resetcursor", {**message_id(where), "isExcluded": arguments.exclusive})
    else:
        call(url, "POST", f"{path}/resetcursor/{_time(where)}")


def _is_id(text: str) -> bool:
    """Whether it can be no time."""
    return ":" in text and "-" not in text.partition(":")[0] and "T" not in text


def _time(text: str) -> int:
    try:
        return moment(text)
    except argparse.ArgumentTypeError:
        raise UsageError(
            f"{text!r}: expected earliest, latest, a message id as LEDGER:ENTRY, or a time such as 2026-01-31T15:00"
        ) from None


def _stats(arguments: argparse.Namespace, topic: str, found: dict[str, Any]) -> None:
    only: str | None = arguments.subscription
    subscriptions = found["subscriptions"]
    if only is not None and only not in subscriptions:
        raise UsageError(f"{topic} has no subscription {only}")
    if arguments.json or arguments.consumers:
        show(subscriptions if only is None else subscriptions[only], is_json=arguments.json)
    elif not subscriptions:
        print(f"{topic} has no subscriptions")
    elif "segments" in found:
        chosen = subscriptions if only is None else {only: subscriptions[only]}
        print("\n".join(dag_view.subscription_table({"subscriptions": chosen})))
    else:
        print("\n".join(topic_view.subscription_table(found, only)))


# -- scalable topics


def _scalable(arguments: argparse.Namespace, topic: TopicName) -> None:
    url = arguments.admin_url
    if arguments.action == "list":
        show(list(scalable_rest.stats(url, topic)["subscriptions"]), is_json=arguments.json)
        return
    if arguments.action == "stats":
        _stats(arguments, str(topic), scalable_rest.stats(url, topic))
        return
    path = f"{scalable_rest.rest_path(topic)}/subscriptions/{path_part(arguments.subscription)}"
    one = f"{scalable_rest.rest_path(topic)}/subscription/{path_part(arguments.subscription)}"
    found: Any = None
    view: View | None = None
    match arguments.action:
        case "create":
            _create_scalable(url, topic, path, arguments)
        case "delete":
            call(url, "DELETE", path)
        case "skip-all":
            call(url, "POST", f"{path}/skip-all")
        case "reset":
            _reset_scalable(url, path, arguments)
        case "skip":
            call(url, "POST", f"{one}/skip/{arguments.count}")
        case "expire":
            call(url, "POST", f"{one}/expireMessages/{arguments.age}")
        case "peek":
            entries = (f"{one}/position/{place}" for place in range(1, arguments.num + 1))
            peek.show(url, entries, is_json=arguments.json)
            return
        case "analyze-backlog":
            found, view = call(url, "POST", f"{one}/analyzeBacklog"), _backlog
        case other:
            raise UsageError(f"{other} is for subscriptions of classic topics; {topic} is scalable")
    show(found, is_json=arguments.json, view=view, done=_done(arguments, topic))


def _reset_scalable(url: str, path: str, arguments: argparse.Namespace) -> None:
    where: str = arguments.where
    if where == "latest":
        call(url, "POST", f"{path}/skip-all")
        return
    if where != "earliest" and _is_id(where):
        raise UsageError(
            "a scalable topic has a message id in each segment: its subscriptions move to earliest, latest or a time"
        )
    when = 0 if where == "earliest" else _time(where)
    call(url, "POST", f"{path}/seek?timestamp={when}")


_COUNTED = {"ENTRIES": "entries", "MESSAGES": "messages", "FIRST": "firstMessageId", "LAST": "lastMessageId"}


def _backlog(found: Any) -> list[str]:
    """What waits in all, and a row for each segment in which something does."""
    rows = [{"segment": number, **one} for number, one in found.get("segments", {}).items() if one["entries"]]
    told = f"messages that wait: {found['messages']:,}, in entries: {found['entries']:,}"
    if found.get("aborted"):
        told += ", counted up to the limit of one request"
    return [told, *table(rows, {"SEGMENT": "segment", **_COUNTED}, left={3, 4})]


def _create_scalable(url: str, topic: TopicName, path: str, arguments: argparse.Namespace) -> None:
    """Brokers make subscriptions of scalable topics at the start of their segments; other places are moved to."""
    start: str = arguments.start
    if start not in _ENDS and _is_id(start):
        raise UsageError(
            "a scalable topic has a message id in each segment: --start takes earliest, latest or a time here"
        )
    if arguments.property:
        raise UsageError("subscriptions of scalable topics have no properties: leave --property out")
    when = 0 if start in _ENDS else _time(start)
    # Brokers take a second request for a repetition of the first.
    if arguments.subscription in scalable_rest.stats(url, topic)["subscriptions"]:
        raise UsageError(
            f"{topic} has a subscription {arguments.subscription} already: `subscriptions reset` moves it"
        )
    call(url, "PUT", f"{path}?{urlencode({'type': (arguments.type or 'stream').upper()})}")
    if start == "latest":
        call(url, "POST", f"{path}/skip-all")
    elif start != "earliest":
        call(url, "POST", f"{path}/seek?timestamp={when}")
