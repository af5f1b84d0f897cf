"""`anabranch writes`: undecided hidden writes, which readers wait for, and how to end them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

from anabranch.cli.admin.rest import call
from anabranch.cli.parsing.admin_options import declare_group
from anabranch.cli.parsing.options import UsageError
from anabranch.cli.render.answers import show, table

PATH = "/admin/v2/anabranch/writes"
_COLUMNS = {
    "TOPIC": "topic",
    "WRITE": "write",
    "BATCH": "batch",
    "ATTEMPTS": "attempts",
    "ENTRIES": "entries",
    "PRODUCERS": "producers",
    "HELD s": "held",
}


def declare_writes(parser: argparse.ArgumentParser) -> None:
    declared = declare_group(parser)
    listed = declared("list", "list the hidden writes that are not decided, those that hold readers first")
    listed.add_argument("--topic", metavar="TEXT", help="only topics whose name contains this")
    dropped = declared("drop", "drop what was written of a batch, so that readers continue without it")
    dropped.add_argument("write", help="the write's name, as `writes list` shows it")
    dropped.add_argument("batch", type=int, help="the batch's number")
    dropped.add_argument(
        "--attempt",
        action="append",
        metavar="ID",
        help="only this one; may be repeated (default: all that are open)",
    )
    dropped.add_argument(
        "--force", action="store_true", help="also if a producer of the batch is connected: its job will fail"
    )
    for made in (listed, dropped):
        made.set_defaults(module="admin.writes")


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "list":
        found = call(arguments.admin_url, "GET", PATH)
        wanted = arguments.topic or ""
        show([one for one in found if wanted in one["topic"]], is_json=arguments.json, view=_view)
    else:
        named = urlencode({"write": arguments.write, "batch": arguments.batch})
        found = call(arguments.admin_url, "GET", f"{PATH}?{named}")
        show(_drop(arguments, found), is_json=arguments.json, view=_said)
    return 0


def _drop(arguments: argparse.Namespace, found: Sequence[Any]) -> Any:
    own = [one for one in found if (one["write"], one["batch"]) == (arguments.write, arguments.batch)]
    attempts = sorted({attempt for one in own for attempt in one["attempts"]})
    if arguments.attempt:
        unknown = sorted({*arguments.attempt} - {*attempts})
        if unknown:
            raise UsageError(
                f"attempt {unknown[0]} is not open: `anabranch writes list --json` names those that are"
            )
        attempts = arguments.attempt
    if not attempts:
        raise UsageError(
            f"nothing of batch {arguments.batch} of {arguments.write!r} is open: see `anabranch writes list`"
        )
    if any(one["producers"] for one in own) and not arguments.force:
        raise UsageError(
            f"batch {arguments.batch} of {arguments.write!r} is being written: a producer of it is connected. End the "
            "job, or drop it all the same with --force"
        )
    path = f"{PATH}/{quote(arguments.write, safe='')}/{arguments.batch}/drop"
    return call(arguments.admin_url, "POST", path, {"attempts": attempts})


def _view(found: Sequence[Any]) -> list[str]:
    if not found:
        return ["no hidden writes are open: no readers wait"]
    rows = [one | {"attempts": len(one["attempts"]), "held": f"{one['heldSeconds']:,.0f}"} for one in found]
    return table(rows, _COLUMNS, left={0, 1})


def _said(record: Any) -> list[str]:
    if record["winners"] is not None:
        return ["the batch was decided meanwhile: what won is shown, and nothing was dropped"]
    return [f"dropped: {len(record['dropped'])} attempts at the batch will never show"]
