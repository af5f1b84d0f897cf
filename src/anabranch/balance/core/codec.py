"""Changes of bundles as JSON, with the field names of PIP-192, and back. Pure.

The bundle is the message's key. Fields that are unknown are ignored, those that are missing have defaults, so that
brokers of two releases understand each other.
"""

from __future__ import annotations

import json
from typing import Any, Final

from anabranch.balance.core.states import BrokerRun, BundleAction, BundleChange, BundleFlow, BundleState
from anabranch.model.bundles import BundleName
from anabranch.model.names import InvalidName

FORMAT: Final = 1


class BadChange(ValueError):
    """A message of the channel that cannot be read."""


def encode_change(change: BundleChange) -> bytes:
    value: dict[str, Any] = {
        "v": FORMAT,
        "flow": change.flow,
        "action": change.action,
        "state": change.state,
        "from": _told(change.source),
        "to": _told(change.to),
        "version": change.version,
        "author": _told(change.author),
        "leaderEpoch": change.term,
        "override": change.is_override,
        "at": change.at_ms,
        "reason": change.reason,
        "parent": None if change.parent is None else str(change.parent),
        "children": [str(child) for child in change.children],
    }
    return json.dumps({name: found for name, found in value.items() if found}, separators=(",", ":")).encode()


def decode_change(key: str, body: bytes) -> BundleChange:
    """BadChange for anything that `encode_change` does not make, but for fields that are unknown."""
    try:
        value: dict[str, Any] = json.loads(body)
        if value["v"] != FORMAT:
            raise BadChange(f"{key}: format {value['v']} is not understood")
        author, state, parent = _read(value["author"]), value.get("state"), value.get("parent")
        if author is None or _number(value["version"]) < 1:
            raise BadChange(f"{key}: a change without an author or a version")
        return BundleChange(
            BundleName.parse(key),
            BundleFlow(value["flow"]),
            BundleAction(value["action"]),
            None if state is None else BundleState(state),
            value["version"],
            author,
            _read(value.get("from")),
            _read(value.get("to")),
            _number(value.get("leaderEpoch", 0)),
            _flag(value.get("override", False)),
            _number(value.get("at", 0)),
            _text(value.get("reason", "")),
            None if parent is None else BundleName.parse(parent),
            tuple(BundleName.parse(child) for child in value.get("children", ())),
        )
    except BadChange:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidName) as error:
        raise BadChange(f"{key}: a change of this bundle cannot be read: {error!r}") from error


def _told(run: BrokerRun | None) -> dict[str, str] | None:
    return None if run is None else {"broker": run.broker, "run": run.run}


def _read(value: dict[str, Any] | None) -> BrokerRun | None:
    return None if value is None else BrokerRun(_text(value["broker"]), _text(value["run"]))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise BadChange(f"{value!r} is no text")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadChange(f"{value!r} is no whole number")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise BadChange(f"{value!r} is neither true nor false")
    return value
