"""The demo's statements, and the checks behind them. A failed check is printed and sets the exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.markup import escape
from rich.table import Table


class Account:
    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._checks: list[tuple[str, str, bool]] = []
        self._notes: list[str] = []
        self._step = 0
        self._title = ""

    @property
    def console(self) -> Console:
        return self._console

    @property
    def checked(self) -> list[tuple[str, bool]]:
        """The checks so far, and whether each held."""
        return [(claim, is_true) for _, claim, is_true in self._checks]

    def note(self, text: str) -> None:
        """Adds a text below the summary."""
        self._notes.append(text)

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """One chapter. An error in it is a failed check, and ends the story."""
        self._step += 1
        self._title = title
        self._console.print(f"\n[bold cyan]{self._step}. {escape(title)}[/]")
        started = monotonic()
        try:
            yield
        except Exception as error:
            self.check(False, f"{type(error).__name__}: {error}")
            raise StoryEnded from error
        self._console.print(f"   [dim]{monotonic() - started:.1f} s[/]")

    def say(self, text: str) -> None:
        self._console.print(f"   {escape(text)}", soft_wrap=True)

    def check(self, is_true: bool, claim: str) -> None:
        mark = "[green]ok[/]  " if is_true else "[bold red]FAIL[/]"
        self._console.print(f"   {mark} {escape(claim)}", soft_wrap=True)
        self._checks.append((self._title, claim, is_true))

    def conclude(self) -> int:
        """Prints the summary; returns 0 only if there were checks and all of them held."""
        failed = [check for check in self._checks if not check[2]]
        table = Table(title="Summary", title_justify="left", show_edge=False, pad_edge=False)
        table.add_column("step")
        table.add_column("checked")
        table.add_column("held", justify="right")
        for title in dict.fromkeys(check[0] for check in self._checks):
            of_step = [check for check in self._checks if check[0] == title]
            held = sum(check[2] for check in of_step)
            table.add_row(
                escape(title), str(len(of_step)), f"{held}" if held == len(of_step) else f"[red]{held}[/]"
            )
        self._console.print()
        self._console.print(table)
        for note in self._notes:
            self._console.print(f"\n{escape(note)}", soft_wrap=True)
        if failed or not self._checks:
            self._console.print(f"\n[bold red]{len(failed)} of {len(self._checks)} checks failed.[/]")
            return 1
        self._console.print(f"\n[bold green]All {len(self._checks)} checks held.[/]")
        return 0


class StoryEnded(Exception):
    """A step failed so that the rest makes no sense; its check is in the account."""
