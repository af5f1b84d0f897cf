"""What an object store answers to a creation. Pure."""

from __future__ import annotations

from enum import Enum


class Created(Enum):
    STORED = "stored"
    # The store refused it as existing: another writer's object, an earlier attempt of the same call, or nothing.
    EXISTS = "exists"
    # No answer, or one that says nothing about the object.
    UNKNOWN = "unknown"
