"""A parser that answers a typo with the nearest word, not with all words."""

from __future__ import annotations

import argparse
import difflib
from typing import Any


class Parser(argparse.ArgumentParser):
    """argparse gives all commands below it the same class."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            near = difflib.get_close_matches(str(value), list(action.choices), n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"`{self.prog} --help` lists them"
            word = str(action.metavar or "command").lower()
            raise argparse.ArgumentError(None, f"there is no {word} {value!r}; {hint}")
        super()._check_value(action, value)
