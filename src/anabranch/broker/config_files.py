"""Where settings are written: a `broker.conf`, a TOML file, the environment. Each comes with its place.

Nothing here knows which settings there are. A `broker.conf` is read as Java reads properties, as far as people use
that: a line that ends in a backslash goes on in the next one, and of two lines with one name the later counts.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from anabranch.errors import AnabranchError

# Later ones win. The first is how Pulsar's own container image is told its settings.
ENVIRONMENT_PREFIXES = ("PULSAR_PREFIX_", "ANABRANCH_")

# The variables that the command line reads itself; they are no settings of a broker.
_NOT_SETTINGS = frozenset({"serviceurl", "adminurl", "token", "password", "trustcertsfile"})


class ConfigError(AnabranchError):
    """A setting that cannot be used; the message names it, its value, what is allowed, and where it is written."""


class Origin(NamedTuple):
    kind: Literal["default", "file", "environment", "flag", "dynamic"]
    where: str = ""

    def __str__(self) -> str:
        return self.where or self.kind


class Given(NamedTuple):
    """A setting as somebody wrote it."""

    key: str
    value: Any
    origin: Origin


DEFAULT = Origin("default")


def folded(key: str) -> str:
    """One form for all spellings of a name."""
    return key.replace("_", "").replace("-", "").lower()


def from_environment(environ: Mapping[str, str]) -> list[Given]:
    return [
        Given(key, value, Origin("environment", f"${variable}"))
        for prefix in ENVIRONMENT_PREFIXES
        for variable, value in environ.items()
        if variable.startswith(prefix)
        and folded(key := variable.removeprefix(prefix)) not in _NOT_SETTINGS
        and key
    ]


def from_file(file: Path) -> list[Given]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from None
    return list(_toml(text, file) if file.suffix == ".toml" else _conf(text, file))


def _conf(text: str, file: Path) -> Iterator[Given]:
    rest = enumerate(text.splitlines(), 1)
    for number, raw in rest:
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        while line.endswith("\\"):
            line = line[:-1] + next(rest, (0, ""))[1].strip()
        key, equals, value = line.partition("=")
        if not equals:
            raise ConfigError(f"{file}:{number}: expected name=value, found {line!r}")
        yield Given(key.strip(), value.strip(), Origin("file", f"{file}:{number}"))


def _toml(text: str, file: Path) -> Iterator[Given]:
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: {error}") from None
    # Tables are for the reader's eye only: names are unique without them.
    flat: dict[str, Any] = {}
    for key, value in parsed.items():
        flat.update(value if isinstance(value, dict) else {key: value})
    lines = text.splitlines()
    for key, value in flat.items():
        yield Given(key, value, Origin("file", f"{file}{_line_of(key, lines)}"))


def _line_of(key: str, lines: list[str]) -> str:
    """`:12`. TOML's reader does not say; a line that assigns to the name is the one."""
    assigns = re.compile(rf"""\s*["']?{re.escape(key)}["']?\s*=""")
    return next((f":{number}" for number, line in enumerate(lines, 1) if assigns.match(line)), "")
