"""The options of `anabranch topics`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from anabranch.cli.parsing.admin_options import declare_group, declare_reach
from anabranch.cli.parsing.amounts import count, moment, words

TOPIC = "`t` is short for a topic of public/default"

# Actions whose only argument is the topic.
PLAIN = (
    ("internal-stats", "show how a classic topic is stored: its ledgers and cursors"),
    ("subscriptions", "list a topic's subscriptions"),
    ("partitions", "show how many partitions a classic topic has; 0 if it is not partitioned"),
    ("properties", "show a topic's properties"),
    ("last-message-id", "show the id of a topic's last message, or of each segment's"),
    ("terminate", "end a topic: it accepts no more messages, for good"),
    ("truncate", "delete what a topic holds, read or not, and keep its subscriptions"),
    (
        "compact",
        "start to compact a classic topic: only the last message of each key stays in compacted reads",
    ),
    ("compaction-status", "show how the last compaction of a classic topic went"),
    ("permissions", "show who may do what with a topic"),
    ("skip-damage", "skip damaged entries that stop a classic topic's readers"),
)


def declare_topics(parser: argparse.ArgumentParser) -> None:
    parser.description = "Asks the admin REST of a broker."
    parser.epilog = (
        "`t` is short for a topic of public/default, scalable if there is one of that name, else classic; "
        "topic://tenant/namespace/t is always scalable, persistent://tenant/namespace/t always classic."
    )
    declared = declare_group(parser)

    def action(name: str, help: str, topic: bool = True) -> argparse.ArgumentParser:
        made = declared(name, help)
        made.set_defaults(module="admin.topics")
        if topic:
            made.add_argument("topic", help=TOPIC)
        return made

    listing = action("list", "list the topics of a namespace", topic=False)
    listing.add_argument("namespace", nargs="?", default="public/default", metavar="TENANT/NAMESPACE")
    listing.add_argument(
        "--property",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="only scalable topics with that property; may be repeated",
    )
    _create_topic(action("create", "make a topic"))
    action("update-partitions", "give a partitioned topic more partitions").add_argument(
        "partitions", type=int, metavar="N", help="how many it shall have"
    )
    delete = action("delete", "delete a topic")
    delete.add_argument(
        "--force", action="store_true", help="also if it has subscriptions or connected clients"
    )
    action("stats", "show a topic's figures")
    _messages(action)
    for name, help in PLAIN:
        action(name, help)
    action("unload", "close a classic topic; its clients come back and open it again").add_argument(
        "--dest",
        metavar="HOST:PORT",
        help="move the topic's whole bundle to this broker, as `brokers list` names it",
    )
    grant = action("grant-permission", "let a role do something with a topic")
    grant.add_argument("role", help="as tokens and certificates name it")
    grant.add_argument(
        "--actions", type=words, required=True, metavar="RIGHT,…", help="produce, consume and others"
    )
    action("revoke-permission", "take all of a role's rights on a topic away").add_argument(
        "role", help="as tokens and certificates name it"
    )
    _scalable_actions(action)
    _policy_actions(
        action("policy", "show or change when scalable topics split and merge by themselves", topic=False)
    )


def _messages(action: Callable[[str, str], argparse.ArgumentParser]) -> None:
    peek = action("peek", "print messages of a topic without a subscription")
    peek.add_argument("-n", "--num", type=count, default=1, metavar="N", help="how many entries (default: 1)")
    peek.add_argument(
        "--start", choices=("earliest", "latest"), default="latest", help="from which end (default: latest)"
    )
    action("message", "print the message, or the batch, with an id").add_argument(
        "id", help="LEDGER:ENTRY, or as `consume --json` prints it"
    )
    action("find", "show the id of the first message published at or after a time").add_argument(
        "time", type=moment, help="2026-01-31T15:00, or milliseconds since 1970"
    )


def _create_topic(create: argparse.ArgumentParser) -> None:
    create.add_argument("--partitions", type=int, default=0, metavar="N", help="make it partitioned")
    create.add_argument(
        "--scalable", action="store_true", help="make a scalable topic, which can be split and merged"
    )
    create.add_argument(
        "--segments", type=int, metavar="N", help="how many segments it starts with (default: 1)"
    )
    create.add_argument(
        "--property",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a property of the scalable topic; may be repeated",
    )


def _scalable_actions(action: Callable[[str, str], argparse.ArgumentParser]) -> None:
    split = action("split", "split an active segment of a scalable topic into two halves")
    split.add_argument("segment", type=int, help="its id, as `stats` shows it")
    merge = action("merge", "merge two neighbouring active segments of a scalable topic into one")
    merge.add_argument("segment", type=int, help="id of the one")
    merge.add_argument("other", type=int, help="id of the other")
    rebucket = action(
        "rebucket",
        "replace an active segment of a scalable topic by one of the same range with another number of entry buckets",
    )
    rebucket.add_argument("segment", type=int, help="its id, as `stats` shows it")
    rebucket.add_argument(
        "buckets",
        type=int,
        help="its number of entry buckets: so many consumers can share it",
    )
    migrate = action("migrate", "make a scalable topic of a classic one, with its messages and subscriptions")
    migrate.add_argument(
        "--force", action="store_true", help="also while clients of classic topics are connected to it"
    )
    watch = action("watch", "show a scalable topic's segments live, until Ctrl-C; a line a change in a pipe")
    watch.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds between figures (default: 1)"
    )
    explain = action("explain", "say why a scalable topic did or did not split or merge in the last hour")
    explain.add_argument("--all", action="store_true", help="all that is remembered, not the last hour only")


def _policy_actions(policy: argparse.ArgumentParser) -> None:
    from anabranch.cli.parsing.auto_scale_fields import FIELDS

    actions = policy.add_subparsers(title="what to do", metavar="get|set|remove", required=True)
    for name, help in (
        ("get", "show the policy that applies, and the level each field comes from"),
        ("set", "set the fields given as options; the others stay as they are"),
        ("remove", "remove what is set, or only the fields named; the next level decides again"),
    ):
        made = actions.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        made.set_defaults(module="admin.auto_scale", what=name)
        declare_reach(made, is_inner=True)
        made.add_argument("target", metavar="TOPIC|NAMESPACE", help="a namespace is tenant/namespace")
        if name == "remove":
            made.add_argument("field", nargs="*", metavar="FIELD", help="as `get` spells them: max-segments")
        elif name == "set":
            for field in FIELDS:
                made.add_argument(f"--{field.word}", metavar=field.kind.value, help=field.help)
