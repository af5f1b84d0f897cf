"""`anabranch namespaces`: namespaces, their permissions, and their policies, which have get-, set- and remove- each.

Names of actions are those of `pulsar-admin namespaces`.
"""

from __future__ import annotations

import argparse
from typing import Any

from anabranch.cli.admin.policies import POLICIES, policy_requests
from anabranch.cli.admin.requests import NAMESPACE, Request, arg, declare, flag
from anabranch.cli.parsing.amounts import words
from anabranch.cli.parsing.options import UsageError

RIGHTS = "produce, consume, functions, sources, sinks, packages"
_PATH = "/namespaces/{namespace}"
_BUNDLE = "a range of hashes, as `namespaces bundles` shows its edges: 0x00000000_0x40000000"
_GROUP = arg("group", help="its name; the case of its letters is the same")
_ROLE = arg("role", help="as tokens and certificates name it")


def bundles(count: int) -> dict[str, Any]:
    """That many parts of the hash range, of equal size."""
    if count < 1:
        raise UsageError("--bundles: at least 1")
    boundaries = [f"0x{min(index * (1 << 32) // count, 0xFFFFFFFF):08x}" for index in range(count + 1)]
    return {"numBundles": count, "boundaries": boundaries}


def check_unload(arguments: argparse.Namespace) -> None:
    """An unload has no body. Only a single bundle can be sent somewhere."""
    if arguments.destination_broker is not None and arguments.bundle is None:
        raise UsageError("--destination-broker needs --bundle: bundles are moved one by one")


REQUESTS = (
    Request(
        "list",
        "list the namespaces of a tenant",
        "GET",
        "/namespaces/{tenant}",
        (arg("tenant", nargs="?", default="public", help="default: public"),),
    ),
    Request(
        "create",
        "make a namespace",
        "PUT",
        _PATH,
        (NAMESPACE, arg("--bundles", type=int, metavar="N", help="how many parts it can be served in")),
        lambda a: None if a.bundles is None else {"bundles": bundles(a.bundles)},
    ),
    Request(
        "delete",
        "delete a namespace",
        "DELETE",
        _PATH,
        (NAMESPACE, flag("--force", "force", "with all its topics")),
    ),
    Request("policies", "show all that is set for a namespace", "GET", _PATH, (NAMESPACE,)),
    Request(
        "topics", "list a namespace's topics, partitions one by one", "GET", _PATH + "/topics", (NAMESPACE,)
    ),
    Request(
        "bundles", "show the parts in which a namespace is served", "GET", _PATH + "/bundles", (NAMESPACE,)
    ),
    Request(
        "unload",
        "close a namespace's topics; its clients open them again",
        "PUT",
        _PATH + "{bundle}/unload",
        (
            NAMESPACE,
            arg("-b", "--bundle", metavar="RANGE", help=f"only the topics of this bundle: {_BUNDLE}"),
            arg(
                *("-d", "--destination-broker"),
                query="destinationBroker",
                metavar="HOST:PORT",
                help="give the bundle to this broker, as `brokers list` names it",
            ),
        ),
        check_unload,
    ),
    Request(
        "split-bundle",
        "make two bundles of one, so that two brokers can share its topics",
        "PUT",
        _PATH + "{bundle}/split",
        (NAMESPACE, arg("-b", "--bundle", required=True, metavar="RANGE", help=_BUNDLE)),
    ),
    Request(
        "clear-backlog",
        "acknowledge everything that subscriptions have not read yet",
        "POST",
        _PATH + "/clearBacklog{subscription}",
        (NAMESPACE, arg("-s", "--subscription", metavar="SUB", help="of this one only")),
    ),
    Request(
        "permissions", "show who may do what in a namespace", "GET", _PATH + "/permissions", (NAMESPACE,)
    ),
    Request(
        "grant-permission",
        "let a role do something in a namespace",
        "POST",
        _PATH + "/permissions/{role}",
        (NAMESPACE, _ROLE, arg("--actions", type=words, required=True, metavar="RIGHT,…", help=RIGHTS)),
        lambda a: a.actions,
    ),
    Request(
        "revoke-permission",
        "take all of a role's rights in a namespace away",
        "DELETE",
        _PATH + "/permissions/{role}",
        (NAMESPACE, _ROLE),
    ),
    Request(
        "get-anti-affinity-group",
        "show the group of namespaces whose bundles are kept apart",
        "GET",
        _PATH + "/antiAffinity",
        (NAMESPACE,),
    ),
    Request(
        "set-anti-affinity-group",
        "keep a namespace's bundles apart from others of the group",
        "POST",
        _PATH + "/antiAffinity",
        (NAMESPACE, _GROUP),
        lambda a: a.group,
    ),
    Request(
        "delete-anti-affinity-group",
        "take a namespace out of its group",
        "DELETE",
        _PATH + "/antiAffinity",
        (NAMESPACE,),
    ),
    Request(
        "get-anti-affinity-namespaces",
        "list the namespaces of a tenant that are in a group",
        "GET",
        "/namespaces/{cluster}/antiAffinity/{group}",
        (
            _GROUP,
            arg("--tenant", query="tenant", default="public", metavar="TENANT", help="default: public"),
            arg("--cluster", default="standalone", metavar="CLUSTER", help="default: standalone"),
        ),
    ),
)


def declare_namespaces(parser: argparse.ArgumentParser) -> None:
    policies = [policy for policy in POLICIES if policy.path]
    declare(parser, [*REQUESTS, *(one for policy in policies for one in policy_requests(policy, NAMESPACE))])
