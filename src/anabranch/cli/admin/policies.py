"""Policies of namespaces and of topics: each is one setting of the admin REST with a get-, a set- and a remove-.

The policies, their paths and their words come from the broker's catalogue (`broker.policy.catalogue`); this module
defines how a value is typed. Names are those of `pulsar-admin namespaces` and `pulsar-admin topicPolicies`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from anabranch.broker.config.choices import QuotaAction, Strategy
from anabranch.broker.policy.catalogue import CATALOGUE, QUOTA_HELP, QUOTA_WORD, Policy
from anabranch.broker.policy.namespace import QuotaKind, SubscriptionType
from anabranch.broker.policy.rate_json import DispatchRate, PublishRate
from anabranch.broker.policy.stored_json import Count
from anabranch.cli.admin.requests import TOPIC, Argument, Request, arg, declare, flag
from anabranch.cli.parsing.amounts import seconds, size, switch, words
from anabranch.cli.parsing.options import UsageError

Body = Callable[[argparse.Namespace], Any]


@dataclass(frozen=True)
class Typed:
    """How a policy's value is typed: its arguments, and their JSON."""

    options: Sequence[Argument]
    body: Body = lambda a: a.value


@dataclass(frozen=True)
class PolicyCommand:
    """The commands of a policy of namespaces, topics or both."""

    word: str
    path: str  # The path for namespaces; empty if they have no such policy.
    topic_path: str  # The path for topics; empty if they have no such policy.
    help: str
    typed: Typed
    method: str = "POST"
    shown_at: str = ""  # The path that shows the policy, if it is another.
    also: Sequence[Argument] = ()  # Further arguments of removing it.


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
    if arguments.scalable and arguments.partitions:
        raise UsageError("--scalable and --partitions are two kinds of topics: give one")
    if arguments.scalable:
        return {"allowAutoTopicCreation": True, "topicType": "scalable"}
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
    choices=get_args(QuotaKind),
    default="destination_storage",
    help="what is limited: bytes, or the age of the oldest message (default: destination_storage)",
)
_STRATEGIES = (*(name for name in get_args(Strategy) if name != "UNDEFINED"), "UNDEFINED")
_SWITCH = (arg("value", type=switch, metavar="on|off"),)


def _rate(names: tuple[str, str]) -> Typed:
    def body(arguments: argparse.Namespace) -> Any:
        if arguments.messages is None and arguments.bytes is None:
            raise UsageError("give --messages, --bytes or both, a second")
        limits = (arguments.messages, arguments.bytes)
        return {name: -1 if limit is None else limit for name, limit in zip(names, limits, strict=True)}

    return Typed(
        (
            arg("--messages", type=int, metavar="N", help="a second"),
            arg("--bytes", type=size, metavar="SIZE", help="a second: 512K, 10M"),
        ),
        body,
    )


# How values are typed by type, for policies whose fields are not named below.
_BY_KIND: Final[Mapping[Any, Typed]] = {
    Count: Typed((arg("value", type=int, metavar="N", help="0 for no limit"),)),
    bool: Typed(_SWITCH),
    PublishRate: _rate(("publishThrottlingRateInMsg", "publishThrottlingRateInByte")),
    DispatchRate: _rate(("dispatchThrottlingRateInMsg", "dispatchThrottlingRateInByte")),
}
_BY_FIELD: Final[Mapping[str, Typed]] = {
    "retention_policies": Typed(
        (
            arg("--time", type=seconds, metavar="TIME", help="7d, 12h; -1: for ever, 0: not at all"),
            arg(
                "--size",
                type=size,
                metavar="SIZE",
                help="per topic, or segment: 10G, 512M; -1: any, 0: nothing",
            ),
        ),
        _retention,
    ),
    "message_ttl_in_seconds": Typed(
        (arg("value", type=seconds, metavar="TIME", help="1h, 7d; 0: never"),),
    ),
    "schema_compatibility_strategy": Typed(
        (arg("value", type=str.upper, choices=_STRATEGIES, metavar="STRATEGY", help=", ".join(_STRATEGIES)),),
    ),
    "auto_topic_creation": Typed(
        (
            *_SWITCH,
            arg(
                "--partitions", type=int, metavar="N", help="they are partitioned so (default: they are not)"
            ),
            arg(
                "--scalable",
                action="store_true",
                help="they are scalable for clients that know such topics, and not partitioned for others",
            ),
        ),
        _auto_creation,
    ),
    "auto_subscription_creation": Typed(_SWITCH, lambda a: {"allowAutoSubscriptionCreation": a.value}),
    "compaction_threshold": Typed((arg("value", type=size, metavar="SIZE", help="100M; 0: never"),)),
    "subscription_expiration_time_minutes": Typed(
        (arg("value", type=int, metavar="MINUTES", help="0: never"),)
    ),
    "delayed_delivery_policies": Typed(_SWITCH, lambda a: {"active": a.value, "tickTime": 1000}),
    "subscription_types_enabled": Typed(
        (arg("value", type=words, metavar="TYPE,…", help=", ".join(get_args(SubscriptionType))),)
    ),
    "inactive_topic_policies": Typed(
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
    ),
}
_BACKLOG_QUOTA = PolicyCommand(
    QUOTA_WORD,
    "backlogQuota",
    "backlogQuota",
    QUOTA_HELP,
    Typed(
        (
            arg("--limit", type=size, metavar="SIZE", help="10G, 512M"),
            arg("--limit-time", type=seconds, metavar="TIME", help="24h (with --type message_age)"),
            arg(
                "--policy",
                choices=get_args(QuotaAction),
                default="producer_request_hold",
                help="default: producer_request_hold",
            ),
            _QUOTA_TYPE,
        ),
        _quota,
    ),
    shown_at="backlogQuotaMap",
    also=(_QUOTA_TYPE,),
)


def _command(policy: Policy) -> PolicyCommand:
    return PolicyCommand(
        policy.word,
        policy.namespace_path,
        policy.topic_path,
        policy.help,
        _BY_FIELD.get(policy.field) or _BY_KIND[policy.kind],
        policy.method,
    )


POLICIES: Final = (*(_command(policy) for policy in CATALOGUE if policy.word), _BACKLOG_QUOTA)


def policy_requests(policy: PolicyCommand, target: Argument) -> list[Request]:
    """The requests of a policy. `target` says whether the policy is a namespace's or a topic's."""
    is_topic = target is TOPIC
    base = "/{topic}" if is_topic else "/namespaces/{namespace}"
    path = policy.topic_path if is_topic else policy.path
    above = "the namespace" if is_topic else "the broker"
    looking = (
        (target, flag("--applied", "applied", "the effective value, at whichever level it is set"))
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
            (target, *policy.typed.options),
            policy.typed.body,
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
