"""`anabranch consume`: prints messages to standard output, and acknowledges them once printed."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from anabranch.cli.messages.checkpoint_file import CheckpointFile
from anabranch.cli.messages.last_messages import last_messages
from anabranch.cli.messages.receiving import MESSAGES_AT_ONCE, Consumer, ReceiveLimits, Receiving
from anabranch.cli.messages.resolve_topic import FoundTopic, check_reachable, find
from anabranch.cli.messages.signals import CommandStopping
from anabranch.cli.messages.signals import run as run_loop
from anabranch.cli.messages.start_places import Place, begin_at, start_of, subscribed_at
from anabranch.cli.parsing.access import connect_options, security_of
from anabranch.cli.parsing.options import UsageError, pairs
from anabranch.cli.render.message import Printer, printer
from anabranch.cli.render.progress import Bar, is_terminal, summary
from anabranch.client import (
    CheckpointConsumer,
    Client,
    Message,
    MessageId,
    NamespaceQueueConsumer,
    NamespaceStreamConsumer,
    QueueConsumer,
    StreamConsumer,
    connect,
)
from anabranch.client.consuming.core.checkpoint import Start
from anabranch.client.errors import AccessFailed, BadCheckpoint, DataLost, TopicMadeAgain
from anabranch.client.schema.any import AnySchema
from anabranch.client.security import NOBODY
from anabranch.client.transport.rest import NotAnswered, call, topic_path

# The names of these kinds in Pulsar's own tools.
KINDS: Final = {"exclusive": "stream", "failover": "stream", "shared": "queue"}


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    return run_loop(_consume(arguments))


def _check(arguments: argparse.Namespace) -> None:
    """Checks the options, and sets the kind of consumer in `arguments`."""
    if arguments.num is not None and arguments.num < 1:
        raise UsageError("--num must be at least 1")
    arguments.num = arguments.num or 0  # 0: no limit.
    if arguments.timeout is not None and arguments.timeout <= 0:
        raise UsageError(f"--timeout {arguments.timeout:g}: give a number of seconds above 0")
    if (arguments.topic is None) == (arguments.namespace is None):
        raise UsageError("give a topic, or --namespace TENANT/NAMESPACE for all scalable topics of one")
    if arguments.filter and arguments.namespace is None:
        raise UsageError("--filter chooses topics of a namespace: it goes with --namespace")
    if arguments.json and arguments.output not in (None, "json"):
        raise UsageError(f"--json is --output json: leave it out, or --output {arguments.output}")
    arguments.output = "json" if arguments.json else arguments.output or "value"
    if arguments.output in ("json", "table") and arguments.key_separator is not None:
        raise UsageError(f"--output {arguments.output} shows keys by itself: leave --key-separator out")
    if arguments.type == "key_shared":
        raise UsageError(
            "--type key_shared is not for this command: stream keeps the order of each key and shares the segments "
            "among its consumers, queue shares single messages without an order"
        )
    if arguments.last is not None and (arguments.subscription or arguments.type not in (None, "checkpoint")):
        raise UsageError("--last reads without a subscription: leave --subscription and --type out")
    if arguments.last is None and arguments.start is None:
        arguments.last = arguments.last_by_default
    if not arguments.follow and arguments.last is None:
        raise UsageError("--no-follow ends after the last messages: give --last N instead of --start")
    arguments.kind = KINDS.get(arguments.type, arguments.type) or (
        "checkpoint" if arguments.checkpoint or arguments.last is not None else "stream"
    )
    if arguments.kind == "checkpoint":
        _check_checkpoint(arguments)
    elif arguments.checkpoint is not None:
        raise UsageError(
            f"--checkpoint keeps the place of --type checkpoint; {arguments.type} has a subscription"
        )
    elif arguments.subscription is None:
        raise UsageError("give --subscription NAME, or --type checkpoint to read without a subscription")


def _check_checkpoint(arguments: argparse.Namespace) -> None:
    if arguments.namespace is not None:
        raise UsageError("--type checkpoint reads one topic: give its name instead of --namespace")
    if arguments.subscription is not None:
        raise UsageError("--type checkpoint has no subscription: leave --subscription out")
    if arguments.no_ack:
        raise UsageError("--type checkpoint acknowledges nothing anyway: leave --no-ack out")
    if arguments.last is not None and arguments.start is not None:
        raise UsageError("--last and --start are two places to begin at: give one")
    if arguments.last is not None and arguments.last < 0:
        raise UsageError("--last must not be negative")
    if arguments.checkpoint and arguments.last and 0 < arguments.num < arguments.last:
        raise UsageError(
            f"--num {arguments.num} prints fewer than --last {arguments.last}, and --checkpoint would continue behind "
            "the others: give the same number"
        )


async def _consume(arguments: argparse.Namespace) -> int:
    place = CheckpointFile(Path(arguments.checkpoint)) if arguments.checkpoint else None
    kept = place.read() if place is not None else None
    start = kept or start_of(arguments.start or "latest")
    found: FoundTopic | None = None
    newness: str | None = None
    with CommandStopping() as stopping:
        if arguments.topic is not None:
            found = await find(
                arguments.service_url,
                arguments.topic,
                create=arguments.create,
                security=security_of(arguments),
            )
            if not arguments.quiet and (told := found.other_kind(arguments.topic)) is not None:
                print(told, file=sys.stderr)
            newness = found.newness(arguments.topic)
            # Opened by its real name: of another kind the client would tell once more.
            arguments.topic = str(found.name)
        else:
            await check_reachable(arguments.service_url, security_of(arguments))
        if arguments.kind != "checkpoint" and not isinstance(start, str):
            start = await asyncio.to_thread(subscribed_at, arguments, found, start)
        async with connect(arguments.service_url, **connect_options(arguments)) as client:
            consumer, first = await _opened(arguments, client, start, None if kept else found)
            if newness is not None and not arguments.quiet:
                print(newness, file=sys.stderr)
            receiving = Receiving(
                consumer,
                _printer(arguments, found),
                ReceiveLimits(arguments.num, arguments.timeout, arguments.follow),
                stopping,
                is_acking=not arguments.no_ack,
                place=place,
                segments=found.segments if found is not None and found.is_classic else None,
                first=first,
                terminated=_terminated(arguments, found),
            )
            bar = Bar("receiving", receiving.tally, is_shown=_has_bar(arguments))

            def hint() -> None:
                text = _hint(arguments, consumer)
                if text and not arguments.quiet:
                    bar.say(text)

            with bar:
                await receiving.all(hint)
    if not arguments.quiet:
        print(summary(receiving.tally, "received", bar.seconds), file=sys.stderr)
    return receiving.exit_code


def _terminated(
    arguments: argparse.Namespace, found: FoundTopic | None
) -> Callable[[], Awaitable[frozenset[int] | None]] | None:
    """Asks a broker for the segments of a scalable topic, once it was terminated."""
    if found is None or found.is_classic or not found.admin_url:
        return None
    url = f"{found.admin_url.rstrip('/')}/admin/v2/scalable/{topic_path(str(found.name)).partition('/')[2]}"
    security = security_of(arguments) or NOBODY

    def ask() -> frozenset[int] | None:
        try:
            record = json.loads(call("GET", url, security=security).body)
        except (NotAnswered, AccessFailed, ValueError):
            return None  # It is asked again.
        return frozenset(map(int, record["segments"])) if record.get("terminated") else None

    return partial(asyncio.to_thread, ask)


def _printer(arguments: argparse.Namespace, found: FoundTopic | None) -> Printer:
    # The client names every topic topic://, but other commands do not accept that for a classic one.
    name = str(found.name) if found is not None and found.is_classic else None
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    return printer(arguments.output, key_separator=arguments.key_separator, name=name, width=width)


def _has_bar(arguments: argparse.Namespace) -> bool:
    """Printed messages on a terminal show enough progress."""
    return is_terminal() and not arguments.quiet and not sys.stdout.isatty()


async def _opened(
    arguments: argparse.Namespace, client: Client, start: Place, found: FoundTopic | None
) -> tuple[Consumer, list[Message]]:
    """The consumer, and the messages that were read while it was looked for."""
    # Fetches no more than will be printed: an unprinted message is redelivered to another consumer, with its count
    # raised.
    queue = min(arguments.num or MESSAGES_AT_ONCE, MESSAGES_AT_ONCE)
    schema = None if arguments.output == "raw" else AnySchema()
    if arguments.kind == "checkpoint":
        return await _reading(arguments, client, start, queue, schema, found)
    assert isinstance(start, str)
    options: dict[str, Any] = {
        "subscription": arguments.subscription,
        "start": start,
        "receive_queue": queue,
        "schema": schema,
    }
    make = client.queue_consumer if arguments.kind == "queue" else client.stream_consumer
    if arguments.namespace is None:
        return cast(Consumer, await make(arguments.topic, **options)), []
    filters = pairs(arguments.filter, "--filter")
    consumer = await make(namespace=arguments.namespace, property_filters=filters, **options)
    return cast(Consumer, consumer), []


async def _reading(
    arguments: argparse.Namespace,
    client: Client,
    start: Place,
    queue: int,
    schema: AnySchema | None,
    found: FoundTopic | None,
) -> tuple[CheckpointConsumer, list[Message]]:
    async def opened(begin: Start) -> CheckpointConsumer:
        return await client.checkpoint_consumer(
            arguments.topic, start=begin, receive_queue=queue, schema=schema, create=arguments.create
        )

    try:
        if arguments.last:
            queue = MESSAGES_AT_ONCE
            return await last_messages(arguments.last, opened, time.time())
        if isinstance(start, MessageId):
            assert found is not None
            start = await begin_at(start, found, opened)
        return await opened(start), []
    except TopicMadeAgain as error:
        raise UsageError(
            f"{error}; to read the present topic, remove {arguments.checkpoint} and --start again"
        ) from None
    except BadCheckpoint as error:
        raise UsageError(f"--checkpoint {arguments.checkpoint}: {error}") from None
    except DataLost as error:
        if arguments.checkpoint is None:
            raise
        raise UsageError(f"{error}; to skip that, remove {arguments.checkpoint} and --start again") from None


def _hint(arguments: argparse.Namespace, consumer: Consumer) -> str:
    """Why no message may have come, for a waiting user; empty if there is no such reason."""
    held = f"nothing came yet: {arguments.subscription} is held by other consumers"
    match consumer:
        case NamespaceStreamConsumer() | NamespaceQueueConsumer():
            if not consumer.topics:
                return "nothing came yet: no topic is like that so far, and those to come will be read"
        case StreamConsumer():
            if not consumer.assigned:
                return f"{held}, which read all segments; this one gets some when one of them leaves"
            if not consumer.attached:
                return f"{held}; this one goes on trying"
        case QueueConsumer():
            if not consumer.attached:
                return f"{held}, not as a queue; this one goes on trying"
    if not is_terminal():
        return ""
    if arguments.start in (None, "latest") and not arguments.checkpoint and arguments.last is None:
        return "nothing came yet; what was there before is left out, unless you --start earliest"
    return "nothing came yet; Ctrl-C ends"
