"""`anabranch produce`: messages from the command line or standard input."""

from __future__ import annotations

import argparse
import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator
from itertools import cycle

from anabranch.cli.options import UsageError, pairs
from anabranch.cli.reach import check_reachable
from anabranch.client import connect
from anabranch.client.simple import Client as PlainClient
from anabranch.model.keyhash import partition_of
from anabranch.model.names import Domain, TopicName

LINE_BYTES_MAX = 8 << 20


def run(arguments: argparse.Namespace) -> int:
    if arguments.num < 1:
        raise UsageError("--num must be at least 1")
    if arguments.num > 1 and not arguments.message:
        raise UsageError("--num repeats messages given with -m; standard input is sent once")
    return asyncio.run(_produce(arguments))


async def _produce(arguments: argparse.Namespace) -> int:
    properties = pairs(arguments.property, "--property")
    is_scalable = TopicName.parse(arguments.topic).domain is Domain.TOPIC
    count = await (_to_scalable if is_scalable else _to_classic)(arguments, properties)
    print(f"{count} message{'' if count == 1 else 's'} stored", file=sys.stderr)
    return 0


async def _to_scalable(arguments: argparse.Namespace, properties: dict[str, str]) -> int:
    count = 0
    await check_reachable(arguments.service_url)
    async with connect(arguments.service_url) as client, client.producer(arguments.topic) as producer:
        async for payload in _messages(arguments):
            await producer.post(payload, key=arguments.key, properties=properties)
            count += 1
        await producer.flush()
    return count


async def _to_classic(arguments: argparse.Namespace, properties: dict[str, str]) -> int:
    count = 0
    async with PlainClient(arguments.service_url) as client:
        topics = await client.partitions(arguments.topic)
        if arguments.key is not None:
            # As Pulsar's clients choose by default, so that a key stays in its partition whoever sends it.
            topics = [topics[partition_of(arguments.key, len(topics))]]
        producers = [await client.producer(topic) for topic in topics]
        turn = cycle(producers)
        async for payload in _messages(arguments):
            await next(turn).send(payload, key=arguments.key, properties=properties)
            count += 1
        for producer in producers:
            await producer.close()
    return count


async def _messages(arguments: argparse.Namespace) -> AsyncIterator[bytes]:
    if arguments.message:
        for _ in range(arguments.num):
            for text in arguments.message:
                yield text.encode(errors="surrogateescape")
        return
    async for line in _lines():
        yield line.removesuffix(b"\n").removesuffix(b"\r")


async def _lines() -> AsyncIterator[bytes]:
    """Standard input, line by line, without keeping receipts and pings waiting for the next one."""
    if stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode):
        # A file is always ready, and cannot be watched.
        for line in sys.stdin.buffer:
            yield line
        return
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        while line := await _line(reader):
            yield line
    finally:
        transport.close()


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ValueError:
        raise UsageError(f"a line of standard input is over {LINE_BYTES_MAX} bytes") from None
