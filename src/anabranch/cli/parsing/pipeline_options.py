"""The options of the pipelines. Imports nothing that takes time."""

from __future__ import annotations

import argparse

from anabranch.cli.parsing.access import declare_access
from anabranch.cli.parsing.client_options import declare_service_url


def declare_backtest(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(module="pipelines.pipeline", pipeline="pipelines.backtest")
    what = parser.add_argument_group("what is replayed")
    what.add_argument(
        "--topics", type=int, default=None, metavar="N", help="number of synthetic topics (default: 1000)"
    )
    what.add_argument("--days", type=float, default=1.0, metavar="D", help="… over so many days (default: 1)")
    what.add_argument(
        "--seed", type=int, default=0, metavar="S", help="… the same ones for the same seed (default: 0)"
    )
    what.add_argument(
        "--kind",
        metavar="KIND",
        help="… all of one kind: steady, diurnal, bursts, flash-crowd or hot-key (default: a mixture)",
    )
    what.add_argument(
        "--history",
        metavar="PATH",
        help="recorded load history instead, as `pipeline load-history` writes it",
    )
    what.add_argument(
        "--sample",
        type=float,
        metavar="S",
        help="seconds between its samples (default: what it says of that, else 10)",
    )
    how = parser.add_argument_group("under what")
    how.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME:FIELD=VALUE,…",
        help="a policy, by where it differs from the defaults, as in small:max-segments=16,split-cooldown=30s; "
        "live:recorded is the one that the brokers of --history had; may be repeated, and others are compared with the "
        "first (default: five policies, the defaults among them)",
    )
    how.add_argument(
        "--policies",
        metavar="FILE",
        help='more of them: JSON, {"small": {"maxSegments": 16}, …}, or TOML if *.toml',
    )
    how.add_argument(
        "--buckets",
        type=int,
        metavar="T",
        help="consumers share segments by entry buckets, of which a topic has T in all (default: a segment serves one)",
    )
    how.add_argument(
        "--cost",
        action="append",
        default=[],
        metavar="NAME=COST",
        help="what one segment-hour (default 1), over-minute (0.5), operation (0.1) or flap (1) costs; may be repeated",
    )
    spark = parser.add_argument_group("where")
    spark.add_argument(
        "--output",
        required=True,
        metavar="DIR",
        help="folder for tables and report, which must not exist yet; or a URL that Spark can write to",
    )
    spark.add_argument(
        "--report",
        metavar="FILE",
        help="the report (default: report.html, in the folder if that is on this machine)",
    )
    spark.add_argument("--master", metavar="URL", help="of Spark (default: all cores of this machine)")
    spark.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark; may be repeated",
    )


def declare_backtest_balancer(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(module="pipelines.pipeline", pipeline="pipelines.backtest_balancer")
    what = parser.add_argument_group("what is replayed")
    what.add_argument(
        "--kind",
        action="append",
        metavar="KIND",
        help="synthetic clusters of this kind: skewed, reversed, diurnal, hot-bundle or brokers; may be repeated "
        "(default: each)",
    )
    for name, kind, usual, text in (
        ("--clusters", int, 1, "… so many of each kind"),
        ("--brokers", int, 16, "… with so many brokers"),
        ("--bundles", int, 1600, "… and so many bundles together"),
        ("--hours", float, 2.0, "… over so many hours"),
        ("--seed", int, 0, "… the same ones for the same seed"),
    ):
        what.add_argument(
            name, type=kind, default=usual, metavar=name[2].upper(), help=f"{text} (default: {usual:g})"
        )
    what.add_argument(
        "--history",
        metavar="PATH",
        help="a recorded cluster instead, as `pipeline load-history` writes it",
    )
    how = parser.add_argument_group("under what")
    how.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME:KEY=VALUE,…",
        help="settings of the load balancer, by where they differ from the defaults, as in "
        "calm:loadBalancerSheddingConditionHitCountThreshold=5; NAME:simple is the placement by hash; may be repeated "
        "(default: simple, the defaults, and one that sheds at once)",
    )
    how.add_argument(
        "--move-ms", type=int, default=1_000, metavar="MS", help="how long a move takes (default: 1000)"
    )
    how.add_argument(
        "--pause-ms",
        type=int,
        default=200,
        metavar="MS",
        help="how long each topic of a bundle that moves is not served (default: 200)",
    )
    where = parser.add_argument_group("where")
    where.add_argument(
        "--output",
        required=True,
        metavar="DIR",
        help="folder for the tables, which must not exist yet; or a URL that Spark can write to",
    )
    where.add_argument("--master", metavar="URL", help="of Spark (default: all cores of this machine)")
    where.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark; may be repeated",
    )


def declare_to_parquet(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(module="pipelines.pipeline", pipeline="pipelines.to_parquet")
    what = parser.add_argument_group("which topics")
    what.add_argument("topic", nargs="*", help="topics, each as topic://tenant/namespace/name")
    what.add_argument(
        "--namespace",
        metavar="NS",
        help="all scalable topics of tenant/namespace, also those that join later",
    )
    what.add_argument("--pattern", metavar="NS/REGEX", help="those of them whose names match")
    what.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="only topics with that property (with --namespace or --pattern); may be repeated",
    )
    what.add_argument(
        "--start",
        metavar="WHERE",
        help="where the first run begins: earliest, latest, a time with a zone, a checkpoint (default: earliest)",
    )
    what.add_argument(
        "-s",
        "--subscription",
        metavar="SUB",
        help="one that keeps what is not in the table yet, and follows it (default: none, retention decides)",
    )
    what.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other option of the Spark source, as docs/spark.md lists them (keys, columns, "
        "decodeErrors, …); may be repeated",
    )
    declare_service_url(what)
    declare_access(parser)
    table = parser.add_argument_group("what the table is like")
    table.add_argument(
        "--output", required=True, metavar="DIR", help="its folder; or a URL that Spark can write to"
    )
    table.add_argument("--decode", action="store_true", help="the fields of the topic's schema as columns")
    table.add_argument(
        "--table-per-topic",
        action="store_true",
        help="a table for each topic, in DIR/tenant/namespace/name (default: one for all, with a column `topic`)",
    )
    table.add_argument(
        "--time",
        default="publish",
        metavar="TIME",
        help="whose day a row belongs to, in UTC: publish (default), event, or any column with a time",
    )
    table.add_argument(
        "--date-column", default="date", metavar="NAME", help="name of the column of days (default: date)"
    )
    table.add_argument(
        "--format",
        choices=("parquet", "delta", "iceberg"),
        default="parquet",
        help="of the table (default: parquet); the others need their --packages",
    )
    table.add_argument(
        "--compression",
        choices=("zstd", "snappy", "gzip", "lz4_raw", "none"),
        default="zstd",
        help="of Parquet files (default: zstd)",
    )
    table.add_argument(
        "--file-size",
        default="128MB",
        metavar="SIZE",
        help="about how large files may become (default: 128MB)",
    )
    when = parser.add_argument_group("when")
    mode = when.add_mutually_exclusive_group()
    mode.add_argument("--once", action="store_true", help="write what is there now, then end (the default)")
    mode.add_argument(
        "--follow", action="store_true", help="continue until Ctrl-C, which ends it after a batch"
    )
    mode.add_argument(
        "--compact", action="store_true", help="read nothing, only make few files of many small ones"
    )
    when.add_argument(
        "--every", default="60s", metavar="TIME", help="with --follow: how often (default: 60s)"
    )
    when.add_argument(
        "--batch-size",
        default="1GB",
        metavar="SIZE",
        help="how much is read and written at a time (default: 1GB)",
    )
    when.add_argument(
        "--no-compact", action="store_true", help="leave small files of days that are over as they are"
    )
    when.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="where the job keeps its place (default: beside the table, as _NAME.anabranch)",
    )
    when.add_argument("-q", "--quiet", action="store_true", help="no progress and no summary")
    declare_spark(parser.add_argument_group("where"))


def declare_spark(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument("--master", metavar="URL", help="of Spark (default: all cores of this machine)")
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark; may be repeated",
    )
    parser.add_argument(
        "--packages", metavar="LIST", help="packages that Spark is to fetch, as group:name:version,…"
    )


def declare_load_history(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(module="pipelines.pipeline", pipeline="pipelines.load_history")
    what = parser.add_argument_group("what is read")
    what.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other option of the Spark source, as docs/spark.md lists them (failOnDataLoss, …); "
        "may be repeated",
    )
    declare_service_url(what)
    declare_access(parser)
    when = parser.add_argument_group("when")
    mode = when.add_mutually_exclusive_group()
    mode.add_argument("--once", action="store_true", help="write what is there now, then end (the default)")
    mode.add_argument("--follow", action="store_true", help="continue until Ctrl-C")
    when.add_argument("--every", default="5m", metavar="TIME", help="with --follow: how often (default: 5m)")
    when.add_argument("-q", "--quiet", action="store_true", help="say nothing of batches, nor at the end")
    where = parser.add_argument_group("where")
    where.add_argument(
        "--output",
        "--out",
        required=True,
        metavar="DIR",
        help="folder of the tables, the same each time; or a URL that Spark can write to",
    )
    declare_spark(where)
