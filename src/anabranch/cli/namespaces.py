"""`anabranch namespaces`: namespaces, who may use them, and their policies, which have get-, set- and remove- each.

Names of actions are those of `pulsar-admin namespaces`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.cli.amounts import seconds, size, switch, words
from anabranch.cli.options import UsageError
from anabranch.cli.requests import NAMESPACE, Argument, Request, arg, declare, flag

Body = Callable[[argparse.Namespace], Any]
RIGHTS = "produce, consume, functions, sources, sinks, packages"
_PATH = "/namespaces/{namespace}"
_ROLE = arg("role", help="as tokens and certificates name it")


def bundles(count: int) -> dict[str, Any]:
    """So many parts of the hashes, of one size."""
    if count < 1:
        raise UsageError("--bundles: at least 1")
    boundaries = [f"0x{min(index * (1 << 32) // count, 0xFFFFFFFF):08x}" for index in range(count + 1)]
    return {"numBundles": count, "boundaries": boundaries}


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
        _PATH + "/unload",
        (NAMESPACE,),
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
)


@dataclass(frozen=True)
class Policy:
    """A setting of namespaces. `value` is its single argument, unless there are `options` and a `body`."""

    word: str
    path: str
    help: str
    options: Sequence[Argument] = ()
    body: Body = lambda a: a.value
    shown_at: str = ""  # Where it is shown, if not where it is set.
    also: Sequence[Argument] = ()  # What removing it takes, too.
    method: str = "POST"


def _count(word: str, path: str, help: str) -> Policy:
    return Policy(word, path, help, (arg("value", type=int, metavar="N", help="0 for no limit"),))


def _switch(word: str, path: str, help: str) -> Policy:
    return Policy(word, path, help, (arg("value", type=switch, metavar="on|off"),))


def _retention(arguments: argparse.Namespace) -> Any:
    if arguments.time is None or arguments.size is None:
        raise UsageError(
            "retention has two bounds: give --time and --size; -1 means no bound, 0 keep nothing"
        )
    minutes = arguments.time if arguments.time < 0 else -(-arguments.time // 60)
    megabytes = arguments.size if arguments.size < 0 else -(-arguments.size // (1 << 20))
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}


def _quota(arguments: argparse.Namespace) -> Any:
    by_age = arguments.type == "message_age"
    if (arguments.limit_time if by_age else arguments.limit) is None:
        raise UsageError("give --limit-time, as in 24h" if by_age else "give --limit, as in 10G")
    return {
        "limitSize": -1 if arguments.limit is None else arguments.limit,
        "limitTime": -1 if arguments.limit_time is None else arguments.limit_time,
        "policy": arguments.policy,
    }


def _auto_creation(arguments: argparse.Namespace) -> Any:
    if not arguments.value:
        return {"allowAutoTopicCreation": False}
    if arguments.partitions:
        return {
            "allowAutoTopicCreation": True,
            "topicType": "partitioned",
            "defaultNumPartitions": arguments.partitions,
        }
    return {"allowAutoTopicCreation": True, "topicType": "non-partitioned"}


_QUOTA_TYPE = arg(
    "--type",
    query="backlogQuotaType",
    choices=("destination_storage", "message_age"),
    default="destination_storage",
    help="what is limited: bytes, or the age of the oldest message (default: destination_storage)",
)
_STRATEGIES = (
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
    "UNDEFINED",
)

POLICIES = (
    Policy(
        "retention",
        "retention",
        "how long, and how much of, what is acknowledged is kept",
        (
            arg("--time", type=seconds, metavar="TIME", help="7d, 12h; -1: for ever, 0: not at all"),
            arg("--size", type=size, metavar="SIZE", help="per topic: 10G, 512M; -1: any, 0: nothing"),
        ),
        _retention,
    ),
    Policy(
        "message-ttl",
        "messageTTL",
        "after what time messages count as acknowledged",
        (arg("value", type=seconds, metavar="TIME", help="1h, 7d; 0: never"),),
    ),
    Policy(
        "backlog-quota",
        "backlogQuota",
        "how much a subscription may leave unread, and what happens beyond that",
        (
            arg("--limit", type=size, metavar="SIZE", help="10G, 512M"),
            arg("--limit-time", type=seconds, metavar="TIME", help="24h (with --type message_age)"),
            arg(
                "--policy",
                choices=("producer_request_hold", "producer_exception", "consumer_backlog_eviction"),
                default="producer_request_hold",
                help="default: producer_request_hold",
            ),
            _QUOTA_TYPE,
        ),
        _quota,
        shown_at="backlogQuotaMap",
        also=(_QUOTA_TYPE,),
    ),
    _switch("deduplication", "deduplication", "whether messages that are sent twice are stored once"),
    Policy(
        "schema-compatibility-strategy",
        "schemaCompatibilityStrategy",
        "which schemas may follow which",
        (arg("value", type=str.upper, choices=_STRATEGIES, metavar="STRATEGY", help=", ".join(_STRATEGIES)),),
        method="PUT",
    ),
    _switch(
        "schema-validation-enforced",
        "schemaValidationEnforced",
        "whether producers must have the topic's schema",
    ),
    _switch("is-allow-auto-update-schema", "isAllowAutoUpdateSchema", "whether producers may add schemas"),
    Policy(
        "auto-topic-creation",
        "autoTopicCreation",
        "whether use makes topics, and of which kind",
        (
            arg("value", type=switch, metavar="on|off"),
            arg(
                "--partitions", type=int, metavar="N", help="they are partitioned so (default: they are not)"
            ),
        ),
        _auto_creation,
    ),
    Policy(
        "compaction-threshold",
        "compactionThreshold",
        "after how many bytes topics are compacted by themselves",
        (arg("value", type=size, metavar="SIZE", help="100M; 0: never"),),
        method="PUT",
    ),
    Policy(
        "subscription-expiration-time",
        "subscriptionExpirationTime",
        "after how long unused subscriptions are deleted",
        (arg("value", type=int, metavar="MINUTES", help="0: never"),),
    ),
    _count("max-producers-per-topic", "maxProducersPerTopic", "how many producers a topic may have"),
    _count("max-consumers-per-topic", "maxConsumersPerTopic", "how many consumers a topic may have"),
    _count(
        "max-consumers-per-subscription",
        "maxConsumersPerSubscription",
        "how many consumers a subscription may have",
    ),
    _count(
        "max-subscriptions-per-topic", "maxSubscriptionsPerTopic", "how many subscriptions a topic may have"
    ),
    _count("max-topics-per-namespace", "maxTopicsPerNamespace", "how many topics a namespace may have"),
    _count(
        "max-unacked-messages-per-consumer",
        "maxUnackedMessagesPerConsumer",
        "how many messages a consumer may hold unacknowledged",
    ),
    _count(
        "max-unacked-messages-per-subscription",
        "maxUnackedMessagesPerSubscription",
        "how many messages a subscription may hold unacknowledged",
    ),
)


def policy_requests(policy: Policy) -> list[Request]:
    path, shown_at = f"{_PATH}/{policy.path}", f"{_PATH}/{policy.shown_at or policy.path}"
    return [
        Request(f"get-{policy.word}", f"show {policy.help}", "GET", shown_at, (NAMESPACE,)),
        Request(
            f"set-{policy.word}",
            f"set {policy.help}",
            policy.method,
            path,
            (NAMESPACE, *policy.options),
            policy.body,
        ),
        Request(
            f"remove-{policy.word}",
            f"leave to the broker {policy.help}",
            "DELETE",
            path,
            (NAMESPACE, *policy.also),
        ),
    ]


def declare_namespaces(parser: argparse.ArgumentParser) -> None:
    declare(parser, [*REQUESTS, *(request for policy in POLICIES for request in policy_requests(policy))])
