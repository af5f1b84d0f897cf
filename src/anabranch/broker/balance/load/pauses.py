"""Pauses whose length is a setting: a change of it counts while the pause lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

# How soon another length is in force. One that was far too long must not last after it was taken back.
SETTINGS_AGAIN_S: Final = 5.0


async def pause(seconds: Callable[[], float], wake: asyncio.Event | None = None) -> None:
    """Returns after so many seconds, or once `wake` is set."""
    loop, wake = asyncio.get_running_loop(), wake or asyncio.Event()
    began_s = loop.time()
    while not wake.is_set() and (left_s := began_s + seconds() - loop.time()) > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(min(left_s, SETTINGS_AGAIN_S)):
                await wake.wait()
