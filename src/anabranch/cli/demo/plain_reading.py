"""The project's own consumer as the reader of the demo's topic, where Spark cannot run: no sessions, the same proof.

It is a checkpoint consumer, which continues exactly where it was when its broker comes back.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

import anabranch
from anabranch.cli.demo.core import verify
from anabranch.cli.demo.core.clickstream import Clickstream
from anabranch.cli.demo.core.ran import MicroBatch
from anabranch.cli.demo.core.verify import Finding
from anabranch.client.errors import TimedOut

NAME: Final = "consumer"
RECEIVE_S: Final = 0.5
END_MAX_S: Final = 15.0


class PlainReading:
    """Reads whole record batches, in a thread with a loop of its own."""

    told = "a checkpoint consumer"
    catching_up = "The consumer catches up"

    def __init__(self) -> None:
        self.software = f"Anabranch {anabranch.__version__}, Python {sys.version.split()[0]}"
        self.sessions = 0
        self.received: list[Any] = []
        self._rows = 0
        self._error: BaseException | None = None
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.finish()

    def start(self, service_url: str, topic: str, stream: Clickstream, folder: Path) -> None:
        self._thread = threading.Thread(target=self._run, args=(service_url, topic), daemon=True)
        self._thread.start()

    def _run(self, service_url: str, topic: str) -> None:
        try:
            asyncio.run(self._receive(service_url, topic))
        except BaseException as error:
            self._error = error

    async def _receive(self, service_url: str, topic: str) -> None:
        client = anabranch.connect(service_url)
        try:
            async with client.checkpoint_consumer(topic, start="earliest") as consumer:
                while not self._is_over.is_set():
                    try:
                        batch = await consumer.receive_arrow(timeout_s=RECEIVE_S)
                    except TimedOut:
                        continue
                    self.received.append(batch)
                    self._rows += batch.num_rows
        finally:
            await client.close()

    def look(self) -> None:
        if self._error is not None:
            raise self._error

    def failures(self) -> Sequence[str]:
        return ()

    def rows(self) -> Mapping[str, int]:
        return {NAME: self._rows}

    def batch_count(self, name: str) -> int:
        return len(self.received)

    def batches(self) -> Mapping[str, Sequence[MicroBatch]]:
        """Empty: its batches are too many and too small for a picture."""
        return {}

    def has_read(self, events: int) -> bool:
        return self._rows >= events

    def has_closed(self, events: int) -> bool:
        return self.has_read(events + 1)

    def finish(self) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(END_MAX_S)

    def findings(self, stream: Clickstream, start_ms: int) -> list[Finding]:
        rows = received_rows(self.received)
        return [verify.once_each(rows, stream), verify.in_order(rows, "batch")]


def received_rows(batches: Sequence[Any]) -> verify.RawRows:
    """The rows of record batches, in the order they came."""
    import pyarrow as pa
    import pyarrow.compute as pc

    compute: Any = pc
    table = pa.Table.from_batches(batches).combine_chunks()
    pattern = r'^\{"number":(?P<number>\d+),"step":(?P<step>\d+),'
    event = compute.extract_regex(table.column("value").cast(pa.string()), pattern).combine_chunks()
    names = {"segment": "segment_id", "ledger": "ledger_id", "entry": "entry_id", "index": "batch_index"}
    position = pa.StructArray.from_arrays(
        [table.column(name).combine_chunks() for name in names.values()], list(names)
    )
    numbered = np.repeat(np.arange(len(batches)), [batch.num_rows for batch in batches])
    keys = table.column("key").cast(pa.string())
    shaped = pa.table(
        {
            "key": keys,
            "number": compute.struct_field(event, "number").cast(pa.int64()),
            "step": compute.struct_field(event, "step").cast(pa.int64()),
            "position": position,
        }
    )
    return verify.without_closing(verify.raw_rows(shaped, numbered), keys)
