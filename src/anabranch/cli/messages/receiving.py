"""Receives messages, prints them, and acknowledges the printed ones. Loses nothing, however it ends.

One task receives messages, another prints them: at full speed a thousand at a time, and a single one at once. A thread
does the writing: the reader of our output may be slow, and the broker must not consider this client dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from anabranch.cli.messages.checkpoint_file import CheckpointFile
from anabranch.cli.messages.signals import CommandStopping
from anabranch.cli.parsing.options import UsageError
from anabranch.cli.render.message import Printer
from anabranch.cli.render.progress import RunTally
from anabranch.client import (
    CheckpointConsumer,
    Message,
    NamespaceQueueConsumer,
    NamespaceStreamConsumer,
    QueueConsumer,
    StreamConsumer,
)

Consumer = (
    StreamConsumer | QueueConsumer | CheckpointConsumer | NamespaceStreamConsumer | NamespaceQueueConsumer
)

MESSAGES_AT_ONCE: Final = 1000
CHECKPOINT_EVERY_S: Final = 1.0
# A user who has seen nothing for this long is given a hint.
SILENCE_S: Final = 2.0
# The precision of time-outs.
TICK_S: Final = 0.2
# How often it is asked whether a topic was terminated whose segments have ended.
END_EVERY_S: Final = 1.0


class ReceiveLimits(NamedTuple):
    messages: int  # 0: no limit.
    silence_s: float | None
    is_following: bool = True  # False: only what was received before.


class Receiving:
    """Receives and prints. `segments` is the number of partitions of a classic topic, which may end; None for other
    topics."""

    def __init__(
        self,
        consumer: Consumer,
        show: Printer,
        limits: ReceiveLimits,
        stopping: CommandStopping,
        *,
        is_acking: bool = True,
        place: CheckpointFile | None = None,
        segments: int | None = None,
        first: Sequence[Message] = (),
        terminated: Callable[[], Awaitable[frozenset[int] | None]] | None = None,
    ) -> None:
        """`first` has messages that the consumer has given already. `terminated` asks for the segments of a scalable
        topic that was terminated; None if it was not."""
        self.tally = RunTally(part=0.0 if limits.messages else None)
        self._consumer = consumer
        self._show = show
        self._limits = limits
        self._stopping = stopping
        self._is_acking = is_acking
        self._place = place
        self._segments = segments
        self._terminated = terminated
        self._asked_at = 0.0
        self._taken: list[Message] = list(first)
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._saved_at = 0.0

    @property
    def exit_code(self) -> int:
        if self.tally.messages >= self._limits.messages:
            return 0  # Also after a signal, the usual end of a run that has no other.
        return self._stopping.exit_code if self._stopping else 1

    async def all(self, hint: Callable[[], None]) -> None:
        """Returns when the last message is printed, when no more come, or when the command is to end."""
        if self._limits.messages:
            del self._taken[self._limits.messages :]
        if self._taken:
            await self._print()
        if not self._limits.is_following or 0 < self._limits.messages <= self.tally.messages:
            return
        self._stopping.listen(self._wake.set)
        taking = asyncio.create_task(self._take())
        taking.add_done_callback(lambda _: self._wake.set())
        try:
            await self._print_until_over(taking, hint)
        finally:
            taking.cancel()
            await asyncio.wait([taking])
        await self._print(is_last=True)
        if self._is_acking:
            await self._consumer.flush()
        if not taking.cancelled():
            taking.result()

    async def _take(self) -> None:
        left = self._limits.messages - self.tally.messages
        async for message in self._consumer:
            taken = self._taken
            taken.append(message)
            if len(taken) == 1:
                self._wake.set()
            left -= 1
            if left == 0:
                return
            if len(taken) >= MESSAGES_AT_ONCE:
                self._room.clear()
                await self._room.wait()

    async def _print_until_over(self, taking: asyncio.Task[None], hint: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        silent_since = loop.time()
        is_hinted = False
        while not (taking.done() or self._stopping or self._has_ended() or await self._has_reached_end()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._wake.wait()
            self._wake.clear()
            if self._taken:
                await self._print()
                silent_since = loop.time()
            silence_s = loop.time() - silent_since
            if self._limits.silence_s is not None and silence_s >= self._limits.silence_s:
                return
            if silence_s >= SILENCE_S and not is_hinted and not self.tally.messages:
                is_hinted = True
                hint()

    def _has_ended(self) -> bool:
        """Whether a classic topic was terminated, and all its messages are acknowledged, or read."""
        if self._segments is None or self._taken:
            return False
        if isinstance(self._consumer, QueueConsumer | StreamConsumer):
            return len(self._consumer.drained) >= self._segments
        return isinstance(self._consumer, CheckpointConsumer) and not self._consumer.reading

    async def _has_reached_end(self) -> bool:
        """Whether a scalable topic was terminated, and nothing is left of it here. Its segments end at each split, too:
        so the broker is asked."""
        if self._terminated is None or self._taken or not self._may_have_ended():
            return False
        now = asyncio.get_running_loop().time()
        if now - self._asked_at < END_EVERY_S:
            return False
        self._asked_at = now
        segments = await self._terminated()
        if segments is None or self._taken or not self._may_have_ended():
            return False
        return not isinstance(self._consumer, QueueConsumer) or segments <= self._consumer.drained

    def _may_have_ended(self) -> bool:
        match self._consumer:
            case QueueConsumer() as queue:
                return bool(queue.drained)
            case StreamConsumer() as stream:
                return bool(stream.assigned) and stream.drained == stream.assigned
            case CheckpointConsumer() as reader:
                return not reader.reading
        return False

    # -- printing

    async def _print(self, *, is_last: bool = False) -> None:
        messages, self._taken = self._taken, []
        self._room.set()
        # The checkpoint covers every message received so far. That is right once `messages` are printed.
        checkpoint = self._checkpoint(is_last)
        if messages:
            await asyncio.to_thread(_write, self._show(messages))
            self.tally.messages += len(messages)
            self.tally.bytes += sum(len(message.payload) for message in messages)
            if self._limits.messages:
                self.tally.part = self.tally.messages / self._limits.messages
            if self._is_acking:
                await self._ack(messages)
        if checkpoint is not None and self._place is not None:
            await asyncio.to_thread(self._place.write, checkpoint)

    async def _ack(self, messages: Sequence[Message]) -> None:
        consumer = self._consumer
        if isinstance(consumer, StreamConsumer | NamespaceStreamConsumer):
            await consumer.ack_cumulative(messages[-1])
        elif isinstance(consumer, QueueConsumer | NamespaceQueueConsumer):
            for message in messages:
                await consumer.ack(message)

    def _checkpoint(self, is_last: bool) -> bytes | None:
        if self._place is None or not isinstance(self._consumer, CheckpointConsumer):
            return None
        now = asyncio.get_running_loop().time()
        if not is_last and now - self._saved_at < CHECKPOINT_EVERY_S:
            return None
        self._saved_at = now
        return self._consumer.checkpoint()


def _write(data: bytes) -> None:
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(f"cannot write the messages: {error.strerror}") from None
