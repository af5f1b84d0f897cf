"""The command line: what can be asked, and which module does it.

Plain argparse, and every command's module is imported only when that command runs: `anabranch standalone` has to serve
its first publish within a second of being started, and the usual libraries take a good part of that to import.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence

import anabranch
from anabranch.cli.client_options import declare_consume, declare_produce
from anabranch.cli.pipeline_options import declare_backtest

ADMIN_URL = "http://127.0.0.1:8080"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; the process's exit code. Errors are one line on standard error."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.module is None:
        parser.print_help()
        return 2
    try:
        command = importlib.import_module(f"anabranch.cli.{arguments.module}")
        code: int = command.run(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        from anabranch.errors import AnabranchError

        if not isinstance(error, AnabranchError):
            raise
        print(f"anabranch: {error}", file=sys.stderr)
        return 1


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="anabranch",
        description="Messaging on Apache Pulsar's protocol: a broker, and small tools to try it.",
        epilog="`anabranch COMMAND --help` says more about a command.",
    )
    parser.add_argument("--version", action="version", version=f"anabranch {anabranch.__version__}")
    parser.set_defaults(module=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _standalone(commands)
    _produce(commands)
    _consume(commands)
    _topics(commands)
    _demo(commands)
    _simulate(commands)
    _pipeline(commands)
    return parser


Commands = argparse._SubParsersAction  # argparse has no public name for what `add_subparsers` returns.


def _standalone(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "standalone",
        help="run a whole broker in one process",
        description="Runs a broker, its log and its metadata in one process, until SIGINT or SIGTERM ends it cleanly. "
        "Messages are on disk before they are acknowledged.",
        epilog="Settings come from the file, then from ANABRANCH_* variables (ANABRANCH_maxMessageSize=…), then from "
        "the command line; later ones win.",
    )
    parser.set_defaults(module="standalone")
    parser.add_argument(
        "--data-dir", metavar="DIR", help="folder for log and metadata, made if absent (default: data)"
    )
    parser.add_argument(
        "--port", type=int, metavar="P", help="port of Pulsar's binary protocol (default: 6650)"
    )
    parser.add_argument("--http-port", type=int, metavar="H", help="port of the admin REST (default: 8080)")
    parser.add_argument("--host", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--config", metavar="FILE", help="settings, as in Pulsar's broker.conf, or TOML if named *.toml"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="any other setting; may be repeated"
    )


def _produce(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "produce",
        help="send messages to a topic",
        description="Sends messages and ends once the broker has stored them all. Ctrl-C sends no more, waits for "
        "what is under way, and says how many are stored.",
    )
    declare_produce(parser)


def _consume(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "consume",
        help="receive and acknowledge messages of a topic, or of all topics of a namespace",
        description="Prints messages, one a line, and acknowledges each once it is printed. The subscription "
        "stays when the command ends.",
    )
    declare_consume(parser)


def _topics(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "topics",
        help="list, make, describe, split, merge, watch and delete topics",
        description="Asks the admin REST of a broker.",
        epilog="`t` is short for a topic of public/default, scalable if there is one of that name, else classic; "
        "topic://tenant/namespace/t is always scalable, persistent://tenant/namespace/t always classic.",
    )
    parser.set_defaults(module=None)
    parser.add_argument(
        "--admin-url",
        default=os.environ.get("ANABRANCH_ADMIN_URL", ADMIN_URL),
        metavar="URL",
        help=f"the admin REST (default: $ANABRANCH_ADMIN_URL or {ADMIN_URL})",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def action(name: str, help: str, topic: bool = True) -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        made.set_defaults(module="topics", action=name)
        if topic:
            made.add_argument("topic")
        return made

    listing = action("list", "list the topics of a namespace", topic=False)
    listing.add_argument("namespace", nargs="?", default="public/default")
    listing.add_argument(
        "--property",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="only scalable topics with that property; may be repeated",
    )
    _create_topic(action("create", "make a topic"))
    delete = action("delete", "delete a topic")
    delete.add_argument(
        "--force", action="store_true", help="also if it has subscriptions or connected clients"
    )
    stats = action("stats", "show a topic's figures: tables of a scalable topic, JSON of a classic one")
    stats.add_argument("--json", action="store_true", help="JSON of a scalable topic, too")
    _scalable_actions(action)
    _policy_actions(
        action("policy", "show or change when scalable topics split and merge by themselves", topic=False)
    )
    for name, help in (
        ("subscriptions", "list a topic's subscriptions"),
        ("unload", "close a classic topic; its clients come back and open it again"),
        ("terminate", "end a classic topic: it takes no more messages, for good"),
        ("skip-damage", "give up damaged entries that stop a classic topic's readers"),
    ):
        action(name, help)


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
    explain.add_argument("--json", action="store_true", help="print JSON")


def _policy_actions(policy: argparse.ArgumentParser) -> None:
    from anabranch.cli.policy_fields import FIELDS

    actions = policy.add_subparsers(title="what to do", metavar="get|set|remove", required=True)
    for name, help in (
        ("get", "show the policy that applies, and the level each field comes from"),
        ("set", "set the fields given as options; the others stay as they are"),
        ("remove", "remove what is set, or only the fields named; the next level decides again"),
    ):
        made = actions.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        made.set_defaults(module="policy", what=name)
        made.add_argument("target", metavar="TOPIC|NAMESPACE", help="a namespace is tenant/namespace")
        if name == "get":
            made.add_argument("--json", action="store_true", help="print JSON")
        elif name == "remove":
            made.add_argument("field", nargs="*", metavar="FIELD", help="as `get` spells them: max-segments")
        else:
            for field in FIELDS:
                made.add_argument(f"--{field.word}", metavar=field.kind.value, help=field.help)


def _demo(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "demo",
        help="watch a broker at work with Pulsar's own client",
        description="Starts a broker in a temporary folder on free ports, produces and consumes with the pulsar-client "
        "wheel, kills the broker with SIGKILL in the middle, and checks that nothing acknowledged was lost. Takes "
        "some ten seconds and leaves nothing behind.",
    )
    parser.set_defaults(module="demo")
    parser.add_argument(
        "--messages", type=int, default=1000, metavar="N", help="messages per step (default: 1000)"
    )


def _simulate(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "simulate",
        help="run whole clusters in one process on a seed, with every kind of fault",
        description="Runs brokers, clients and a store on a virtual clock, with a network and a store that make "
        "trouble: brokers are killed and paused, sessions end, connections are cut, while a topic is split and merged "
        "under load. Then checks that nothing acknowledged was lost, doubled or out of order, and that everything "
        "gets done.",
        epilog="A run depends on its seed and on nothing else.",
    )
    parser.set_defaults(module="simulate")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the first seed (default: 0)")
    parser.add_argument(
        "--runs", type=int, default=1, metavar="K", help="how many seeds, from N on (default: 1)"
    )
    parser.add_argument(
        "--brokers", type=int, default=3, metavar="B", help="brokers in the cluster (default: 3)"
    )
    parser.add_argument(
        "--core",
        action="store_true",
        help="the controller's decisions alone in a small world: many times faster",
    )
    parser.add_argument("--trace", action="store_true", help="print everything that happened")
    parser.add_argument("--quiet", action="store_true", help="print only runs that failed")


def _pipeline(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "pipeline",
        help="jobs on Spark: which policy of splits and merges costs what",
        description="Jobs that run on Spark: on this machine, or on the cluster that --master names.",
    )
    pipelines = parser.add_subparsers(title="pipelines", metavar="PIPELINE", required=True)
    declare_backtest(
        pipelines.add_parser(
            "backtest",
            help="replay topics under several policies, and compare what comes of it",
            description="Replays topics, recorded or made up, through the code that decides about splits and merges "
            "in a live broker, under several policies side by side. Says what each policy costs in segments, overload "
            "and restlessness, and which one suits which topics.",
        )
    )
