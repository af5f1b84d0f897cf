"""`anabranch consume`: prints messages to standard output, and acknowledges them once printed."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from pathlib import Path
from typing import Any, Final, cast

from anabranch.cli.messages.checkpoint_file import CheckpointFile
from anabranch.cli.messages.receiving import MESSAGES_AT_ONCE, Consumer, ReceiveLimits, Receiving
from anabranch.cli.messages.resolve_topic import FoundTopic, check_reachable, find
from anabranch.cli.messages.signals import CommandStopping
from anabranch.cli.messages.signals import run as run_loop
from anabranch.cli.parsing.access import connect_options, security_of
from anabranch.cli.parsing.options import UsageError, pairs
from anabranch.cli.render.message import Printer, printer
from anabranch.cli.render.progress import Bar, is_terminal, summary
from anabranch.client import (
    CheckpointConsumer,
    Client,
    NamespaceQueueConsumer,
    NamespaceStreamConsumer,
    QueueConsumer,
    StreamConsumer,
    connect,
)
from anabranch.client.consuming.core.checkpoint import Start
from anabranch.client.errors import BadCheckpoint, DataLost, TopicMadeAgain

# The names of these kinds in Pulsar's own tools.
KINDS: Final = {"exclusive": "stream", "failover": "stream", "shared": "queue"}


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    return run_loop(_consume(arguments))


def _check(arguments: argparse.Namespace) -> None:
    """Checks the options, and sets the kind of consumer in `arguments`."""
    if arguments.num < 0:
        raise UsageError("--num must not be negative")
    if arguments.timeout is not None and arguments.timeout <= 0:
        raise UsageError(f"--timeout {arguments.timeout:g}: give a number of seconds above 0")
    if (arguments.topic is None) == (arguments.namespace is None):
        raise UsageError("give a topic, or --namespace TENANT/NAMESPACE for all scalable topics of one")
    if arguments.filter and arguments.namespace is None:
        raise UsageError("--filter chooses topics of a namespace: it goes with --namespace")
    if arguments.json and arguments.key_separator is not None:
        raise UsageError("--json shows keys by itself: leave --key-separator out")
    if arguments.type == "key_shared":
        raise UsageError(
            "--type key_shared is not for this command: stream keeps the order of each key and shares the segments "
            "among its consumers, queue shares single messages without an order"
        )
    arguments.kind = KINDS.get(arguments.type, arguments.type) or (
        "checkpoint" if arguments.checkpoint else "stream"
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


async def _consume(arguments: argparse.Namespace) -> int:
    place = CheckpointFile(Path(arguments.checkpoint)) if arguments.checkpoint else None
    start = (place.read() if place is not None else None) or _start(arguments)
    found: FoundTopic | None = None
    with CommandStopping() as stopping:
        if arguments.topic is not None:
            found = await find(arguments.service_url, arguments.topic, security=security_of(arguments))
        else:
            await check_reachable(arguments.service_url, security_of(arguments))
        async with connect(arguments.service_url, **connect_options(arguments)) as client:
            consumer = await _opened(arguments, client, start)
            receiving = Receiving(
                consumer,
                _printer(arguments, found),
                ReceiveLimits(arguments.num, arguments.timeout),
                stopping,
                is_acking=not arguments.no_ack,
                place=place,
                segments=found.segments if found is not None and found.is_classic else None,
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


def _printer(arguments: argparse.Namespace, found: FoundTopic | None) -> Printer:
    # The client names every topic topic://, but other commands do not accept that for a classic one.
    name = str(found.name) if found is not None and found.is_classic else None
    return printer(is_json=arguments.json, key_separator=arguments.key_separator, name=name)


def _has_bar(arguments: argparse.Namespace) -> bool:
    """Printed messages on a terminal show enough progress."""
    return is_terminal() and not arguments.quiet and not sys.stdout.isatty()


async def _opened(arguments: argparse.Namespace, client: Client, start: Start) -> Consumer:
    # Fetches no more than will be printed: an unprinted message is redelivered to another consumer, with its count
    # raised.
    queue = min(arguments.num or MESSAGES_AT_ONCE, MESSAGES_AT_ONCE)
    if arguments.kind == "checkpoint":
        return await _checkpoint_consumer(arguments, client, start, queue)
    options: dict[str, Any] = {
        "subscription": arguments.subscription,
        "start": start,
        "receive_queue": queue,
    }
    make = client.queue_consumer if arguments.kind == "queue" else client.stream_consumer
    if arguments.namespace is None:
        return cast(Consumer, await make(arguments.topic, **options))
    filters = pairs(arguments.filter, "--filter")
    return cast(Consumer, await make(namespace=arguments.namespace, property_filters=filters, **options))


async def _checkpoint_consumer(
    arguments: argparse.Namespace, client: Client, start: Start, queue: int
) -> CheckpointConsumer:
    try:
        return await client.checkpoint_consumer(arguments.topic, start=start, receive_queue=queue)
    except TopicMadeAgain as error:
        raise UsageError(
            f"{error}; to read the present topic, remove {arguments.checkpoint} and --start again"
        ) from None
    except BadCheckpoint as error:
        raise UsageError(f"--checkpoint {arguments.checkpoint}: {error}") from None
    except DataLost as error:
        raise UsageError(f"{error}; to skip that, remove {arguments.checkpoint} and --start again") from None


def _start(arguments: argparse.Namespace) -> Start:
    """earliest, latest, or a time, which is local unless it names its zone."""
    text: str = arguments.start
    if text in ("earliest", "latest"):
        return cast(Start, text)
    try:
        found = datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise UsageError(f"--start {text}: earliest, latest, or a time such as 2026-01-31T15:00") from None
    if arguments.kind != "checkpoint":
        raise UsageError(f"--start {text}: a time is for --type checkpoint; give earliest or latest")
    return found


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
    if arguments.start == "latest" and not arguments.checkpoint:
        return "nothing came yet; what was there before is left out, unless you --start earliest"
    return "nothing came yet; Ctrl-C ends"
