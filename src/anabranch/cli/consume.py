"""`anabranch consume`: messages to standard output, acknowledged once printed."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from anabranch.cli.options import UsageError
from anabranch.cli.reach import check_reachable
from anabranch.client import Message, connect
from anabranch.client.consumer import From
from anabranch.client.simple import Client as PlainClient
from anabranch.client.simple import Consumer, EndOfTopic
from anabranch.model.names import Domain, TopicName
from anabranch.wire import pulsar_pb2 as pb

TYPES = {
    "exclusive": pb.CommandSubscribe.Exclusive,
    "shared": pb.CommandSubscribe.Shared,
    "failover": pb.CommandSubscribe.Failover,
    "key_shared": pb.CommandSubscribe.Key_Shared,
}


def run(arguments: argparse.Namespace) -> int:
    if arguments.num < 0:
        raise UsageError("--num must not be negative")
    return asyncio.run(_consume(arguments))


async def _consume(arguments: argparse.Namespace) -> int:
    task = asyncio.current_task()
    assert task is not None
    # A signal is the usual way to end this command, and no error: consumers are closed as always.
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        if TopicName.parse(arguments.topic).domain is Domain.TOPIC:
            await _consume_scalable(arguments)
        else:
            await _consume_classic(arguments)
    except asyncio.CancelledError:
        return 0
    return 0


async def _consume_scalable(arguments: argparse.Namespace) -> None:
    """Exclusive and failover keep the order of keys, which is a stream; shared does not, which is a queue."""
    await check_reachable(arguments.service_url)
    start: From = "earliest" if arguments.initial_position == "earliest" else "latest"
    if arguments.type == "key_shared":
        raise UsageError("--type key_shared is for classic topics; exclusive keeps the order of keys here")
    async with connect(arguments.service_url) as client:
        if arguments.type == "shared":
            async with client.queue_consumer(arguments.topic, arguments.subscription, start=start) as queue:
                await _print_each(arguments, queue, queue.ack)
        else:
            async with client.stream_consumer(arguments.topic, arguments.subscription, start=start) as stream:
                await _print_each(arguments, stream, stream.ack_cumulative)


async def _print_each(
    arguments: argparse.Namespace, messages: AsyncIterator[Message], ack: Callable[[Message], Awaitable[None]]
) -> None:
    count = 0
    async for message in messages:
        _print_one(arguments, message)
        await ack(message)
        count += 1
        if count == arguments.num:
            return


async def _consume_classic(arguments: argparse.Namespace) -> None:
    queue: asyncio.Queue[Message | Exception] = asyncio.Queue()
    async with PlainClient(arguments.service_url) as client:
        consumers = {
            topic: await client.consumer(
                topic,
                arguments.subscription,
                kind=TYPES[arguments.type],
                earliest=arguments.initial_position == "earliest",
                queue=queue,
            )
            for topic in await client.partitions(arguments.topic)
        }
        await _print(arguments, consumers, queue)
        for consumer in consumers.values():
            await consumer.close()


async def _print(
    arguments: argparse.Namespace, consumers: dict[str, Consumer], queue: asyncio.Queue[Message | Exception]
) -> None:
    ended = count = 0
    while not arguments.num or count < arguments.num:
        found = await queue.get()
        if isinstance(found, EndOfTopic):
            ended += 1
            if ended == len(consumers):
                return
            continue
        if isinstance(found, Exception):
            raise found
        _print_one(arguments, found)
        consumers[found.topic].taken()
        await consumers[found.topic].ack(found)
        count += 1


def _print_one(arguments: argparse.Namespace, message: Message) -> None:
    described = json.dumps(_described(message), ensure_ascii=False).encode() if arguments.json else None
    sys.stdout.buffer.write((message.payload if described is None else described) + b"\n")
    sys.stdout.buffer.flush()


def _described(message: Message) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": str(message.id),
        "topic": message.topic,
        "key": message.key,
        "properties": dict(message.properties),
        "producer": message.producer,
        "sequenceId": message.sequence_id,
        "publishTime": message.publish_time_ms,
        "eventTime": message.event_time_ms or None,
        "redeliveries": message.redeliveries,
    }
    if message.segment >= 0:
        described["segment"] = message.segment
    try:
        described["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        described["payloadBase64"] = base64.b64encode(message.payload).decode()
    return described
