"""`anabranch completion`: a script for bash, zsh or fish that completes commands, actions, options and their values.

The scripts hold every word of the command line as it is declared: completing starts neither Python nor a request. Only
names of topics are asked for, of the broker that the variables or the profile name.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from anabranch.cli.parsing.access import declare_access

# The names of arguments, in help, that are files or folders.
_FILES = frozenset({"FILE", "DIR", "PATH"})
# The names of arguments that are topics.
_TOPICS = frozenset({"topic", "schema_topic", "target"})


class Word(NamedTuple):
    """A command, an action, a possible value, or an option, with its purpose."""

    text: str
    help: str
    takes_value: bool = False
    values: tuple[str, ...] = ()
    is_file: bool = False
    # Stands for the name of a topic, and has no text of its own.
    is_topic: bool = False

    @property
    def is_option(self) -> bool:
        return self.text.startswith("-")


Places = dict[str, list[Word]]


def declare(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(module="completion")
    parser.description = (
        "Prints a script for the shell. bash: anabranch completion bash > "
        "~/.local/share/bash-completion/completions/anabranch; zsh: anabranch completion zsh > "
        "_anabranch in a folder of $fpath; fish: anabranch completion fish > "
        "~/.config/fish/completions/anabranch.fish"
    )
    parser.add_argument(
        "shell", choices=(*SCRIPTS, "topics"), help="topics lists names of topics, for the scripts"
    )
    parser.add_argument(
        "beginning", nargs="?", default="", metavar="TEXT", help="with topics: how the names begin"
    )
    parser.add_argument("--admin-url", metavar="URL", help="with topics: the admin REST")
    declare_access(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.shell == "topics":
        from anabranch.cli.admin.topic_names import beginning_with

        for name in beginning_with(arguments.beginning, arguments.admin_url):
            print(name)
        return 0
    from anabranch.cli.main import build_parser

    print(SCRIPTS[arguments.shell](tree(build_parser(is_whole=True))), end="")
    return 0


def tree(parser: argparse.ArgumentParser) -> Places:
    """The words that may follow each command: `""` is the program alone, `"topics create"` an action."""
    return dict(_walk(parser, ""))


def _walk(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, list[Word]]]:
    found: list[Word] = []
    inner: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:  # argparse has no public list of its actions.
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, child in action.choices.items():
                found.append(Word(name, helps.get(name, "")))
                inner.append((f"{path} {name}".strip(), child))
        elif action.option_strings and action.help != argparse.SUPPRESS:
            found += _options(action)
        elif not action.option_strings:
            found += [Word(value, "") for value in _values(action)]
            if action.dest in _TOPICS:
                found.append(Word("", "", is_topic=True))
    yield path, found
    for name, child in inner:
        yield from _walk(child, name)


def _options(action: argparse.Action) -> Iterator[Word]:
    for option in action.option_strings:
        yield Word(option, _short(action.help), action.nargs != 0, _values(action), action.metavar in _FILES)


def _values(action: argparse.Action) -> tuple[str, ...]:
    """All values that may be written there, if they are known: choices, or `on|off`."""
    if action.choices:
        return tuple(str(choice) for choice in action.choices)
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    return tuple(metavar.split("|")) if "|" in metavar else ()


def _short(help: str | None) -> str:
    """One line without characters that are special to shells."""
    return (help or "").replace("%%", "%").partition("; ")[0]


def _with_values(places: Places) -> Iterator[tuple[str, tuple[str, ...]]]:
    """`stats --sort`, and the values that can follow it."""
    for path, found in places.items():
        for word in found:
            if word.is_option and word.values:
                yield f"{path} {word.text}", word.values


def _texts(words: Iterable[Word]) -> str:
    return " ".join(dict.fromkeys(word.text for word in words if word.text))


def _topic_places(places: Places) -> list[str]:
    """The commands whose first argument is a topic."""
    return [path for path, found in places.items() if any(word.is_topic for word in found)]


def _lists(places: Places) -> tuple[str, str]:
    """The options that have a value, and those of them whose value is a file. The program alone has none."""
    options = [word for path, found in places.items() if path for word in found if word.is_option]
    return _texts(w for w in options if w.takes_value), _texts(w for w in options if w.is_file)


def _bash(places: Places) -> str:
    words = "\n".join(
        f'    "{path}") words="{_texts(w for w in found if not w.is_option)}" '
        f'options="{_texts(w for w in found if w.is_option)}" ;;'
        for path, found in places.items()
    )
    values = "\n".join(
        f'    "{place}") words="{" ".join(found)}" ;;' for place, found in _with_values(places)
    )
    takes, files = _lists(places)
    topics = "|".join(f'"{path}"' for path in _topic_places(places))
    return f"""# Completes anabranch in bash.
_anabranch_words() {{
  case "$1" in
{words}
    *) return 1 ;;
  esac
}}
_anabranch_values() {{
  words=""
  case "$1" in
{values}
  esac
}}
_anabranch_takes_topic() {{
  case "$1" in
    {topics}) return 0 ;;
  esac
  return 1
}}
_anabranch_topics() {{
  # Bash takes a colon for the end of a word, and completes what is behind it.
  local line="${{COMP_LINE:0:${{COMP_POINT:-0}}}}"
  local whole="${{line##*[[:space:]]}}" name
  [[ -n $line ]] || whole=$1
  local before="${{whole%"${{whole##*:}}"}}"
  COMPREPLY=()
  while IFS= read -r name; do
    [[ $name == "$whole"* ]] && COMPREPLY+=("${{name#"$before"}}")
  done < <(command anabranch completion topics -- "$whole" 2> /dev/null)
  [[ ${{#COMPREPLY[@]}} -eq 1 && ${{COMPREPLY[0]}} == */ ]] && compopt -o nospace 2> /dev/null
}}
_anabranch() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD - 1]}}" place="" words="" options="" at
  local takes=" {takes} " files=" {files} " given=0
  for ((at = 1; at < COMP_CWORD; at++)); do
    # A word that names a command or an action leads on; options and names of topics do not.
    if _anabranch_words "${{place:+$place }}${{COMP_WORDS[at]}}"; then
      place="${{place:+$place }}${{COMP_WORDS[at]}}"
    elif [[ ${{COMP_WORDS[at]}} != -* && $takes != *" ${{COMP_WORDS[at - 1]}} "* && ${{COMP_WORDS[at]}} != ":" ]]; then
      [[ ${{COMP_WORDS[at + 1]}} == ":" ]] || given=1
    fi
  done
  _anabranch_words "$place"
  if [[ -n $place && $files == *" $previous "* ]]; then
    compopt -o filenames 2> /dev/null
    local IFS=$'\\n'
    COMPREPLY=($(compgen -f -- "$current"))
    return
  elif [[ -n $place && $takes == *" $previous "* ]]; then
    _anabranch_values "$place $previous"
  elif [[ $current == -* ]]; then
    words=$options
  elif [[ $given == 0 ]] && _anabranch_takes_topic "$place"; then
    _anabranch_topics "$current"
    return
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -F _anabranch anabranch
"""


def _zsh(places: Places) -> str:
    def described(words: Iterable[Word]) -> str:
        return " ".join(
            _quoted(word.text.replace(":", "\\:") + (f":{word.help}" if word.help else ""))
            for word in words
            if word.text
        )

    words = "\n".join(
        f"    {_quoted(path)}) choices=({described(w for w in found if not w.is_option)}) "
        f"flags=({described(w for w in found if w.is_option)}) ;;"
        for path, found in places.items()
    )
    values = "\n".join(
        f"    {_quoted(place)}) choices=({' '.join(map(_quoted, found))}) ;;"
        for place, found in _with_values(places)
    )
    takes, files = _lists(places)
    topics = "|".join(_quoted(path) for path in _topic_places(places))
    return f"""#compdef anabranch
# Completes anabranch in zsh.
_anabranch_words() {{
  case "$1" in
{words}
    *) return 1 ;;
  esac
}}
_anabranch_values() {{
  choices=()
  case "$1" in
{values}
  esac
}}
_anabranch_takes_topic() {{
  case "$1" in
    {topics}) return 0 ;;
  esac
  return 1
}}
_anabranch() {{
  local place="" at previous="${{words[CURRENT-1]}}"
  local -a choices flags takes files
  takes=({takes})
  files=({files})
  for at in "${{(@)words[2,CURRENT-1]}}"; do
    _anabranch_words "${{place:+$place }}$at" && place="${{place:+$place }}$at"
  done
  _anabranch_words "$place"
  if [[ -n $place && -n ${{files[(r)$previous]}} ]]; then
    _files
    return
  elif [[ -n $place && -n ${{takes[(r)$previous]}} ]]; then
    _anabranch_values "$place $previous"
    _describe value choices
  elif [[ $PREFIX == -* ]]; then
    _describe -o option flags
  elif _anabranch_takes_topic "$place"; then
    local -a names
    names=(${{(f)"$(command anabranch completion topics -- "$PREFIX" 2> /dev/null)"}})
    compadd -S '' -a names
  else
    _describe anabranch choices
  fi
}}
if [ "$funcstack[1]" = _anabranch ]; then _anabranch "$@"; else compdef _anabranch anabranch; fi
"""


_FISH_TOPICS = "(command anabranch completion topics -- (commandline -ct) 2> /dev/null)"


def _fish(places: Places) -> str:
    paths = " ".join(_quoted(path) for path in places if path)
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
        "# Names of topics are no files.",
        "complete -c anabranch -f",
    ]
    for path, found in places.items():
        where = _quoted(f'__anabranch_at "{path}"')
        if any(word.is_topic for word in found):
            lines.append(f"complete -c anabranch -n {where} -a {_quoted(_FISH_TOPICS)}")
        for word in found:
            if not word.text:
                continue
            help = f" -d {_quoted(word.help)}" if word.help else ""
            lines.append(f"complete -c anabranch -n {where} {_fish_word(word)}{help}")
    return "\n".join(lines) + "\n"


def _fish_word(word: Word) -> str:
    if not word.is_option:
        return f"-a {word.text}"
    name = word.text.lstrip("-")
    kind = "-l" if word.text.startswith("--") else "-s" if len(name) == 1 else "-o"
    if not word.takes_value:
        return f"{kind} {name}"
    if word.is_file:
        return f"{kind} {name} -r -F"
    values = f" -a {_quoted(' '.join(word.values))}" if word.values else ""
    return f"{kind} {name} -x{values}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
