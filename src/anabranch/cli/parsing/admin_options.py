"""The options of every command that uses the admin REST, at any place of its command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from anabranch.cli.parsing.access import declare_access
from anabranch.cli.parsing.profiles import ADMIN_URL

Actions = argparse._SubParsersAction  # argparse has no public name for what `add_subparsers` returns.


def declare_reach(parser: argparse.ArgumentParser, *, is_inner: bool) -> None:
    """Declares the REST's URL, and the format of its answers. An action's own options win over those before its
    name."""

    def default(value: Any) -> Any:
        # The defaults of an action must not replace values given to its group.
        return argparse.SUPPRESS if is_inner else value

    how = parser.add_argument_group("how")
    how.add_argument(
        "--admin-url",
        default=default(None),
        metavar="URL",
        help=f"the admin REST (default: $ANABRANCH_ADMIN_URL, the profile's, or {ADMIN_URL})",
    )
    how.add_argument("--json", action="store_true", default=default(False), help="print JSON")
    declare_access(parser, is_inner=is_inner)


def declare_group(parser: argparse.ArgumentParser) -> Callable[[str, str], argparse.ArgumentParser]:
    """Declares a command with actions; the result declares one action, given its name and purpose."""
    parser.set_defaults(module=None)
    declare_reach(parser, is_inner=False)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def action(name: str, help: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = actions.add_parser(
            name, help=help, description=help[0].upper() + help[1:] + "."
        )
        made.set_defaults(action=name)
        declare_reach(made, is_inner=True)
        return made

    return action
