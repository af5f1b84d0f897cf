"""`anabranch consume`: messages to standard output, acknowledged once printed."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import signal
import sys
from typing import Any

from anabranch.cli.options import UsageError
from anabranch.client import Client, Consumer, Message
from anabranch.client.simple import EndOfTopic
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
    queue: asyncio.Queue[Message | Exception] = asyncio.Queue()
    try:
        async with Client(arguments.service_url) as client:
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
    except asyncio.CancelledError:
        return 0
    return 0


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
        shown = (
            json.dumps(_described(found), ensure_ascii=False).encode() if arguments.json else found.payload
        )
        sys.stdout.buffer.write(shown + b"\n")
        sys.stdout.buffer.flush()
        consumers[found.topic].taken()
        await consumers[found.topic].ack(found)
        count += 1


def _described(message: Message) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": message.id,
        "topic": message.topic,
        "key": message.key,
        "properties": dict(message.properties),
        "producer": message.producer,
        "sequenceId": message.sequence_id,
        "publishTime": message.publish_time_ms,
        "eventTime": message.event_time_ms or None,
        "redeliveries": message.redeliveries,
    }
    try:
        described["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        described["payloadBase64"] = base64.b64encode(message.payload).decode()
    return described
