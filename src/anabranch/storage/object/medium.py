"""The port to an object store: five verbs, of which the log needs no more. Data plane, per object.

Keys are `/`-separated. An object appears whole, is created once and never changed. Who asks for an object after it was
created finds it: stores without that promise are refused by the probe (`probe.py`).

What a request did is not always known. `create` says UNKNOWN then, and the object may appear at any later time, or
never. EXISTS is the store's word, and may be wrong: S3 refuses one of two simultaneous creations with a conflict
although neither may have happened. Callers settle both by asking again (`core/numbers.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from anabranch.storage.object.core.created import Created
from anabranch.storage.port import Buffer, LogError

__all__ = ["Created", "MediumError", "MediumMissingError", "MediumRefusedError", "ObjectMedium"]


class MediumError(LogError):
    """The object store did not do what it was asked to do. Trying again may help."""

    retryable = True


class MediumMissingError(MediumError):
    """There is no object of that name."""


class MediumRefusedError(MediumError):
    """This store, or what it was told about itself, cannot hold a log."""

    retryable = False


class ObjectMedium(Protocol):
    async def create(self, key: str, parts: Sequence[Buffer]) -> Created:
        """Creates the object if there is none of that name. Raises nothing but MediumRefusedError: whatever else went
        wrong is UNKNOWN."""

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        """The object's bytes from `start` on, which lies within it, at most `length` of them (None: to its end).

        Raises MediumMissingError, or MediumError if the store could not say."""

    async def list(self, folder: str, after: str = "") -> list[tuple[str, int]]:
        """Keys below a folder (`a/b`, no slash at the end) that are above the key `after`, and their sizes; sorted."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Deletes those that exist. On MediumError some may be deleted."""

    async def sign(self, key: str, seconds: int) -> str:
        """A URL with which anybody can read the object for so long. Raises MediumRefusedError if the store has none."""

    def url(self, key: str) -> str:
        """The object's name for people and for readers with credentials of their own."""

    async def close(self) -> None: ...
