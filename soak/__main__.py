"""`python -m soak`: the fault runs that take minutes. `docs/faults.md` says what each of them shows."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from anabranch.client import Routing
from soak import cluster, cluster_balanced, kill, neighbours, recovery, scalable
from soak.client import run as client
from soak.client.conductor import Pace
from soak.client.relay import Address
from soak.client.target import Target
from soak.client.world import Sabotage
from soak.spark import run as spark
from soak.tables import run as tables


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument(
        "--folder", type=Path, help="where data and histories go (default: a new temporary folder)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder even if all went well")
    commands = parser.add_subparsers(dest="command")
    killing = commands.add_parser("kill", help="kill -9 under a mixed load (the default)")
    for one in (parser, killing):
        one.add_argument("--rounds", type=int, default=50, help="how many times the broker is killed")
        one.add_argument("--seed", type=int, default=None, help="repeats the moments and choices of a run")
        one.add_argument("--seconds", type=float, default=4.0, help="the longest life between two kills")
        one.add_argument("--sabotage", action="store_true", help="lose data on purpose: the run must fail")
    several = commands.add_parser(
        "cluster", help="kills, pauses and stops of single processes of several brokers, and moves"
    )
    several.add_argument("--brokers", type=int, default=3, help="how many brokers")
    several.add_argument("--seconds", type=float, default=300.0, help="how long there are faults")
    several.add_argument("--every", type=float, default=4.0, help="seconds between two faults, on average")
    several.add_argument("--seed", type=int, default=None, help="repeats the choices of a run")
    several.add_argument(
        "--balanced",
        action="store_true",
        help="with the load balancer: more moves, splits, kills of the leader and of owners; owners are judged",
    )
    several.add_argument(
        "--owned",
        type=float,
        default=5.0,
        help="with --balanced: seconds a bundle may be without an owner in calm weather (more on a busy machine)",
    )
    several.add_argument(
        "--tier", action="store_true", help="files of the log move to an object store, here a folder"
    )
    several.add_argument("--sabotage", action="store_true", help="lose data on purpose: the run must fail")
    recovering = commands.add_parser(
        "recovery", help="time to serve again after kill -9, against the log's size"
    )
    recovering.add_argument(
        "--gigabytes", type=float, nargs="+", default=[2.0, 20.0], help="sizes of the log"
    )
    recovering.add_argument(
        "--since-mb", type=int, nargs="+", default=[2, 30, 58], help="bytes since the last checkpoint, in MB"
    )
    recovering.add_argument(
        "--file-mb", type=int, default=64, help="size of a log file; each ends in a checkpoint"
    )
    beside = commands.add_parser(
        "neighbours", help="what a topic feels of backlogs, idle topics and bad peers"
    )
    beside.add_argument("--entries", type=int, default=1_000_000, help="size of the backlog")
    beside.add_argument("--topics", type=int, default=1_000, help="how many idle topics")
    beside.add_argument("--probes", type=int, default=2_000, help="round trips per measurement")
    reshaping = commands.add_parser(
        "scalable", help="splits and merges of a scalable topic under load, with kill -9 now and then"
    )
    reshaping.add_argument("--operations", type=int, default=1_000, help="how many splits and merges")
    reshaping.add_argument("--seed", type=int, default=None, help="repeats the choices of a run")
    reshaping.add_argument("--sabotage", action="store_true", help="lose data on purpose: the run must fail")
    _add_client(commands.add_parser("client", help="every kind of consumer through splits, merges and cuts"))
    _add_spark(
        commands.add_parser("spark", help="a streaming query whose driver, executors and broker are killed")
    )
    stitching = commands.add_parser(
        "tables", help="a topic and its table as one, while writers, broker and reader are killed"
    )
    stitching.add_argument("--kills", type=int, default=20, help="how many times each party is killed")
    stitching.add_argument("--rate", type=float, default=400.0, help="messages a second")
    stitching.add_argument("--seed", type=int, default=None, help="repeats the choices of a run")
    stitching.add_argument("--sabotage", action="store_true", help="send a message twice: the run must fail")
    args = parser.parse_args()
    folder: Path = args.folder or Path(tempfile.mkdtemp(prefix="anabranch-soak-"))
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1 << 32)
    if args.command == "recovery":
        cases = [
            recovery.Case(int(size * recovery.GB), since * recovery.MB)
            for size in args.gigabytes
            for since in args.since_mb
        ]
        print(recovery.HEADER)
        print(*recovery.table(recovery.run(cases, folder, args.file_mb << 20)), sep="\n")
        return 0
    if args.command == "neighbours":
        print(neighbours.HEADER)
        neighbours.run(folder, args.entries, args.topics, args.probes)
        shutil.rmtree(folder)
        return 0
    if args.command == "client":
        code = client.run(_client_options(args, seed, folder))
    elif args.command == "spark":
        code = spark.run(
            spark.Options(
                args.kills,
                seed,
                folder,
                args.master,
                args.rate,
                args.rows,
                has_sink=not args.no_sink,
                patience_s=args.patience,
            )
        )
    elif args.command == "tables":
        code = tables.run(tables.Options(args.kills, seed, folder, args.rate, sabotage=args.sabotage))
    elif args.command == "cluster":
        options = cluster.Options(
            args.seconds,
            args.every,
            seed,
            folder,
            args.brokers,
            sabotage=args.sabotage,
            has_tier=args.tier,
            owned_s_max=args.owned,
        )
        code = (cluster_balanced if args.balanced else cluster).run(options)
    elif args.command == "scalable":
        code = scalable.run(scalable.Options(args.operations, seed, folder, sabotage=args.sabotage))
    else:
        code = kill.run(kill.Options(args.rounds, seed, args.seconds, folder, args.sabotage))
    if code == 0 and not args.keep and args.folder is None:
        shutil.rmtree(folder)
    return code


def _add_spark(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=20, help="how many times each party is killed")
    parser.add_argument("--seed", type=int, default=None, help="repeats the choices of a run")
    parser.add_argument(
        "--master",
        default=spark.MASTER,
        help="Spark's; local-cluster[2,1,1024] has executors of their own, and takes twice as long",
    )
    parser.add_argument("--rate", type=float, default=spark.PER_SECOND, help="messages a second")
    parser.add_argument("--rows", type=int, default=spark.ROWS_MAX, help="rows of a micro-batch, at most")
    parser.add_argument("--no-sink", action="store_true", help="only into a table, and not into a topic")
    parser.add_argument(
        "--patience",
        type=float,
        default=spark.PATIENCE_S,
        help="seconds without a batch after which a query counts as stuck: more on a busy machine",
    )


def _add_client(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--operations", type=int, default=200, help="how many splits and merges")
    parser.add_argument("--seed", type=int, default=None, help="repeats the choices of a run")
    parser.add_argument(
        "--kinds", default=",".join(client.KINDS), help="kinds of consumers, of those given here"
    )
    parser.add_argument("--rate", type=float, default=150.0, help="messages a second of the slowest producer")
    parser.add_argument(
        "--fault-every", type=float, default=0.7, help="seconds between two faults of the relay"
    )
    parser.add_argument(
        "--kill-every", type=float, default=0.0, help="seconds between two kill -9 of our broker"
    )
    parser.add_argument(
        "--retention",
        type=int,
        default=1,
        help="minutes that checkpoint consumers may be behind: more if it is slow",
    )
    parser.add_argument("--url", help="a broker that runs already, by the address it advertises")
    parser.add_argument("--admin", help="its HTTP address, http://host:port")
    parser.add_argument(
        "--behind", help="where it really listens, host:port: its advertised address is the relay's then"
    )
    parser.add_argument(
        "--grace", type=float, default=60.0, help="its grace period for consumers, in seconds"
    )
    parser.add_argument("--message-kb", type=int, default=5120, help="its limit of a message's size, in KB")
    parser.add_argument("--m1", action="store_true", help="it is a Pulsar 5.0.0-M1: less what that cannot do")
    parser.add_argument(
        "--sabotage", choices=[one.value for one in Sabotage], help="do that wrong now and then: it must fail"
    )


def _client_options(args: argparse.Namespace, seed: int, folder: Path) -> client.Options:
    target = None
    if args.url:
        host, _, port = (args.behind or "").rpartition(":")
        target = Target(
            args.url,
            args.admin,
            Address(host, int(port)) if port else None,
            grace_s=args.grace,
            message_bytes_max=args.message_kb << 10,
        )
    return client.Options(
        args.operations,
        seed,
        folder,
        kinds=tuple(args.kinds.split(",")),
        target=target,
        routing=Routing.LOW if args.m1 else Routing.HIGH,
        pace=Pace(fault_s=args.fault_every, kill_s=args.kill_every, retention_min=args.retention),
        per_second=args.rate,
        is_m1=args.m1,
        sabotage=Sabotage(args.sabotage) if args.sabotage else None,
    )


if __name__ == "__main__":
    sys.exit(main())
