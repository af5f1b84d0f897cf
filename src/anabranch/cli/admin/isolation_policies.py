"""`anabranch isolation-policies`: which brokers own the bundles of which namespaces.

Names of actions are those of `pulsar-admin ns-isolation-policy`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.cli.admin.requests import Request, arg, declare
from anabranch.cli.parsing.amounts import words
from anabranch.cli.render.answers import table

_PATH = "/clusters/{cluster}/namespaceIsolationPolicies"
_CLUSTER = arg("cluster", help="its name, as `clusters list` shows it")
_NAME = arg("name", help="of the policy")


def _body(arguments: argparse.Namespace) -> dict[str, Any]:
    body = {
        "namespaces": arguments.namespaces,
        "primary": arguments.primary,
        "secondary": arguments.secondary,
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {
                "min_limit": str(arguments.min_available),
                "usage_threshold": str(arguments.usage_threshold),
            },
        },
    }
    return body if arguments.unload_scope is None else body | {"unload_scope": arguments.unload_scope}


def _policies(found: Mapping[str, Any]) -> list[str]:
    rows = [
        {
            "policy": name,
            **{part: ",".join(found[name][part]) for part in ("namespaces", "primary", "secondary")},
            "min": found[name]["auto_failover_policy"]["parameters"]["min_limit"],
        }
        for name in found
    ]
    columns = {
        "POLICY": "policy",
        "NAMESPACES": "namespaces",
        "PRIMARY": "primary",
        "SECONDARY": "secondary",
        "MIN": "min",
    }
    return table(rows, columns, left={0, 1, 2, 3})


def _brokers(found: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        {
            "broker": one["brokerName"],
            "policy": one.get("policyName"),
            "is": _role(one),
            "namespaces": ",".join(one["namespaceRegex"]),
        }
        for one in found
    ]
    columns = {"BROKER": "broker", "IS": "is", "POLICY": "policy", "NAMESPACES": "namespaces"}
    return table(rows, columns, left={0, 1, 2, 3})


def _role(found: Mapping[str, Any]) -> str:
    if "policyName" not in found:
        return "shared"
    return "primary" if found["primary"] else "secondary"


REQUESTS = (
    Request("list", "list the policies of a cluster", "GET", _PATH, (_CLUSTER,), view=_policies),
    Request("get", "show one policy", "GET", _PATH + "/{name}", (_CLUSTER, _NAME)),
    Request(
        "set",
        "make or replace a policy, and move bundles to its brokers",
        "POST",
        _PATH + "/{name}",
        (
            _CLUSTER,
            _NAME,
            arg(
                "--namespaces",
                type=words,
                required=True,
                metavar="PATTERN,…",
                help="whose bundles they are: acme/.*",
            ),
            arg(
                "--primary",
                type=words,
                required=True,
                metavar="PATTERN,…",
                help="the brokers that own them, by host or host:port",
            ),
            arg(
                "--secondary",
                type=words,
                default=[],
                metavar="PATTERN,…",
                help="brokers that help out when too few primary ones are available",
            ),
            arg(
                "--min-available",
                type=int,
                default=1,
                metavar="N",
                help="so many available primary brokers suffice (default: 1)",
            ),
            arg(
                "--usage-threshold",
                type=int,
                default=100,
                metavar="PERCENT",
                help="a primary broker with this load is not available (default: 100, whatever its load)",
            ),
            arg(
                "--unload-scope",
                choices=("all_matching", "none", "changed"),
                help="which of the namespaces are moved at once (default: changed)",
            ),
        ),
        _body,
    ),
    Request(
        "delete",
        "delete a policy; bundles stay where they are until they move",
        "DELETE",
        _PATH + "/{name}",
        (_CLUSTER, _NAME),
    ),
    Request(
        "brokers",
        "show what each broker is in the policies of a cluster",
        "GET",
        _PATH + "/brokers",
        (_CLUSTER,),
        view=_brokers,
    ),
    Request(
        "broker",
        "show what one broker is in them",
        "GET",
        _PATH + "/brokers/{broker}",
        (_CLUSTER, arg("broker", metavar="HOST:PORT", help="as `brokers list` names it")),
    ),
)


def declare_isolation_policies(parser: argparse.ArgumentParser) -> None:
    declare(parser, REQUESTS)
