"""One line for a change that the admin REST answers with nothing: what was done, and to what. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_DONE: Final[Mapping[str, str]] = {
    "create": "created",
    "delete": "deleted",
    "update": "updated",
    "set": "set",
    "upload": "uploaded",
    "unload": "unloaded",
    "transfer": "moved",
    "split": "split",
    "split-bundle": "bundle split",
    "clear-backlog": "backlog cleared",
    "grant-permission": "permission granted",
    "revoke-permission": "permissions revoked",
    "remove-all": "all policies removed",
    "update-dynamic-config": "changed on all brokers",
    "delete-dynamic-config": "as configured again",
    "update-partitions": "partitions added",
    "truncate": "emptied",
    "compact": "compaction begun",
    "skip": "messages skipped",
    "skip-all": "all messages skipped",
    "expire": "old messages skipped",
    "reset": "moved",
}


def said(action: str, subject: str) -> str:
    """`acme/web: retention set`."""
    done = _DONE.get(action)
    if done is None:
        verb, _, rest = action.partition("-")
        done = f"{rest} {'removed' if verb == 'remove' else 'set'}" if rest else "done"
    return f"{subject}: {done}" if subject else done
