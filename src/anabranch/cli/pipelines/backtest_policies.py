"""The policies of a backtest, as users write them: on the command line, or in a file of TOML or JSON. Pure but for the
file.

On the command line fields may be spelled as in `anabranch topics policy` (`max-segments=16`, `merge-window=2m`) or as
in REST (`maxSegments=16`, `splitCooldownSeconds=30`). In files they are spelled as in REST.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from anabranch.autoscale.policy import DEFAULT, FIELDS, InvalidPolicy, Override, ScalePolicy, check, resolve
from anabranch.cli.parsing import auto_scale_fields as policy_fields
from anabranch.cli.parsing.options import UsageError

# The policies compared by default: the defaults, and the four directions in which to leave them.
USUAL: Final = (
    "default:",
    "eager:split-cooldown=20s,split-msg-rate-in=7000,split-bytes-rate-in=35MB,split-msg-rate-out=35000,"
    "split-bytes-rate-out=175MB",
    "thrifty:merge-window=2m,merge-cooldown=1m,merge-msg-rate-in=3000,merge-bytes-rate-in=15MB,"
    "merge-msg-rate-out=15000,merge-bytes-rate-out=75MB",
    "patient:merge-window=30m,merge-cooldown=15m",
    "capped:max-segments=8",
)
# In place of fields: the policy that was in force when the history was recorded.
RECORDED: Final = "recorded"
_BY_NAME: Final = {field.name: field for field in policy_fields.FIELDS}


def policies(texts: Iterable[str], file: str | None) -> dict[str, ScalePolicy]:
    """The policies by name, those of the file first. UsageError says what to change."""
    given = list(texts)
    found = {} if file is None else _from_file(Path(file))
    if file is None and not given:
        given = list(USUAL)
    for text in given:
        name, colon, fields = text.partition(":")
        name = name.strip()
        if not name or not colon:
            raise UsageError(
                f"--policy {text!r}: expected NAME:FIELD=VALUE,… such as small:max-segments=16,split-cooldown=30s "
                "(NAME: alone is the defaults)"
            )
        if name in found:
            raise UsageError(
                f"--policy {text!r}: there is a policy {name!r} already; give each a name of its own"
            )
        found[name] = _policy(name, _fields(name, fields))
    return found


def recorded_names(texts: Iterable[str]) -> list[str]:
    """The names of policies that are those of recorded brokers. `policies` returns them as the defaults."""
    parts = [text.partition(":") for text in texts]
    return [name.strip() for name, _, fields in parts if fields.strip() == RECORDED]


def _fields(name: str, text: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if text.strip() == RECORDED:
        return values
    for part in filter(None, (part.strip() for part in text.split(","))):
        word, equals, value = part.partition("=")
        field = policy_fields.BY_WORD.get(word) or _BY_NAME.get(word)
        if field is None or not equals:
            raise UsageError(
                f"policy {name!r}: {part!r} is no FIELD=VALUE; fields are {', '.join(policy_fields.BY_WORD)}"
            )
        values[field.name] = policy_fields.parsed(field, value)
    return values


def _from_file(path: Path) -> dict[str, ScalePolicy]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    try:
        value = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except ValueError as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON (name it *.toml if it is TOML)"
        raise UsageError(f"{path} cannot be read as {kind}: {error}") from None
    if not isinstance(value, dict) or not value:
        raise UsageError(
            f'{path}: expected a policy for each name, such as {{"small": {{"maxSegments": 16}}}}'
        )
    return {name: _policy(name, fields) for name, fields in value.items()}


def _policy(name: str, fields: Any) -> ScalePolicy:
    if isinstance(fields, dict) and (odd := sorted(fields.keys() - FIELDS.keys())):
        raise UsageError(f"policy {name!r}: there is no field {odd[0]!r}; there are {', '.join(FIELDS)}")
    try:
        policy = resolve(DEFAULT, None, Override.decode(fields)).policy
        check(policy)
    except InvalidPolicy as error:
        raise UsageError(f"policy {name!r}: {error}") from None
    return policy
