"""What the pipelines can be told on the command line. Imports nothing that takes time."""

from __future__ import annotations

import argparse


def declare_backtest(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(module="pipeline", pipeline="backtest")
    what = parser.add_argument_group("what is replayed")
    what.add_argument(
        "--topics", type=int, default=None, metavar="N", help="so many made-up topics (default: 1000)"
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
        "--sample", type=float, default=10.0, metavar="S", help="seconds between its samples (default: 10)"
    )
    how = parser.add_argument_group("under what")
    how.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME:FIELD=VALUE,…",
        help="a policy, by where it differs from the defaults, as in small:max-segments=16,split-cooldown=30s; may be "
        "repeated, and others are compared with the first (default: five policies, the defaults among them)",
    )
    how.add_argument(
        "--policies",
        metavar="FILE",
        help='more of them: JSON, {"small": {"maxSegments": 16}, …}, or TOML if *.toml',
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
