"""Policies of namespaces and of topics: each is one setting of the admin REST with a get-, a set- and a remove-.

Names are those of `pulsar-admin namespaces` and `pulsar-admin topicPolicies`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.cli.amounts import seconds, size, switch, words
from anabranch.cli.options import UsageError
from anabranch.cli.requests import TOPIC, Argument, Request, arg, declare, flag

Body = Callable[[argparse.Namespace], Any]


@dataclass(frozen=True)
class Policy:
    """A setting of namespaces, topics or both. Its one argument is `value`, unless it has a `body` of its own."""

    word: str
    path: str  # Of namespaces; empty if they have no such policy.
    help: str
    options: Sequence[Argument] = ()
    body: Body = lambda a: a.value
    shown_at: str = ""  # Where it is shown, if not where it is set.
    also: Sequence[Argument] = ()  # What removing it takes, too.
    method: str = "POST"
    topic_path: str = ""  # Of topics; empty if they have no such policy.


def _count(path: str, topic_path: str, help: str) -> Policy:
    word = re.sub(r"[A-Z]", lambda found: "-" + found[0].lower(), path)
    return Policy(
        word, path, help, (arg("value", type=int, metavar="N", help="0 for no limit"),), topic_path=topic_path
    )


def _switch(word: str, path: str, help: str, body: Body = lambda a: a.value, topic_path: str = "") -> Policy:
    return Policy(
        word, path, help, (arg("value", type=switch, metavar="on|off"),), body, topic_path=topic_path
    )


def _rate(word: str, path: str, help: str, names: tuple[str, str]) -> Policy:
    def body(arguments: argparse.Namespace) -> Any:
        if arguments.messages is None and arguments.bytes is None:
            raise UsageError("give --messages, --bytes or both, a second")
        limits = (arguments.messages, arguments.bytes)
        return {name: -1 if limit is None else limit for name, limit in zip(names, limits, strict=True)}

    options = (
        arg("--messages", type=int, metavar="N", help="a second"),
        arg("--bytes", type=size, metavar="SIZE", help="a second: 512K, 10M"),
    )
    return Policy(word, path, help, options, body, topic_path=path)


def _inactive(arguments: argparse.Namespace) -> Any:
    return {
        "inactiveTopicDeleteMode": arguments.mode,
        "maxInactiveDurationSeconds": arguments.after,
        "deleteWhileInactive": True,
    }


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
_DISPATCH = ("dispatchThrottlingRateInMsg", "dispatchThrottlingRateInByte")
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

# Of namespaces, of topics, and what it limits.
_COUNTS = (
    ("maxProducersPerTopic", "maxProducers", "how many producers a topic may have"),
    ("maxConsumersPerTopic", "maxConsumers", "how many consumers a topic may have"),
    (
        "maxConsumersPerSubscription",
        "maxConsumersPerSubscription",
        "how many consumers a subscription may have",
    ),
    ("maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic", "how many subscriptions a topic may have"),
    ("maxTopicsPerNamespace", "", "how many topics a namespace may have"),
    (
        "maxUnackedMessagesPerConsumer",
        "maxUnackedMessagesOnConsumer",
        "how many messages a consumer may hold unacknowledged",
    ),
    (
        "maxUnackedMessagesPerSubscription",
        "maxUnackedMessagesOnSubscription",
        "how many messages a subscription may hold unacknowledged",
    ),
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
        topic_path="retention",
    ),
    Policy(
        "message-ttl",
        "messageTTL",
        "after what time messages count as acknowledged",
        (arg("value", type=seconds, metavar="TIME", help="1h, 7d; 0: never"),),
        topic_path="messageTTL",
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
        topic_path="backlogQuota",
    ),
    _switch(
        "deduplication",
        "deduplication",
        "whether messages that are sent twice are stored once",
        topic_path="deduplicationEnabled",
    ),
    Policy(
        "schema-compatibility-strategy",
        "schemaCompatibilityStrategy",
        "which schemas may follow which",
        (arg("value", type=str.upper, choices=_STRATEGIES, metavar="STRATEGY", help=", ".join(_STRATEGIES)),),
        method="PUT",
        topic_path="schemaCompatibilityStrategy",
    ),
    _switch(
        "schema-validation-enforced",
        "schemaValidationEnforced",
        "whether producers must have the topic's schema",
        topic_path="schemaValidationEnforced",
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
        topic_path="compactionThreshold",
    ),
    Policy(
        "subscription-expiration-time",
        "subscriptionExpirationTime",
        "after how long unused subscriptions are deleted",
        (arg("value", type=int, metavar="MINUTES", help="0: never"),),
        topic_path="subscriptionExpirationTime",
    ),
    *(_count(*one) for one in _COUNTS),
    _rate(
        "publish-rate",
        "publishRate",
        "how fast a topic may be published to",
        ("publishThrottlingRateInMsg", "publishThrottlingRateInByte"),
    ),
    _rate("dispatch-rate", "dispatchRate", "how fast a topic may be read by all", _DISPATCH),
    _rate(
        "subscription-dispatch-rate",
        "subscriptionDispatchRate",
        "how fast each subscription may be read",
        _DISPATCH,
    ),
    _switch(
        "delayed-delivery",
        "delayedDelivery",
        "whether messages may ask to be delivered later",
        lambda a: {"active": a.value, "tickTime": 1000},
        "delayedDelivery",
    ),
    _switch(
        "auto-subscription-creation",
        "autoSubscriptionCreation",
        "whether use makes subscriptions",
        lambda a: {"allowAutoSubscriptionCreation": a.value},
        "autoSubscriptionCreation",
    ),
    _switch("encryption-required", "encryptionRequired", "whether only encrypted messages are taken"),
    Policy(
        "subscription-types-enabled",
        "subscriptionTypesEnabled",
        "which types of subscriptions there may be",
        (arg("value", type=words, metavar="TYPE,…", help="Exclusive, Shared, Failover, Key_Shared"),),
        topic_path="subscriptionTypesEnabled",
    ),
    Policy(
        "inactive-topic-policies",
        "inactiveTopicPolicies",
        "when topics that nobody uses are deleted",
        (
            arg("--after", type=seconds, required=True, metavar="TIME", help="unused for so long: 1h, 7d"),
            arg(
                "--mode",
                choices=("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"),
                default="delete_when_no_subscriptions",
                help="default: delete_when_no_subscriptions",
            ),
        ),
        _inactive,
        topic_path="inactiveTopicPolicies",
    ),
)


def policy_requests(policy: Policy, target: Argument) -> list[Request]:
    """`target` says whether the policy of a namespace or of a topic is meant."""
    is_topic = target is TOPIC
    base = "/{topic}" if is_topic else "/namespaces/{namespace}"
    path = policy.topic_path if is_topic else policy.path
    above = "the namespace" if is_topic else "the broker"
    looking = (
        (target, flag("--applied", "applied", "what is in force, whoever has set it"))
        if is_topic
        else (target,)
    )
    return [
        Request(
            f"get-{policy.word}", f"show {policy.help}", "GET", f"{base}/{policy.shown_at or path}", looking
        ),
        Request(
            f"set-{policy.word}",
            f"set {policy.help}",
            policy.method,
            f"{base}/{path}",
            (target, *policy.options),
            policy.body,
        ),
        Request(
            f"remove-{policy.word}",
            f"leave to {above} {policy.help}",
            "DELETE",
            f"{base}/{path}",
            (target, *policy.also),
        ),
    ]


def declare_topic_policies(parser: argparse.ArgumentParser) -> None:
    policies = [policy for policy in POLICIES if policy.topic_path]
    declare(
        parser,
        [
            *(one for policy in policies for one in policy_requests(policy, TOPIC)),
            Request(
                "remove-all", "leave everything to the namespace", "DELETE", "/{topic}/policies", (TOPIC,)
            ),
        ],
    )
