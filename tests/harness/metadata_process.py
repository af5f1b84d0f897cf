"""A metadata process for tests, and a relay before it that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from anabranch.metadata.port import MetadataStore, SessionState
from anabranch.metadata.remote import RemoteMetadata
from anabranch.metadata.unix_sockets import address_of

PROGRAM = (
    "import sys\n"
    "from anabranch.metadata.served import run_metadata\n"
    "sys.exit(run_metadata(sys.argv[1], sys.argv[2], grace_s=float(sys.argv[3])))\n"
)


class MetadataProcess:
    """Serves `metadata.sqlite` of the folder. May be started again after it has ended."""

    def __init__(self, folder: Path, grace_s: float = 60.0) -> None:
        self.database = folder / "metadata.sqlite"
        self.socket_path = folder / "private" / "metadata.socket"
        self.grace_s = grace_s
        self.process: asyncio.subprocess.Process

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, str(self.database), str(self.socket_path), str(self.grace_s)
        )

    async def connect(self) -> RemoteMetadata:
        return await RemoteMetadata.connect(self.socket_path, wait_s=60)

    async def stop(self) -> int:
        """An orderly end; its exit code."""
        return await self._ended(signal.SIGTERM)

    async def kill(self) -> None:
        await self._ended(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    async def _ended(self, number: signal.Signals) -> int:
        if self.process.returncode is None:
            self.send_signal(number)
        return await self.process.wait()


class Relay:
    """Passes bytes between a client and the server, until it is cut."""

    def __init__(self, path: Path, to: Path) -> None:
        self.path = path
        self._to = to
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        if self._server is None:
            self.path.unlink(missing_ok=True)
            with address_of(self.path) as address:
                self._server = await asyncio.start_unix_server(self._pass, address)

    def cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            self.path.unlink(missing_ok=True)
        for writer in self._writers:
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            with address_of(self._to) as address:
                there, back = await asyncio.open_unix_connection(address)
            self._writers |= {writer, back}
            if self._server is None:
                self.cut()
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
            self._writers -= {writer, back}
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def until_state(store: MetadataStore, state: SessionState) -> None:
    await until_session(store, lambda: store.session.state is state)


async def until_session(store: MetadataStore, holds: object) -> None:
    """Waits until that is true of the store's session."""
    assert callable(holds)
    changed = asyncio.Event()
    stop = store.session.on_change(lambda _: changed.set())
    try:
        async with asyncio.timeout(60):
            while not holds():
                await changed.wait()
                changed.clear()
    finally:
        stop()
