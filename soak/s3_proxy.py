"""A proxy before an object store that speaks S3: it answers as late as S3 does, and does what S3 does on bad days.

    python -m soak.s3_proxy --store http://127.0.0.1:9000 --port 9100 --busy 0.05 --lost 0.01

Requests are passed on byte by byte, with the Host header, so signatures stay good. What a request meets is drawn from
a seed: it is passed on after a while; refused as busy (503) or as a conflict (409, only of conditional puts) without
being passed on; passed on without its answer coming back (*lost*); or only half of it arrives (*cut*). `away` cuts all
connections until it is taken back. For one machine: it listens on the loopback interface only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

# (share of requests, seconds): half within the first, 99 % within the third. S3 Standard in its own region, as users
# have published it; nothing here was recorded by us.
PUTS: Final = ((0.0, 0.015), (0.5, 0.040), (0.9, 0.120), (0.99, 0.300), (1.0, 1.0))
GETS: Final = ((0.0, 0.008), (0.5, 0.025), (0.9, 0.060), (0.99, 0.180), (1.0, 0.8))
NOTHING: Final = ((0.0, 0.0), (1.0, 0.0))

_HEAD_BYTES_MAX: Final = 64 << 10
_PIECE_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class Weather:
    puts: Sequence[tuple[float, float]] = PUTS
    gets: Sequence[tuple[float, float]] = GETS
    # Shares of requests.
    busy: float = 0.0
    conflict: float = 0.0
    lost: float = 0.0
    cut: float = 0.0


def drawn(quantiles: Sequence[tuple[float, float]], share: float) -> float:
    """The seconds below which that share of requests is answered, between the quantiles in a straight line."""
    at = min(bisect_right(quantiles, share, key=lambda one: one[0]), len(quantiles) - 1)
    (low, first), (high, last) = quantiles[at - 1], quantiles[at]
    return first + (last - first) * (share - low) / (high - low)


@dataclass(frozen=True, slots=True)
class _Head:
    """The first lines of a request or an answer, as they came, and what they say of the body."""

    data: bytes
    first: str
    length: int
    is_chunked: bool
    is_conditional: bool

    @property
    def method(self) -> str:
        return self.first.partition(" ")[0]


class S3Proxy:
    def __init__(self, store: str, weather: Weather, seed: int = 1) -> None:
        parts = urlsplit(store)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self.weather = weather
        self._chance = random.Random(seed)
        self._server: asyncio.Server | None = None
        # Awaited by `close`.
        self._connections: set[asyncio.Task[None]] = set()
        self._is_away = False
        self.done: Counter[str] = Counter()

    async def start(self, port: int = 0) -> int:
        """The port that it listens on."""
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", port, limit=_HEAD_BYTES_MAX)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._cut_all()

    async def away(self, is_away: bool) -> None:
        self._is_away = is_away
        if is_away:
            await self._cut_all()

    async def _cut_all(self) -> None:
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        store: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            while not self._is_away and (head := await _head(reader)) is not None:
                if store is None:
                    store = await asyncio.open_connection(self._host, self._port, limit=_HEAD_BYTES_MAX)
                if not await self._serve(head, reader, writer, *store):
                    break
        except (OSError, asyncio.IncompleteReadError, ValueError, asyncio.CancelledError):
            self.done["broken"] += 1
        finally:
            self._connections.discard(task)
            for one in (writer, *([store[1]] if store is not None else [])):
                one.transport.abort()

    async def _serve(
        self,
        head: _Head,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        from_store: asyncio.StreamReader,
        to_store: asyncio.StreamWriter,
    ) -> bool:
        """True if the connection goes on."""
        weather = self.weather
        draw = self._chance.random()
        seconds = drawn(
            weather.puts if head.method in ("PUT", "POST") else weather.gets, self._chance.random()
        )
        if (draw := draw - weather.busy) < 0:
            return await self._refuse(head, reader, writer, "503 Slow Down", "SlowDown")
        if head.is_conditional and (draw := draw - weather.conflict) < 0:
            return await self._refuse(head, reader, writer, "409 Conflict", "ConditionalRequestConflict")
        if (draw := draw - weather.cut) < 0 and head.length > 1:
            to_store.write(head.data)
            to_store.write(await reader.readexactly(head.length // 2))
            self.done["cut"] += 1
            return False
        to_store.write(head.data)
        await _pass_on(head, reader, to_store)
        answer = await _head(from_store)
        if answer is None:
            return False
        if head.method == "HEAD" or answer.first.split(" ")[1] in ("204", "304"):
            answer = _Head(answer.data, answer.first, 0, False, False)
        await asyncio.sleep(seconds)
        if draw - weather.lost < 0:
            self.done["lost"] += 1
            return False
        writer.write(answer.data)
        await _pass_on(answer, from_store, writer)
        self.done[head.method] += 1
        return True

    async def _refuse(
        self,
        head: _Head,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        status: str,
        code: str,
    ) -> bool:
        left = head.length
        while left:
            left -= len(await reader.readexactly(min(left, _PIECE_BYTES)))
        body = f"<Error><Code>{code}</Code></Error>".encode()
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        self.done[status[:3]] += 1
        return True


async def _head(reader: asyncio.StreamReader) -> _Head | None:
    """None at the end of the connection."""
    with contextlib.suppress(asyncio.IncompleteReadError):
        data = await reader.readuntil(b"\r\n\r\n")
        first, *lines = data.decode("latin-1").split("\r\n")
        fields = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        is_chunked = "chunked" in fields.get("transfer-encoding", "")
        return _Head(data, first, int(fields.get("content-length", 0)), is_chunked, "if-none-match" in fields)
    return None


async def _pass_on(head: _Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The body behind a head."""
    if head.is_chunked:
        size = -1
        while size:
            line = await reader.readuntil(b"\r\n")
            size = int(line.partition(b";")[0], 16)
            writer.write(line)
            writer.write(await reader.readexactly(size + 2))
            await writer.drain()
        return
    left = head.length
    while left:
        piece = await reader.readexactly(min(left, _PIECE_BYTES))
        left -= len(piece)
        writer.write(piece)
        await writer.drain()
    await writer.drain()


async def _main() -> None:
    parser = argparse.ArgumentParser(prog="soak.s3_proxy", description=__doc__)
    parser.add_argument("--store", required=True, help="the store, as in http://127.0.0.1:9000")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    for name in ("busy", "conflict", "lost", "cut"):
        parser.add_argument(f"--{name}", type=float, default=0.0, help="share of requests")
    args = parser.parse_args()
    weather = Weather(busy=args.busy, conflict=args.conflict, lost=args.lost, cut=args.cut)
    proxy = S3Proxy(args.store, weather, args.seed)
    print(f"http://127.0.0.1:{await proxy.start(args.port)}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
