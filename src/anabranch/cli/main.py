"""The command line: its commands, and the module of each.

Plain argparse, and every command's module is imported only when that command runs: `anabranch standalone` has to serve
its first publish within a second of being started, and the usual libraries take a good part of that to import.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import anabranch
from anabranch.cli.parsing import profiles
from anabranch.cli.parsing.broker_options import declare_broker, declare_member
from anabranch.cli.parsing.client_options import declare_consume, declare_produce, declare_tail
from anabranch.cli.parsing.parser import Parser
from anabranch.cli.parsing.pipeline_options import (
    declare_backtest,
    declare_backtest_balancer,
    declare_load_history,
    declare_to_parquet,
)

# The module that declares each of these, its function, and the purpose of the command.
ADMIN: Final[Mapping[str, tuple[str, str, str]]] = {
    "topics": (
        "parsing.topics_options",
        "declare_topics",
        "list, make, describe, split, merge, watch and delete topics",
    ),
    "subscriptions": (
        "admin.subscriptions",
        "declare_subscriptions",
        "list, make, move, look into and delete subscriptions",
    ),
    "namespaces": ("admin.namespaces", "declare_namespaces", "namespaces, their policies and permissions"),
    "topic-policies": (
        "admin.policies",
        "declare_topic_policies",
        "policies of single topics, over those of their namespace",
    ),
    "tenants": ("admin.tables", "declare_tenants", "list, make, change and delete tenants"),
    "clusters": ("admin.tables", "declare_clusters", "list, make, change and delete clusters"),
    "isolation-policies": (
        "admin.isolation_policies",
        "declare_isolation_policies",
        "give namespaces brokers of their own",
    ),
    "bundles": ("admin.bundles", "declare_bundles", "show where bundles are and why, move and split them"),
    "brokers": ("admin.tables", "declare_brokers", "list brokers, and ask one how it is"),
    "schemas": ("admin.tables", "declare_schemas", "show, add, check and delete schemas of topics"),
    "tables": (
        "admin.topic_tables",
        "declare_topic_tables",
        "keep topics as tables of files, and look at these",
    ),
    "writes": (
        "admin.writes",
        "declare_writes",
        "hidden writes that are not decided, and how to give them up",
    ),
    "stats": (
        "parsing.stats_options",
        "declare_stats",
        "what flows through the busiest topics, live with --watch",
    ),
    "cluster": (
        "broker.cluster",
        "declare",
        "make a cluster of brokers on several machines, and look at one",
    ),
    "log": (
        "broker.log",
        "declare",
        "look at a log in an object store: what would be deleted, is all of it there",
    ),
    "tokens": ("broker.tokens", "declare", "make keys and tokens, and look into them"),
    "config": ("broker.config", "declare", "show a broker's settings, and where each comes from"),
    "completion": ("completion", "declare", "print a script that completes commands in a shell"),
}


def main(argv: Sequence[str] | None = None, ready: Callable[[], object] = lambda: None) -> int:
    """Runs one command; returns the process's exit code. Errors are one line on standard error.

    `ready` is called once the command is imported and about to run.
    """
    argv = sys.argv[1:] if argv is None else argv
    parser = build_parser(next((word for word in argv if not word.startswith("-")), None))
    arguments = parser.parse_args(argv)
    if arguments.module is None:
        parser.print_help()
        return 2

    def run() -> int:
        profiles.complete(arguments)
        command = importlib.import_module(f"anabranch.cli.{arguments.module}")
        if hasattr(arguments, "admin_url"):
            _say_who(arguments)
        ready()
        try:
            code: int = command.run(arguments)
        except Exception as error:
            if getattr(error, "status", None) != 404 or not hasattr(arguments, "admin_url"):
                raise
            from anabranch.cli.admin.near_names import with_near_names

            raise with_near_names(error, arguments) from None
        return code

    return told(run)


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command line, with what variables and profiles say of brokers."""
    arguments = build_parser(next((word for word in argv if not word.startswith("-")), None)).parse_args(argv)
    profiles.complete(arguments)
    return arguments


def told(run: Callable[[], int]) -> int:
    """Calls `run` and returns its exit code; an error that a user can act on is printed as one line."""
    try:
        code = run()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has closed it. Python would report that once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        from anabranch.errors import AnabranchError

        if not isinstance(error, AnabranchError):
            raise
        print(f"anabranch: {error}", file=sys.stderr)
        return 1


def _say_who(arguments: argparse.Namespace) -> None:
    from anabranch.cli.admin import rest
    from anabranch.cli.parsing import access

    # Pictures that are drawn again and again show by themselves whether something comes.
    is_drawn = getattr(arguments, "watch", False) or getattr(arguments, "action", "") == "watch"
    rest.ask_as(access.security_of(arguments), tells_waiting=not is_drawn)


def build_parser(word: str | None = None, *, is_whole: bool = False) -> argparse.ArgumentParser:
    """The parser of the command `word`; without one it has the names of all commands, with `is_whole` all their
    options.

    Declaring all of some hundred commands would take longer than running one.
    """
    parser: argparse.ArgumentParser = Parser(
        prog="anabranch",
        description="Messaging on Apache Pulsar's protocol: a broker, and small tools to try it.",
        epilog="`anabranch COMMAND --help` says more about a command.",
    )
    parser.add_argument("--version", action="version", version=f"anabranch {anabranch.__version__}")
    parser.set_defaults(module=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    known = word in COMMANDS or word in ADMIN
    for name, declare in COMMANDS.items():
        if name == word or not known:
            declare(commands)
    for name, (module, function, help) in ADMIN.items():
        if name == word or not known:
            made = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
            if name == word or is_whole:
                getattr(importlib.import_module(f"anabranch.cli.{module}"), function)(made)
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
    parser.set_defaults(module="broker.standalone")
    declare_broker(parser)


def _broker(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "broker",
        help="run one broker of a cluster, whose metadata is in ZooKeeper",
        description="Runs one broker of a cluster, until SIGINT or SIGTERM ends it cleanly: its topics go to the "
        "others first. The brokers of a cluster have the same --metadata and the same --log.",
        epilog="`anabranch cluster init` makes the cluster first. Settings come from the same sources as those of "
        "`anabranch standalone`.",
    )
    parser.set_defaults(module="broker.member")
    declare_member(parser)


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


def _tail(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "tail",
        help="show the last messages of a topic, and those that come",
        description="Prints the last messages of a topic, by publish time, and then what comes, until Ctrl-C. It has "
        "no subscription, acknowledges nothing and makes no topic.",
    )
    declare_tail(parser)


def _demo(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "demo",
        help="a million clicks, a topic that splits and merges under them, Spark reading it, and a verified report",
        description="Starts a broker in a temporary folder on free ports, sends a clickstream whose rate rises and "
        "falls to a scalable topic that splits and merges by itself, has two Spark queries write rows and sessions to "
        "Parquet meanwhile, kills the broker with SIGKILL once, checks that every event arrived exactly once and in "
        "order, and writes a report. Takes about a minute; only the report stays. Without Java the project's own "
        "consumer reads instead of Spark.",
    )
    parser.set_defaults(module="demo")
    parser.add_argument(
        "--events", type=int, default=1_000_000, metavar="N", help="clicks to send (default: 1000000)"
    )
    parser.add_argument(
        "--seconds", type=float, default=45.0, metavar="S", help="how long they flow (default: 45)"
    )
    parser.add_argument(
        "--brokers",
        type=int,
        metavar="B",
        help="brokers that share the topic, of which the one with the most segments is killed (default: 1)",
    )
    parser.add_argument(
        "--report", default="demo-report", metavar="DIR", help="folder for report.html (default: demo-report)"
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="leave the broker running until Ctrl-C, and its data and the tables for good",
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open the live page")
    parser.add_argument("--no-kill", action="store_true", help="do not kill the broker in the middle")
    parser.add_argument("--no-spark", action="store_true", help="read with the project's own consumer")
    parser.add_argument(
        "--durability",
        action="store_true",
        help="the short story instead: Pulsar's own client, its subscription types, and a broker that is killed",
    )
    parser.add_argument(
        "--messages",
        type=int,
        default=1000,
        metavar="N",
        help="with --durability: messages per step (default: 1000)",
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
    parser.set_defaults(module="broker.simulate")
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
        help="jobs on Spark: topics as tables, and which policy of splits and merges costs what",
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
    declare_backtest_balancer(
        pipelines.add_parser(
            "backtest-balancer",
            help="replay clusters under several settings of the load balancer",
            description="Replays clusters, recorded or made up, through the code that decides in live brokers which "
            "bundles move and which are split, under several settings side by side. Says what each would have moved, "
            "and what that would have bought: brokers that are alike, and none with more to do than it can.",
        )
    )
    declare_load_history(
        pipelines.add_parser(
            "load-history",
            help="write what brokers say of loads, decisions and consumers to tables",
            description="Writes the brokers' load history to tables for dashboards and backtests: what flowed through "
            "each segment, what was decided and why, how many consumers there were. Run again with the same folder, it "
            "goes on where it stopped; every record is there once.",
            epilog="docs/load-history.md has the tables' columns, and queries.",
        )
    )
    declare_to_parquet(
        pipelines.add_parser(
            "to-parquet",
            help="write topics to tables partitioned by day; run again, it continues where it stopped",
            description="Writes the messages of topics to a table that Spark, pandas, Arrow and DuckDB read, a folder "
            "for each day. Every message gets there exactly once, however often the job is stopped, killed or run "
            "again; late ones go to the folder of their own day. Small files of days that are over are made into "
            "large ones.",
            epilog="Give the same --output the next time, and the job continues from there.",
        )
    )


COMMANDS: Final[Mapping[str, Callable[[Commands[argparse.ArgumentParser]], None]]] = {
    "standalone": _standalone,
    "broker": _broker,
    "produce": _produce,
    "consume": _consume,
    "tail": _tail,
    "demo": _demo,
    "simulate": _simulate,
    "pipeline": _pipeline,
}
