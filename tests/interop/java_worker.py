"""One of Pulsar's Java clients in a process of its own, which does what it is told beside our clients."""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from pathlib import Path

from harness.broker_process import BrokerProcess
from interop.java_program import PROJECT, QUIET
from interop.sharers import WITHIN_S, History

# The released client, 5.0.0-M1.
RELEASED = (f"{PROJECT}/target/interop.jar", f"{PROJECT}/target/libs/*")
LINE_SECONDS_MAX = 60.0


class JavaWorker:
    """What it receives goes into the history."""

    def __init__(self, process: Process, history: History) -> None:
        self.received = 0
        self._history = history
        self._process = process
        self._lines: asyncio.Queue[str] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())  # Ended by `close`.

    @staticmethod
    async def start(
        broker: BrokerProcess,
        history: History,
        *arguments: str,
        complaints: Path,
        classpath: Sequence[str] = RELEASED,
    ) -> JavaWorker:
        """Returns once it is subscribed, or has its producer."""
        command = ["java", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        command += ["-cp", ":".join(classpath), "anabranch.interop.Worker", broker.url, *arguments]
        with complaints.open("a") as errors:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, stderr=errors, env=os.environ | QUIET
            )
        worker = JavaWorker(process, history)
        await worker._said("ready")
        return worker

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            word, _, rest = line.decode().strip().partition(" ")
            if word == "got":
                key, _, number = rest.partition(":")
                self.received += 1
                self._history.add(key, int(number))
            else:
                self._lines.put_nowait(f"{word} {rest}".strip())
        self._lines.put_nowait("ended")

    async def _said(self, expected: str) -> None:
        async with asyncio.timeout(LINE_SECONDS_MAX):
            line = await self._lines.get()
        assert line == expected, f"it said {line!r} instead of {expected!r}"

    async def tell(self, word: str, answer: str | None = None) -> None:
        """Returns once it has answered."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        await self._process.stdin.drain()
        await self._said(answer or word)

    async def send(self, count: int, *, in_turn: bool = False) -> None:
        """For a producer: returns once all are stored. `in_turn`: each before the next is sent."""
        self._history.sent += count
        await self.tell(f"each {count}" if in_turn else str(count), f"sent {count}")

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(WITHIN_S):
                await self._process.wait()
        finally:
            await self.die()

    async def die(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._reading.cancel()
        await asyncio.wait([self._reading])

    async def __aenter__(self) -> JavaWorker:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        await (self.die() if kind is not None else self.close())
