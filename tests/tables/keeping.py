"""A table writer in a thread of the test: as its own process, but at once and at the test's priority."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from anabranch.table_writer.process import TableWriterProcess
from anabranch.table_writer.settings import WriterSettings
from anabranch.tables.core.place import parse_place
from harness.broker_process import BrokerProcess


@contextmanager
def tables_kept(broker: BrokerProcess, place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("anabranch.table_writer.process.LISTED_EVERY_S", 0.2)
    admin = f"http://127.0.0.1:{broker.http_port}"
    settings = WriterSettings(broker.url, parse_place(str(place)), admin_url=admin, commit_s=0.2)
    running: list[Any] = []
    is_running = threading.Event()

    async def keep() -> None:
        stop = asyncio.Event()
        running.extend((asyncio.get_running_loop(), stop))
        is_running.set()
        await TableWriterProcess(settings, stop).run()

    writer = threading.Thread(target=lambda: asyncio.run(keep()))
    writer.start()
    try:
        is_running.wait()
        yield
    finally:
        loop, stop = running
        loop.call_soon_threadsafe(stop.set)
        writer.join()
