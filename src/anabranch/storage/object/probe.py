"""Finds out at every start whether a store keeps the promises that the log is built on, and refuses it if not.

Several imitations of S3 accept a condition and ignore it. On such a store two brokers could both believe that they had
written the same object, and messages that were acknowledged would be gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from anabranch.storage.object.medium import (
    Created,
    MediumError,
    MediumMissingError,
    MediumRefusedError,
    ObjectMedium,
)

T = TypeVar("T")

FOLDER: Final = "probe"
_BODY: Final = bytes(range(256)) * 4
# A new store may need a moment, and one request may be lost; a store that ignores conditions does so every time.
_TRIES: Final = 5


async def probe(medium: ObjectMedium, *, retry_seconds: float = 0.2) -> None:
    """MediumRefusedError if the store does not do what the log needs; MediumError if it cannot be reached."""
    key = f"{FOLDER}/{secrets.token_hex(12)}"
    is_created, may_land_late = await _settled(medium, key, _BODY, retry_seconds)
    if not is_created:
        raise MediumRefusedError("the object store says that an object with a new random name exists already")
    try:
        await _check(medium, key, retry_seconds, may_land_late=may_land_late)
    finally:
        # What stays behind is small, and says by its name what it is.
        with contextlib.suppress(MediumError):
            await medium.delete([key])


async def _check(medium: ObjectMedium, key: str, retry_seconds: float, *, may_land_late: bool) -> None:
    is_created, may_land_too = await _settled(medium, key, _BODY[::-1], retry_seconds)
    if is_created:
        raise MediumRefusedError(
            "the object store ignores conditions: it let an object be created twice (If-None-Match: *). A log in it "
            "could lose acknowledged messages. Use a store with conditional writes, or a newer version of this one"
        )
    asked = _Asking(retry_seconds).asked
    if bytes(await asked(lambda: medium.get(key))) != _BODY:
        raise MediumRefusedError("the object store let the second creation of an object change it")
    if bytes(await asked(lambda: medium.get(key, 300, 200))) != _BODY[300:500]:
        raise MediumRefusedError("the object store answers reads of a range with other bytes")
    if (key, len(_BODY)) not in await asked(lambda: medium.list(FOLDER)):
        raise MediumRefusedError("the object store does not list an object that was just created")
    await asked(lambda: medium.delete([key]))
    try:
        await asked(lambda: medium.get(key))
    except MediumMissingError:
        return
    # An attempt to create it whose outcome was not known may have taken effect after the deletion.
    if not may_land_late and not may_land_too:
        raise MediumRefusedError("the object store still serves an object that was deleted")


class _Asking:
    """Requests that are made again if they fail."""

    def __init__(self, retry_seconds: float) -> None:
        self._retry_seconds = retry_seconds

    async def asked(self, request: Callable[[], Awaitable[T]]) -> T:
        for _ in range(_TRIES - 1):
            try:
                return await request()
            except MediumMissingError:
                raise
            except MediumError:
                await asyncio.sleep(self._retry_seconds)
        return await request()


async def _settled(medium: ObjectMedium, key: str, body: bytes, retry_seconds: float) -> tuple[bool, bool]:
    """Whether the object has been created with these bytes, and whether an attempt may still take effect later."""
    may_land_late = False
    for tries_left in reversed(range(_TRIES)):
        created = await medium.create(key, [body])
        if created is Created.STORED:
            return True, may_land_late
        may_land_late = may_land_late or created is Created.UNKNOWN
        with contextlib.suppress(MediumError):
            return bytes(await medium.get(key)) == body, may_land_late
        if tries_left:
            await asyncio.sleep(retry_seconds)
    raise MediumError("the object store does not answer, or with errors only")
