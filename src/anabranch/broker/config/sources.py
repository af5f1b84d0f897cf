"""Reads settings from a `broker.conf`, a TOML file or the environment, each with the place where it is written.

This module does not know which settings exist. A `broker.conf` is read as Java reads properties, as far as that is
used: a line that ends in a backslash continues in the next one, and the later of two lines with the same name counts.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from anabranch.errors import AnabranchError

# Later ones win. Pulsar's own container image takes its settings with the first.
ENVIRONMENT_PREFIXES = ("PULSAR_PREFIX_", "ANABRANCH_")

# The variables that the command line reads itself; they are not settings of a broker.
_NOT_SETTINGS = frozenset(
    {"serviceurl", "adminurl", "token", "password", "trustcertsfile", "profile", "config"}
)


class ConfigError(AnabranchError):
    """An invalid setting; the message names it, its value, what is allowed, and where it is written."""


class SettingOrigin(NamedTuple):
    kind: Literal["default", "file", "environment", "flag", "dynamic"]
    where: str = ""

    def __str__(self) -> str:
        return self.where or self.kind


class GivenSetting(NamedTuple):
    """A setting as it was written."""

    key: str
    value: Any
    origin: SettingOrigin


DEFAULT = SettingOrigin("default")


def folded(key: str) -> str:
    """The name in one form for all spellings."""
    return key.replace("_", "").replace("-", "").lower()


def from_environment(environ: Mapping[str, str]) -> list[GivenSetting]:
    return [
        GivenSetting(key, value, SettingOrigin("environment", f"${variable}"))
        for prefix in ENVIRONMENT_PREFIXES
        for variable, value in environ.items()
        if variable.startswith(prefix)
        and folded(key := variable.removeprefix(prefix)) not in _NOT_SETTINGS
        and key
    ]


def from_file(file: Path) -> list[GivenSetting]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from None
    return list(_toml(text, file) if file.suffix == ".toml" else _conf(text, file))


def _conf(text: str, file: Path) -> Iterator[GivenSetting]:
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
        yield GivenSetting(key.strip(), value.strip(), SettingOrigin("file", f"{file}:{number}"))


def _toml(text: str, file: Path) -> Iterator[GivenSetting]:
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: {error}") from None
    # Tables are only for readability: names are unique without them.
    flat: dict[str, Any] = {}
    for key, value in parsed.items():
        flat.update(value if isinstance(value, dict) else {key: value})
    lines = text.splitlines()
    for key, value in flat.items():
        yield GivenSetting(key, value, SettingOrigin("file", f"{file}{_line_of(key, lines)}"))


def _line_of(key: str, lines: list[str]) -> str:
    """The line as `:12`. TOML's parser does not give it, so it is the first line that assigns to the name."""
    assigns = re.compile(rf"""\s*["']?{re.escape(key)}["']?\s*=""")
    return next((f":{number}" for number, line in enumerate(lines, 1) if assigns.match(line)), "")
