"""The scripted broker for tests that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from anabranch.client.message import EntryOrigin, Message, ReceivedEntry
from anabranch.model.layout import SegmentLayout
from anabranch.wire.batch import open_entry
from unit.client.scripted import ScriptedBroker, segment_topic

SEGMENT = segment_topic(0)
WITHIN_S = 20.0


class ScriptedThread:
    """The scripted broker, in a thread and a loop of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.script = self.run(self._start)

    async def _start(self) -> ScriptedBroker:
        script = ScriptedBroker(SegmentLayout.initial(1, 0))
        script.assigned = (0, [0])
        self._server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
        script.url = f"pulsar://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return script

    def run(self, work: Callable[[], Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(WITHIN_S)

    def until(self, met: Callable[[], object]) -> None:
        self.run(lambda: self.script.until(met))

    def deliver(self, entries: range) -> None:
        async def deliver() -> None:
            await self.script.until(lambda: SEGMENT in self.script.consumers)
            for entry in entries:
                self.script.deliver(SEGMENT, entry, b"%d" % entry)

        self.run(deliver)

    def close(self) -> None:
        async def stop() -> None:
            self._server.close()
            for link in self.script.links:
                link.cut()
            await asyncio.gather(
                *asyncio.all_tasks() - {asyncio.current_task()},
                return_exceptions=True,
            )

        self.run(stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def stored(self) -> list[Message]:
        """What it was sent, message by message."""
        found: list[Message] = []
        for number, entry in enumerate(list(self.script.entries)):
            metadata, payload = open_entry(entry)
            found += reversed(ReceivedEntry(EntryOrigin("t"), 1, number, metadata, bytes(payload)).messages())
        return found
