"""`anabranch config show`: every setting that a broker with these options would have, and its origin."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from typing import Any

from anabranch.broker.config.config import FIELDS, BrokerConfig, Loaded
from anabranch.cli.parsing.broker_options import declare_broker, settings
from anabranch.cli.parsing.options import UsageError
from anabranch.cli.render.dag import aligned

_DEFAULTS = BrokerConfig().spelled()


def declare(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    show = actions.add_parser(
        "show",
        help="show every setting, and where it comes from",
        description="Shows what a broker that is started with these options would have for settings: the value, and "
        "whether it is the default or from which line, variable or option it comes. Secrets are not shown.",
    )
    show.set_defaults(module="broker.config")
    show.add_argument("name", nargs="*", metavar="NAME", help="only these settings")
    show.add_argument("--changed", action="store_true", help="only what differs from its default")
    show.add_argument(
        "--unused",
        action="store_true",
        help="instead, the settings of Pulsar's that mean nothing here, those first that are not as it ships them",
    )
    show.add_argument("--json", action="store_true", help="print JSON")
    declare_broker(show)


def run(arguments: argparse.Namespace) -> int:
    found = settings(arguments)
    for warning in found.warnings:
        print(f"anabranch: {warning}", file=sys.stderr)
    if arguments.unused:
        missed = {id(given) for given in found.missed}
        unused = {
            # No values: some are passwords.
            given.key: {"where": str(given.origin), "isChanged": id(given) in missed}
            for given in sorted(found.unused, key=lambda given: id(given) not in missed)
        }
        rows = [(key, "yes" if one["isChanged"] else "no", one["where"]) for key, one in unused.items()]
        _print(unused, rows, ("SETTING", "CHANGED", "FROM"), arguments.json)
        return 0
    shown = _chosen(found, arguments)
    rows = [(name, one["where"] or one["from"], _text(one["value"])) for name, one in shown.items()]
    _print(shown, rows, ("SETTING", "FROM", "VALUE"), arguments.json)
    return 0


def _chosen(found: Loaded, arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    names = [_known(name) for name in arguments.name] or list(FIELDS)
    values = found.config.spelled()
    shown = {}
    for name in names:
        origin = found.origin(name)
        if not arguments.changed or values[name] != _DEFAULTS[name]:
            shown[name] = {"value": values[name], "from": origin.kind, "where": origin.where}
    return shown


def _known(name: str) -> str:
    by_case = {field.lower(): field for field in FIELDS}
    if name.lower() in by_case:
        return by_case[name.lower()]
    near = difflib.get_close_matches(name.lower(), by_case, n=1)
    hint = f"; did you mean {by_case[near[0]]}?" if near else ""
    raise UsageError(f"there is no setting {name}{hint}")


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _print(found: Any, rows: list[Any], head: tuple[str, ...], is_json: bool) -> None:
    if is_json:
        print(json.dumps(found, indent=2))
    elif rows:
        print("\n".join(aligned([head, *rows], left={0, 1, 2})))
