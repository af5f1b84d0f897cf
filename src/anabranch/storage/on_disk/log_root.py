"""What the parts of a store share: the root, the incarnation that writes there, and what is known of the files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from anabranch.model.position import Incarnation
from anabranch.storage.core.live import Liveness
from anabranch.storage.on_disk.catalog import Catalog
from anabranch.storage.on_disk.files import Files

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogRoot:
    path: Path
    own: Incarnation
    files: Files
    executor: Executor  # Files are touched there, never on the event loop.
    catalog: Catalog
    live: Liveness

    def wal(self, incarnation: Incarnation) -> Path:
        """The folder of that incarnation's log."""
        return self.path / "wal" / incarnation

    async def in_reader(self, call: Callable[..., T], *args: object) -> T:
        """What `call` returns, on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, call, *args)
