"""What every command that asks the admin REST takes, wherever on its command line it stands."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any, Final

from anabranch.cli.access import declare_access

ADMIN_URL: Final = "http://127.0.0.1:8080"

Actions = argparse._SubParsersAction  # argparse has no public name for what `add_subparsers` returns.


def declare_reach(parser: argparse.ArgumentParser, *, is_inner: bool) -> None:
    """Which REST, and how its answers are printed. An action's own options win over those before its name."""

    def default(value: Any) -> Any:
        # What an action is not given must not replace what its group was.
        return argparse.SUPPRESS if is_inner else value

    how = parser.add_argument_group("how")
    how.add_argument(
        "--admin-url",
        default=default(os.environ.get("ANABRANCH_ADMIN_URL", ADMIN_URL)),
        metavar="URL",
        help=f"the admin REST (default: $ANABRANCH_ADMIN_URL or {ADMIN_URL})",
    )
    how.add_argument("--json", action="store_true", default=default(False), help="print JSON")
    declare_access(parser, is_inner=is_inner)


def declare_group(parser: argparse.ArgumentParser) -> Callable[[str, str], argparse.ArgumentParser]:
    """A command with actions; what comes back declares one, given its name and what it does."""
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
