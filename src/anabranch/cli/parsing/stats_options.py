"""The options of `anabranch stats`."""

from __future__ import annotations

import argparse

from anabranch.cli.parsing.admin_options import declare_reach

ORDERS = ("in", "out", "backlog", "stored", "name")


def declare_stats(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows a line for each open topic: what comes in, what goes out, what is stored and what waits to be read. "
        "Figures come from the broker's /metrics."
    )
    parser.set_defaults(module="admin.stats")
    parser.add_argument(
        "filter", nargs="?", default="", metavar="TEXT", help="only topics with this in their name"
    )
    parser.add_argument(
        "-w",
        "--watch",
        action="store_true",
        help="repeat until Ctrl-C, with rates between one reading and the next",
    )
    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="S", help="seconds between looks (default: 2)"
    )
    parser.add_argument(
        "-n", "--top", type=int, default=20, metavar="N", help="at most N topics; 0: all (default: 20)"
    )
    parser.add_argument(
        "--segments", action="store_true", help="a line for each segment of a scalable topic, sealed ones too"
    )
    parser.add_argument("--sort", choices=ORDERS, default="in", help="what comes first (default: in)")
    declare_reach(parser, is_inner=False)
