"""The last hour of the page, on disk: written down at intervals and at a clean end, and read at the next start.

It is for the page alone. A file that cannot be read is left aside with a warning: the broker then starts with an empty
page. What waits in topics counts only if the broker ended cleanly: after a crash, what was written down may be old.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Final

import msgspec

from anabranch.broker.scalable.load.recent import LoadHistory, LoadImage
from anabranch.broker.ui.memory import LayoutImage
from anabranch.broker.ui.recorder import KEPT_MS, Recorder, Total

log = logging.getLogger(__name__)

# Another number for another form: older and newer releases start with an empty page.
FORM: Final = 1
SAVE_S: Final = 60.0


class LastHour(msgspec.Struct, array_like=True):
    form: int
    at_ms: int
    is_clean: bool
    broker: list[Total]
    topics: dict[str, list[Total]]
    # Unacknowledged messages of each open topic, by subscription.
    waiting: dict[str, dict[str, int]]
    layouts: dict[str, LayoutImage]
    loads: LoadImage


_decode = msgspec.msgpack.Decoder(LastHour).decode


def image(
    recorder: Recorder, history: LoadHistory | None, now_ms: int, *, is_clean: bool = False
) -> LastHour:
    return LastHour(
        FORM,
        now_ms,
        is_clean,
        *recorder.image(),
        recorder.layouts.image(),
        {} if history is None else history.image(),
    )


def restore(found: LastHour, recorder: Recorder, history: LoadHistory | None, now_ms: int) -> None:
    """Called before anything is recorded. Nothing flowed between the end and this start."""
    if not now_ms - KEPT_MS < found.at_ms <= now_ms:
        found.topics, found.broker, found.layouts, found.loads = {}, [], {}, {}
    recorder.restore(found.broker, found.topics, found.waiting if found.is_clean else {}, found.at_ms, now_ms)
    recorder.layouts.restore(found.layouts)
    if history is not None:
        history.restore(found.loads, found.at_ms, now_ms)


async def load(path: Path) -> LastHour | None:
    try:
        found = await asyncio.to_thread(_read, path)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("%s cannot be read, the page starts empty: %s", path, error)
        return None
    return found if found.form == FORM else None


def _read(path: Path) -> LastHour:
    return _decode(path.read_bytes())


async def save(path: Path, told: LastHour) -> None:
    """A failure is logged: a full disk must not end anything else."""
    try:
        await asyncio.to_thread(_write, path, told)
    except OSError as error:
        log.warning("the page's last hour is not written down: %s", error)


def _write(path: Path, told: LastHour) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    other = path.with_suffix(".new")
    other.write_bytes(msgspec.msgpack.encode(told))
    os.replace(other, path)
