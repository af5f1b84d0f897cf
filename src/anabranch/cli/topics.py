"""`anabranch topics`: a few requests to the admin REST."""

from __future__ import annotations

import argparse
import json
from typing import Any

from anabranch.cli.options import UsageError
from anabranch.cli.rest import RestRefused, call
from anabranch.model.names import Domain, NamespaceName, TopicName


def run(arguments: argparse.Namespace) -> int:
    url: str = arguments.admin_url
    if arguments.action == "list":
        for topic in _listed(url, NamespaceName.parse(arguments.namespace)):
            print(topic)
        return 0
    name = TopicName.parse(arguments.topic)
    if name.domain is not Domain.PERSISTENT:
        raise UsageError(f"{name}: only persistent:// topics are served")
    path = f"/admin/v2/{name.rest_path}"
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
    return 0


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
