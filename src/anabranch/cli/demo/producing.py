"""Sends the clickstream at its own pace, in a thread with a loop of its own.

Each tick posts the rows that are due, as a slice of one Arrow table; the client routes them, follows splits and merges,
and sends again what a dead broker had not confirmed. A stall (a broker that is down, a busy machine) delays the stream
instead of causing a burst afterwards: events keep about their distance in time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from anabranch.cli.demo.core.clickstream import CLOSING_KEY, Clickstream, due

if TYPE_CHECKING:
    import pyarrow as pa

TICK_S: Final = 0.05
BEHIND_MAX_S: Final = 1.0


class Producing(threading.Thread):
    """`sent` events are posted, `stored` ones have a receipt; `error` is what ended the thread early, if anything did.

    From event `held_from` on it waits until `go_on` is called, so that a caller that checks now and then is not too
    late.
    """

    def __init__(
        self, service_url: str, topic: str, stream: Clickstream, table: pa.Table, held_from: int
    ) -> None:
        super().__init__(name="clickstream", daemon=True)
        self.start_ms = 0  # The time of the first event.
        self.sent = 0
        self.stored = 0
        self.stalled_s = 0.0
        # When the latest slice was posted that is stored as a whole, by the monotonic clock.
        self._stored_from_s = 0.0
        self.error: BaseException | None = None
        self.is_sent = threading.Event()  # The whole stream is stored.
        self._close_at_ms: int | None = None
        self._wanted = threading.Event()  # Set when the closing event is to be sent, or the thread is to end.
        self._is_over = False
        self._sendable = held_from
        self._service_url = service_url
        self._topic = topic
        self._stream = stream
        self._table = table

    @property
    def is_held(self) -> bool:
        return self.sent >= self._sendable

    def go_on(self) -> None:
        self._sendable = self._stream.events

    def has_stored(self, count: int, since_s: float) -> bool:
        """Whether that many events are stored, and a slice that was posted after that moment, if one is to come."""
        return self.stored >= count and (self._stored_from_s >= since_s or self.is_sent.is_set())

    def close_stream(self, at_ms: int) -> None:
        """Requests the closing event, with that time."""
        self._close_at_ms = at_ms
        self._wanted.set()

    def stop(self) -> None:
        self._is_over = True
        self._wanted.set()

    def run(self) -> None:
        try:
            asyncio.run(self._produce())
        except BaseException as error:
            self.error = error
        finally:
            self.is_sent.set()

    async def _produce(self) -> None:
        import anabranch

        client = anabranch.connect(self._service_url)
        try:
            async with client.producer(self._topic) as producer:
                await self._stream_out(producer)
                if self._is_over:
                    return
                await producer.flush()
                self.is_sent.set()
                await asyncio.to_thread(self._wanted.wait)
                if self._close_at_ms is not None:
                    await producer.send(b"{}", key=CLOSING_KEY, event_time=self._close_at_ms)
        finally:
            await client.close()

    async def _stream_out(self, producer: Any) -> None:
        table, offsets = self._with_times(), self._stream.offsets_ms
        began = time.monotonic()
        while self.sent < self._stream.events and not self._is_over:
            now = time.monotonic()
            if self.sent and (behind := now - began - offsets[self.sent] / 1000 - BEHIND_MAX_S) > 0:
                self.stalled_s += behind
                began += behind
            upto = min(due(offsets, now - began), self._sendable)
            if upto > self.sent:
                rows = table.slice(self.sent, upto - self.sent)
                receipt = await producer.post_batch(rows, key="key", value="value", event_time="event_time")
                receipt.add_done_callback(partial(self._confirmed, now))
                self.sent = upto
            await asyncio.sleep(TICK_S)

    def _with_times(self) -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc

        compute: Any = pc
        self.start_ms = time.time_ns() // 1_000_000
        at = compute.add(self._table.column("offset"), pa.scalar(self.start_ms))
        return self._table.append_column("event_time", at)

    def _confirmed(self, posted_s: float, receipt: Any) -> None:
        if not receipt.cancelled() and receipt.exception() is None:
            self._stored_from_s = max(self._stored_from_s, posted_s)
            self.stored += receipt.result().messages
