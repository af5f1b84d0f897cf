"""A parser that answers a typo with the nearest word, not with all words."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

NUMBERS: Final[Mapping[object, str]] = {int: "a whole number", float: "a number"}


def _shown(action: argparse.Action) -> str:
    """What a positional argument takes, as in argparse's own usage."""
    name = str(
        action.metavar or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest)
    )
    if isinstance(action, argparse._SubParsersAction):
        return f"{name} ..."
    return {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} [{name} ...]"}.get(str(action.nargs), name)


class Parser(argparse.ArgumentParser):
    """argparse gives all commands below it the same class."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            near = difflib.get_close_matches(str(value), list(action.choices), n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"`{self.prog} --help` lists them"
            word = str(action.metavar or "command").lower()
            raise argparse.ArgumentError(None, f"there is no {word} {value!r}; {hint}")
        super()._check_value(action, value)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            if (wanted := NUMBERS.get(action.type)) is None:
                raise
            raise argparse.ArgumentError(action, f"expected {wanted}, not {arg_string!r}") from None

    def error(self, message: str) -> NoReturn:
        """A line with what the command takes and a line with the mistake: forty options above it would hide it."""
        positionals = [one for one in self._actions if not one.option_strings]
        options = [one for one in self._actions if one.option_strings and one.required]
        needed = [f"{one.option_strings[-1]} {_shown(one)}" for one in options]
        words = " ".join([*needed, *map(_shown, positionals)])
        if "required" in message and any(isinstance(one, argparse._SubParsersAction) for one in positionals):
            message += f"; `{self.prog} --help` lists them"
        self.exit(
            2, f"usage: {self.prog} [OPTION ...] {words}".rstrip() + f"\n{self.prog}: error: {message}\n"
        )

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """A command refuses by itself what it does not know. argparse leaves it to the parser of all commands, whose
        usage says nothing of the command's options."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and not any(isinstance(one, argparse._SubParsersAction) for one in self._actions):
            self.error(self._refused(unknown[0]))
        return found, unknown

    def _refused(self, word: str) -> str:
        if not word.startswith("-"):
            return f"{word!r} is one argument too many"
        option = word.partition("=")[0]
        known = [one for one in self._option_string_actions if one.startswith("--")]
        near = difflib.get_close_matches(option, known, n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(near)}?" if near else f"`{self.prog} --help` lists them"
        return f"there is no option {option}; {hint}"
