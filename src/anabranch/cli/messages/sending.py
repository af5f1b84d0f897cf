"""How `anabranch produce` posts messages and counts receipts: no message is stored without being counted."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from anabranch.cli.messages.line_source import Keyed
from anabranch.cli.messages.signals import CommandStopping
from anabranch.cli.messages.sources import Rows, Source
from anabranch.cli.messages.tables import table_of, value_bytes
from anabranch.cli.parsing.options import UsageError
from anabranch.cli.render.progress import RunTally, plural
from anabranch.client import Producer
from anabranch.client.errors import TimedOut
from anabranch.errors import AnabranchError

# The largest message in a table of lines; larger ones are sent singly.
TABLED_BYTES_MAX: Final = 64 * 1024
# How late a message may be with --rate, for the sake of fewer timers.
RATE_GRAIN_S: Final = 0.001


class NotAllStored(AnabranchError):
    """Some messages are not stored, or may not be; the message says how many are."""


class MessageSending:
    """Posts messages as they come, and counts receipts.

    `post` is never cancelled, so every message counted as posted was posted.
    """

    def __init__(
        self,
        producer: Producer,
        source: Source,
        properties: dict[str, str] | None,
        rate: float | None,
        stopping: CommandStopping,
    ) -> None:
        self.tally = RunTally(part=source.part(0.0))
        self.is_tabling = False
        self._producer = producer
        self._source = source
        self._properties = properties
        self._rate = rate
        self._stopping = stopping
        self._posted = 0
        self._posted_bytes = 0
        # How many messages had been posted before the source's last part, and the size of that part.
        self._chunk = (0, 1)
        # Each receipt with its number of messages. Receipts come nearly in order, so counting the first ones suffices.
        self._receipts: deque[tuple[asyncio.Future[Any], int]] = deque()
        self._answered = 0
        self._first_failed: int | None = None

    @property
    def pending(self) -> int:
        return self._posted - self._answered

    async def all(self) -> None:
        """Returns once everything is posted, or the command is to end."""
        try:
            while not self._stopping:
                found = await self._stopping.unless_asked(self._source.next())
                if found is None or not len(found):
                    self._chunk = (self._posted, 0)
                    return
                self._chunk = (self._posted, len(found))
                await self._post(found)
                self.look()
                if self._first_failed is not None:
                    # Continuing would leave a hole in the order.
                    return
        except UsageError as wrong:
            # Only this part of the input is wrong: messages before it stay sent.
            await self.flushed()
            if not self._posted:
                raise
            verb = "is" if self._posted == 1 else "are"
            raise UsageError(
                f"{wrong} (the {plural(self._posted)} up to {self._last_told()} {verb} stored)"
            ) from None
        except AnabranchError as error:
            raise self._told(error) from None

    async def _post(self, found: Any) -> None:
        if isinstance(self._source, Rows):
            await self._post_table(found, self._source.key, self._source.value)
        elif self.is_tabling and all(len(value) < TABLED_BYTES_MAX for _, value in found):
            await self._post_table(table_of(found), "key", "value")
        else:
            await self._post_each(found)

    async def _post_each(self, messages: list[Keyed]) -> None:
        post, properties, add = self._producer.post, self._properties, self._receipts.append
        for key, value in messages:
            if self._stopping or (self._rate is not None and not await self._is_due(self._rate)):
                return
            add((await post(value, key=key, properties=properties), 1))
            self._posted += 1
            self._posted_bytes += len(value)

    async def _is_due(self, rate: float) -> bool:
        """Waits until the next message may be sent; False if the command is to end before."""
        loop = asyncio.get_running_loop()
        if self._posted == 0:
            self._began = loop.time()
        early_s = self._began + self._posted / rate - loop.time()
        if early_s > RATE_GRAIN_S:
            await self._stopping.unless_asked(asyncio.sleep(early_s))
        return not self._stopping

    async def _post_table(self, table: Any, key: str | None, value: str) -> None:
        self._receipts.append((await self._producer.post_batch(table, key=key, value=value), table.num_rows))
        self._posted += table.num_rows
        self._posted_bytes += value_bytes(table[value])

    def _last_told(self) -> str:
        return self._source.where(self._posted - 1)

    def look(self) -> None:
        """Counts the messages stored by now."""
        receipts = self._receipts
        while receipts and receipts[0][0].done():
            receipt, count = receipts.popleft()
            if receipt.cancelled() or receipt.exception() is not None:
                if self._first_failed is None:
                    self._first_failed = self._answered
            else:
                self.tally.messages += count
            self._answered += count
        stored = self.tally.messages / max(1, self._posted)
        self.tally.bytes = round(self._posted_bytes * stored)
        before, given = self._chunk
        part = self._source.part((self._posted - before) / given if given else 1.0)
        self.tally.part = None if part is None else part * stored

    async def flushed(self) -> None:
        """Returns once all posted messages are stored; NotAllStored if some are not."""
        try:
            await self._producer.flush()
        except AnabranchError as error:
            raise self._told(error) from None
        finally:
            self.look()

    def _told(self, error: AnabranchError) -> NotAllStored:
        self.look()
        if isinstance(error, TimedOut):
            told = error.__cause__ or "is it in trouble?"
            reason = f"the broker sent no receipts in time: {told}; --timeout allows more"
        else:
            # The client's advice is for programs.
            reason = str(error).replace("chunking=True", "--chunking")
        if not self._posted:
            return NotAllStored(reason)
        first = self._answered if self._first_failed is None else self._first_failed
        return NotAllStored(
            f"{reason} ({self.tally.messages:,} of {plural(self._posted)} stored; "
            f"the first that may not be is {self._source.where(first)})"
        )
