"""Keeps a table writer running beside the brokers of one machine: a process of its own, at a low priority.

It ends with this process, however that ends, because its standard input is closed then. If it ends by itself, it is
started again, later and later. Nothing here waits for it: what it has not committed has not happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

import anabranch
from anabranch.broker.config.config import BrokerConfig

log = logging.getLogger(__name__)

PAUSE_MIN_S: Final = 1.0
PAUSE_MAX_S: Final = 60.0
# A writer that ran for so long had started well.
STEADY_S: Final = 60.0
STOP_MAX_S: Final = 10.0
# The writer must be of this very package, however it was found.
_PATH: Final = os.pathsep.join(
    filter(None, (str(Path(anabranch.__file__).resolve().parents[1]), os.environ.get("PYTHONPATH")))
)
NEEDED: Final = ("deltalake", "numba", "obstore", "pyarrow")


def why_none(config: BrokerConfig) -> str | None:
    """Why no table writer is to run here; None if one is. Empty if none is wanted."""
    if not config.tables_url or not config.tables_writer_enabled:
        return ""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return f"tablesUrl is set, and {', '.join(missing)} is not installed: install the extra `tables`"
    if config.authentication_enabled and not config.tables_writer_token:
        return "tablesUrl is set, and the table writer has no credentials: set tablesWriterToken to a super user's"
    return None


class TableProcess:
    """Call `start`, and `close` at the end."""

    def __init__(self, config: BrokerConfig, service_url: str, admin_url: str) -> None:
        self._config = config
        self._orders = {
            "service_url": service_url,
            "admin_url": admin_url,
            "token": config.tables_writer_token,
            "trust_certs": config.broker_client_trust_certs_file_path,
            "log_level": config.log_level,
        }
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None

    def start(self) -> None:
        why = why_none(self._config)
        if why:
            log.warning("%s", why)
        elif why is None:
            self._task = asyncio.get_running_loop().create_task(self._keep())  # Awaited by `close`.

    async def close(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
            try:
                async with asyncio.timeout(STOP_MAX_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

    async def _keep(self) -> None:
        pause_s = PAUSE_MIN_S
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            try:
                code = await self._run_once()
            except Exception as error:
                log.error("the table writer cannot be started: %s", error)
            else:
                log.warning("the table writer has ended with %s, and is started again", code)
            pause_s = PAUSE_MIN_S if loop.time() - began_s >= STEADY_S else min(2 * pause_s, PAUSE_MAX_S)
            await asyncio.sleep(pause_s)

    async def _run_once(self) -> int:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "anabranch.table_writer.child"),
            stdin=subprocess.PIPE,
            # A terminal sends Ctrl-C to the broker alone, which ends it in its order.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": _PATH},
        )
        self._process = process
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(self._orders) + b"\n")
        return await process.wait()
