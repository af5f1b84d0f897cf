"""Waits for work whose outcome is kept, by its caller or for callers that come later."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from anabranch.errors import unraised

T = TypeVar("T")


async def outcome(work: asyncio.Future[T]) -> T:
    """The result of the work, which continues if the caller gives up.

    Raises an equal error: one that was raised refers to its callers, and would keep them in memory for as
    long as the future is kept.
    """
    if not work.done():
        await asyncio.wait((work,))
    if not work.cancelled() and (error := work.exception()) is not None:
        raise unraised(error)
    return work.result()
