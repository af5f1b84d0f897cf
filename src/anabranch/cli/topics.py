"""`anabranch topics`: a few requests to the admin REST.

A name without a domain means the scalable topic of that name if there is one, else the classic one; what only scalable
topics can do needs no domain either.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from anabranch.cli import scalable
from anabranch.cli.options import UsageError, pairs
from anabranch.cli.rest import RestRefused, call
from anabranch.model.names import Domain, NamespaceName, TopicName

SCALABLE_ONLY = frozenset({"split", "merge", "watch", "explain", "migrate"})
CLASSIC_ONLY = frozenset({"unload", "terminate", "skip-damage"})


def run(arguments: argparse.Namespace) -> int:
    url: str = arguments.admin_url
    if arguments.action == "list":
        _list(url, NamespaceName.parse(arguments.namespace), pairs(arguments.property, "--property"))
        return 0
    name = TopicName.parse(arguments.topic)
    if _is_scalable(arguments, url, name):
        return scalable.run(arguments, TopicName(Domain.TOPIC, name.namespace, name.local))
    if name.domain is not Domain.PERSISTENT:
        raise UsageError(f"{name}: only persistent:// and topic:// topics are served")
    _classic(arguments, url, f"/admin/v2/{name.rest_path}")
    return 0


def _is_scalable(arguments: argparse.Namespace, url: str, name: TopicName) -> bool:
    action = arguments.action
    if action == "create":
        if not arguments.scalable and (arguments.segments is not None or arguments.property):
            raise UsageError("--segments and --property are for scalable topics: add --scalable")
        if arguments.scalable and arguments.partitions:
            raise UsageError("a scalable topic has no partitions: use --segments instead of --partitions")
        return bool(arguments.scalable) or name.domain is Domain.TOPIC
    if action in SCALABLE_ONLY:
        if name.domain is Domain.PERSISTENT and "://" in arguments.topic and action != "migrate":
            raise UsageError(f"{name} is a classic topic; `anabranch topics migrate` makes it a scalable one")
        return True
    if name.domain is Domain.TOPIC and action in CLASSIC_ONLY:
        raise UsageError(f"{action} is for classic topics; {name} is scalable")
    if name.domain is Domain.TOPIC:
        return True
    if "://" in arguments.topic or not scalable.exists(url, name):
        return False
    if action in CLASSIC_ONLY:
        raise UsageError(f"{action} is for classic topics; topic://{name.namespace}/{name.local} is scalable")
    return True


def _classic(arguments: argparse.Namespace, url: str, path: str) -> None:
    match arguments.action:
        case "create":
            if arguments.partitions:
                call(url, "PUT", f"{path}/partitions", arguments.partitions)
            else:
                call(url, "PUT", path)
        case "delete":
            tail = "/partitions" if _is_partitioned(url, path) else ""
            call(url, "DELETE", f"{path}{tail}?force={str(arguments.force).lower()}")
        case "stats":
            kind = "partitioned-stats" if _is_partitioned(url, path) else "stats"
            print(json.dumps(call(url, "GET", f"{path}/{kind}"), indent=2))
        case "subscriptions":
            for subscription in call(url, "GET", f"{path}/subscriptions"):
                print(subscription)
        case "unload":
            call(url, "PUT", f"{path}/unload")
        case "terminate":
            tail = "/partitions" if _is_partitioned(url, path) else ""
            print(json.dumps(call(url, "POST", f"{path}/terminate{tail}")))
        case "skip-damage":
            print(f"{call(url, 'POST', f'{path}/skip-damage')['skippedEntries']} entries given up")


def _list(url: str, namespace: NamespaceName, properties: dict[str, str]) -> None:
    # Classic topics are not found by their properties.
    classic = [] if properties else _listed(url, namespace)
    for topic in sorted([*classic, *scalable.listed(url, namespace, properties)]):
        print(topic)


def _listed(url: str, namespace: NamespaceName) -> list[str]:
    """Partitioned topics once, with their number of partitions, instead of every partition."""
    single: list[str] = call(url, "GET", f"/admin/v2/persistent/{namespace}")
    whole: list[str] = call(url, "GET", f"/admin/v2/persistent/{namespace}/partitioned")
    counts: dict[str, int] = {}
    for topic in whole:
        found: dict[str, Any] = call(url, "GET", f"/admin/v2/{TopicName.parse(topic).rest_path}/partitions")
        counts[topic] = found["partitions"]
    plain = [topic for topic in single if str(TopicName.parse(topic).base) not in counts]
    return sorted([*plain, *(f"{topic}  ({count} partitions)" for topic, count in counts.items())])


def _is_partitioned(url: str, path: str) -> bool:
    try:
        found: dict[str, Any] = call(url, "GET", f"{path}/partitions")
    except RestRefused as refused:
        if refused.status == 404:
            return False
        raise
    return bool(found["partitions"])
