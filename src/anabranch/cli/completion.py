"""`anabranch completion`: a script for bash, zsh or fish that completes commands, actions and options.

The scripts hold every word of the command line as it is declared: completing asks neither Python nor a broker.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple


class Word(NamedTuple):
    """A command, an action, or an option, with what it is for."""

    text: str
    help: str


def declare(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(module="completion")
    parser.description = (
        "Prints a script for the shell. bash: anabranch completion bash > "
        "~/.local/share/bash-completion/completions/anabranch; zsh: anabranch completion zsh > "
        "_anabranch in a folder of $fpath; fish: anabranch completion fish > "
        "~/.config/fish/completions/anabranch.fish"
    )
    parser.add_argument("shell", choices=tuple(SCRIPTS))


def run(arguments: argparse.Namespace) -> int:
    from anabranch.cli.main import build_parser

    print(SCRIPTS[arguments.shell](tree(build_parser(is_whole=True))), end="")
    return 0


def tree(parser: argparse.ArgumentParser) -> dict[str, list[Word]]:
    """What may follow each command: `""` is the program alone, `"topics create"` an action."""
    return dict(_walk(parser, ""))


def _walk(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, list[Word]]]:
    found: list[Word] = []
    inner: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:  # argparse tells nobody else what it was told.
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, child in action.choices.items():
                found.append(Word(name, helps.get(name, "")))
                inner.append((f"{path} {name}".strip(), child))
        elif action.option_strings and action.help != argparse.SUPPRESS:
            found += [Word(option, _short(action.help)) for option in action.option_strings]
        elif action.choices:
            found += [Word(str(choice), "") for choice in action.choices]
    yield path, found
    for name, child in inner:
        yield from _walk(child, name)


def _short(help: str | None) -> str:
    """One line without what shells take for their own."""
    return (help or "").replace("%%", "%").partition("; ")[0]


def _bash(words: dict[str, list[Word]]) -> str:
    cases = "\n".join(
        f'    "{path}") words="{" ".join(word.text for word in found)}" ;;' for path, found in words.items()
    )
    return f"""# Completes anabranch in bash.
_anabranch_words() {{
  case "$1" in
{cases}
    *) return 1 ;;
  esac
}}
_anabranch() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" place="" words="" at
  for ((at = 1; at < COMP_CWORD; at++)); do
    # A word that names a command or an action leads on; options and names of topics do not.
    _anabranch_words "${{place:+$place }}${{COMP_WORDS[at]}}" && place="${{place:+$place }}${{COMP_WORDS[at]}}"
  done
  _anabranch_words "$place"
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _anabranch anabranch
"""


def _zsh(words: dict[str, list[Word]]) -> str:
    cases = "\n".join(
        "    {}) choices=({}) ;;".format(
            _quoted(path),
            " ".join(
                _quoted(word.text.replace(":", "\\:") + (f":{word.help}" if word.help else ""))
                for word in found
            ),
        )
        for path, found in words.items()
    )
    return f"""#compdef anabranch
# Completes anabranch in zsh.
_anabranch_words() {{
  case "$1" in
{cases}
    *) return 1 ;;
  esac
}}
_anabranch() {{
  local place="" at
  local -a choices
  for at in "${{(@)words[2,CURRENT-1]}}"; do
    _anabranch_words "${{place:+$place }}$at" && place="${{place:+$place }}$at"
  done
  _anabranch_words "$place"
  _describe anabranch choices || _files
}}
if [ "$funcstack[1]" = _anabranch ]; then _anabranch "$@"; else compdef _anabranch anabranch; fi
"""


def _fish(words: dict[str, list[Word]]) -> str:
    paths = " ".join(_quoted(path) for path in words if path)
    lines = [
        "# Completes anabranch in fish.",
        f"set -g __anabranch_paths {paths}",
        "function __anabranch_at",
        '    set -l place ""',
        "    for word in (commandline -opc)[2..-1]",
        "        # A word that names a command or an action leads on; options and names of topics do not.",
        '        set -l next (string trim "$place $word")',
        '        contains -- "$next" $__anabranch_paths; and set place $next',
        "    end",
        '    test "$place" = "$argv[1]"',
        "end",
    ]
    for path, found in words.items():
        where = _quoted(f'__anabranch_at "{path}"')
        for word in found:
            kind = "-a" if not word.text.startswith("-") else "-l" if word.text.startswith("--") else "-s"
            help = f" -d {_quoted(word.help)}" if word.help else ""
            lines.append(f"complete -c anabranch -n {where} {kind} {word.text.lstrip('-')}{help}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
