"""`anabranch tables`: which topics are kept as Delta tables, how these are, and the writer itself.

`compact`, `verify` and `stats` read the table where it lies, so they need access to its files or objects.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from anabranch.cli.admin.requests import TOPIC, topic_path
from anabranch.cli.admin.rest import call
from anabranch.cli.parsing.admin_options import declare_group
from anabranch.cli.parsing.client_options import declare_service_url
from anabranch.cli.parsing.options import UsageError
from anabranch.cli.render.answers import show, table
from anabranch.model.names import NamespaceName

if TYPE_CHECKING:
    from anabranch.tables.core.place import TablesPlace
    from anabranch.tables.snapshot import TableSnapshot
    from anabranch.tables.table import TopicTable

PATH: Final = "/admin/v2/anabranch/tables"
_COLUMNS = {
    "TOPIC": "topic",
    "MODE": "mode",
    "VERSION": "version",
    "ROWS": "rows",
    "FILES": "files",
    "MB": "megabytes",
    "LAG s": "lag",
    "": "error",
}
_TOPIC_HELP: Final = TOPIC.settings["help"]


def declare_topic_tables(parser: argparse.ArgumentParser) -> None:
    declared = declare_group(parser)
    made = [
        _of_topics(declared("enable", "keep a topic, or all topics of a namespace, as tables")),
        _of_topics(declared("disable", "write no more to a table; what there is stays")),
        declared("list", "list the topics that are kept as tables, and how far each table is"),
    ]
    made[0].add_argument(
        "--mode",
        choices=("raw", "decoded"),
        default="raw",
        help="raw: values are bytes; decoded: columns are the fields of the topic's schema (default: raw)",
    )
    for name, help in (
        ("stats", "show a table: its cut, its files, its columns"),
        ("compact", "merge the files of a table now, and remove those that nothing needs"),
        ("verify", "read a table back: is all of it there, sorted, and each message once"),
    ):
        one = declared(name, help)
        one.add_argument("topic", help=_TOPIC_HELP)
        one.add_argument(
            "--table-url", metavar="URL", help="where the table is (default: as its writer says)"
        )
        made.append(one)
    run = declared("run", "write the tables of all topics that are to have one, until Ctrl-C")
    declare_service_url(run.add_argument_group("where"))
    run.add_argument("--once", action="store_true", help="end once every table has what its topic has now")
    made.append(run)
    for one in made:
        one.set_defaults(module="admin.topic_tables")


def _of_topics(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("topic", nargs="?", help=_TOPIC_HELP)
    parser.add_argument("--namespace", metavar="TENANT/NAMESPACE", help="all topics of that namespace")
    return parser


def run(arguments: argparse.Namespace) -> int:
    action = arguments.action
    if action in ("enable", "disable"):
        return _set(arguments, arguments.mode if action == "enable" else "off")
    if action == "list":
        show(_rows(call(arguments.admin_url, "GET", PATH)), is_json=arguments.json, view=_view)
        return 0
    if action == "run":
        from anabranch.cli.admin.table_writer import run_writer

        return run_writer(arguments)
    return {"stats": _stats, "compact": _compact, "verify": _verify}[action](arguments)


def _set(arguments: argparse.Namespace, mode: str) -> int:
    if (arguments.topic is None) == (arguments.namespace is None):
        raise UsageError("name a topic, or a namespace with --namespace")
    url = arguments.admin_url
    if arguments.namespace is not None:
        path, what = f"namespaces/{NamespaceName.parse(arguments.namespace)}", arguments.namespace
    else:
        path, what = topic_path(arguments.topic, url), arguments.topic
    call(url, "POST", f"/admin/v2/{path}/table", mode)
    told = call(url, "GET", PATH)
    done = [f"{what}: not kept as a table" if mode == "off" else f"{what}: kept as a table, {mode}"]
    if mode != "off" and not told["tablesUrl"]:
        done.append("the brokers have no place for tables yet: set tablesUrl on them, and start them again")
    show({"target": what, "mode": mode}, is_json=arguments.json, view=lambda _: done)
    return 0


def _rows(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    reports = {one["topic"]: one for one in told["reports"]}
    unknown = {
        "url": "",
        "version": -1,
        "rows": 0,
        "files": 0,
        "bytes": 0,
        "lagSeconds": -1.0,
        "undecoded": 0,
    }
    return [
        {**unknown, "error": "its writer is silent", **reports.get(one["topic"], {}), **one}
        for one in told["tables"]
    ]


def _view(found: Sequence[Any]) -> list[str]:
    if not found:
        return ["no topic is kept as a table: `anabranch tables enable TOPIC` begins one"]
    rows = [
        one
        | {
            "megabytes": f"{one['bytes'] / 1e6:,.1f}",
            "rows": f"{one['rows']:,}",
            "lag": "-" if one["lagSeconds"] < 0 else f"{one['lagSeconds']:,.0f}",
            "error": one["error"] or (f"{one['undecoded']:,} not decoded" if one["undecoded"] else ""),
        }
        for one in found
    ]
    return table(rows, _COLUMNS, left={0, 1, 7})


# -- one table


def _place(arguments: argparse.Namespace) -> tuple[str, TablesPlace]:
    """Where the topic's table is."""
    from anabranch.tables.core.place import parse_place

    told = call(arguments.admin_url, "GET", PATH)
    place = parse_place(told["tablesUrl"]) if told["tablesUrl"] else parse_place("/")
    if arguments.table_url:
        return arguments.table_url, place
    path = topic_path(arguments.topic, arguments.admin_url)
    for one in told["reports"]:
        if one["url"] and topic_path(one["topic"], arguments.admin_url) == path:
            return one["url"], place
    raise UsageError(
        f"no writer reports a table of {arguments.topic}: see `anabranch tables list`, or give --table-url"
    )


def _opened(arguments: argparse.Namespace) -> tuple[TableSnapshot, TablesPlace]:
    from anabranch.tables.snapshot import open_snapshot

    url, place = _place(arguments)
    seen = open_snapshot(url, place.options)
    if seen is None:
        raise UsageError(f"there is no table at {url}, or it cannot be reached from here")
    return seen, place


def _stats(arguments: argparse.Namespace) -> int:
    seen, _ = _opened(arguments)
    days: dict[str, list[int]] = {}
    for file in seen.files:
        day = days.setdefault(str(file.day or "no day"), [0, 0, 0])
        days[str(file.day or "no day")] = [day[0] + 1, day[1] + file.rows, day[2] + file.bytes]
    found = {
        "url": seen.url,
        "topic": seen.topic,
        "topicId": seen.topic_id,
        "version": seen.version,
        "mode": seen.mode,
        "rows": seen.rows,
        "bytes": seen.size_bytes,
        "files": len(seen.files),
        "cut": seen.cut,
        "columns": {field.name: str(field.type) for field in seen.schema},
        "days": [{"day": d, "files": f, "rows": r, "bytes": b} for d, (f, r, b) in sorted(days.items())],
    }
    show(found, is_json=arguments.json, view=_stats_view)
    return 0


def _stats_view(found: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{name + ':':10}{found[name]}"
        for name in ("topic", "url", "version", "mode", "rows", "files", "cut")
    ]
    lines.append(f"{'columns:':10}" + ", ".join(f"{name} {kind}" for name, kind in found["columns"].items()))
    rows = [one | {"megabytes": f"{one['bytes'] / 1e6:,.1f}"} for one in found["days"]]
    return [
        *lines,
        "",
        *table(rows, {"DAY": "day", "FILES": "files", "ROWS": "rows", "MB": "megabytes"}, left={0}),
    ]


def _table(seen: TableSnapshot, place: TablesPlace) -> TopicTable:
    from anabranch.tables.table import TableOwner, TopicTable

    found = TopicTable(seen.url, TableOwner(seen.topic, seen.topic_id), place.options)
    found.refresh()
    return found


def _compact(arguments: argparse.Namespace) -> int:
    from anabranch.tables.core.merging import MergeRules
    from anabranch.tables.upkeep import merge_files

    seen, place = _opened(arguments)
    told = call(arguments.admin_url, "GET", PATH)
    opened = _table(seen, place)
    rules = MergeRules(file_bytes=told["mergeBytes"])
    done = merge_files(opened, rules, time.time_ns() // 1_000_000, is_forced=True)
    swept = opened.sweep()
    vacuumed = opened.vacuum(told["retentionHours"])
    found = {"merged": done.merged, "into": done.into, "swept": len(swept), "removed": len(vacuumed)}
    show(
        found,
        is_json=arguments.json,
        view=lambda _: [
            f"{done.merged} files merged into {done.into}; removed {len(swept)} that no version has, and "
            f"{len(vacuumed)} merged more than {told['retentionHours']} hours ago"
        ],
    )
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from anabranch.tables.verify import verify_table

    seen, place = _opened(arguments)
    found = verify_table(seen, place.options)
    told = {"files": found.files, "rows": found.rows, "bytes": found.bytes, "faults": found.faults}
    good = f"{found.files} files with {found.rows:,} rows ({found.bytes / 1e6:,.1f} MB) are as the log says"
    show(told, is_json=arguments.json, view=lambda _: found.faults or [good])
    return 1 if found.faults else 0
