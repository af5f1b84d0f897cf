"""`anabranch produce`: messages from the command line, from lines of text, or from the rows of a table."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import ExitStack
from typing import Any, Final

from anabranch.cli.messages.encoding import TOPICS_OWN, WORDS, encoding
from anabranch.cli.messages.resolve_topic import FoundTopic, find
from anabranch.cli.messages.sending import MessageSending
from anabranch.cli.messages.signals import CommandStopping
from anabranch.cli.messages.signals import run as run_loop
from anabranch.cli.messages.sources import Source, TextLines, opened
from anabranch.cli.messages.tables import can_make_tables
from anabranch.cli.parsing import profiles
from anabranch.cli.parsing.access import connect_options, security_of
from anabranch.cli.parsing.options import UsageError, pairs
from anabranch.cli.render.progress import Bar, is_terminal, plural, summary
from anabranch.client import Batching, connect
from anabranch.client.security import Security
from anabranch.wire import pulsar_pb2 as pb

# Lines of files from this size on are sent as tables: preparing that takes half a second.
TABLES_FROM_BYTES: Final = 32 << 20
# After this time a user who pressed Ctrl-C is notified why the command takes so long.
PATIENCE_S: Final = 1.0


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    return run_loop(_produce(arguments))


def _check(arguments: argparse.Namespace) -> None:
    sources = [arguments.message is not None, arguments.file is not None, arguments.arrow is not None]
    if sum(sources) > 1:
        raise UsageError("-m, --file and --arrow: give one of them, or none to send lines of standard input")
    if arguments.num < 1:
        raise UsageError("--num must be at least 1")
    if arguments.num > 1 and not arguments.message:
        raise UsageError("--num repeats messages given with -m; files and standard input are sent once")
    if arguments.rate is not None and arguments.rate <= 0:
        raise UsageError(f"--rate {arguments.rate:g}: give a number of messages a second above 0")
    if arguments.timeout < 0:
        raise UsageError(f"--timeout {arguments.timeout:g}: give seconds, or 0 to wait for ever")
    if arguments.format != "lines" and (arguments.message is not None or arguments.arrow is not None):
        raise UsageError(
            "--format is of a file or of standard input: it goes neither with -m nor with --arrow"
        )
    if arguments.format == "parquet" and arguments.file is None:
        raise UsageError("--format parquet reads a file: give --file")
    if arguments.format != "lines" and arguments.key_separator is not None:
        raise UsageError("--key-separator is for lines: --key-field names the field with the keys")
    if arguments.schema is not None and arguments.arrow is not None:
        raise UsageError("--arrow sends bytes as they are: --file FILE --format parquet encodes whole rows")
    if arguments.schema_type is not None and arguments.schema in (None, *WORDS):
        raise UsageError("--schema-type is of the definition in a file: it goes with --schema FILE")
    from_lines = not (arguments.message or arguments.arrow)
    if not from_lines and (arguments.key_separator is not None or arguments.key_field is not None):
        raise UsageError("--key-separator and --key-field are for lines of a file or of standard input")
    if sum(o is not None for o in (arguments.key, arguments.key_separator, arguments.key_field)) > 1:
        raise UsageError("--key, --key-separator and --key-field: give one of them")
    if arguments.arrow is None and arguments.value is not None:
        raise UsageError("--value names a column: it goes with --arrow")
    if arguments.arrow is not None and (arguments.property or arguments.rate is not None):
        raise UsageError("--property and --rate do not go with --arrow")


async def _produce(arguments: argparse.Namespace) -> int:
    properties = pairs(arguments.property, "--property")
    options: dict[str, Any] = {
        "compression": arguments.compression,
        "batching": _batching(arguments),
        "chunking": arguments.chunking,
        "send_timeout_s": arguments.timeout or None,
    }
    security = security_of(arguments)
    if arguments.schema not in (None, TOPICS_OWN):
        # What is wrong with a file is told before a topic is made.
        encoding(arguments.schema, arguments.schema_type, None, arguments.topic)
    with ExitStack() as stack:
        stopping = stack.enter_context(CommandStopping())
        found = await find(arguments.service_url, arguments.topic, for_producing=True, security=security)
        values = encoding(arguments.schema, arguments.schema_type, found.schema, str(found.name))
        source = stack.enter_context(opened(arguments, values))
        if not arguments.quiet:
            _say_before(arguments, found)
        options["schema"] = values.written
        async with connect(arguments.service_url, **connect_options(arguments)) as client:
            producer = await client.producer(str(found.name), **options)
            sending = MessageSending(producer, source, properties or None, arguments.rate, stopping)
            sending.is_tabling = _is_tabling(arguments, source)
            bar = Bar("sending", sending.tally, is_shown=_has_bar(arguments), look=sending.look)
            with bar:
                try:
                    await sending.all()
                    await _settled(sending, stopping, bar)
                finally:
                    # Messages without a receipt are given up; `sending` has reported them, or a second signal ended it.
                    await producer.close(flush=False)
    if not arguments.quiet:
        told = summary(sending.tally, "stored", bar.seconds)
        print(f"{'interrupted: ' if stopping else ''}{told}", file=sys.stderr)
        if (newness := found.newness(arguments.topic)) is not None:
            print(newness, file=sys.stderr)
        if sending.tally.messages and not stopping:
            await _tell_unheard(found, security, _reach(arguments))
    return stopping.exit_code if stopping else 0


def _say_before(arguments: argparse.Namespace, found: FoundTopic) -> None:
    if (told := found.other_kind(arguments.topic)) is not None:
        print(told, file=sys.stderr)
    if found.schema is not None and arguments.schema is None:
        kind = pb.Schema.Type.Name(found.schema.type)
        print(
            f"{found.name} has a schema of type {kind}, which these messages are sent without: --schema topic encodes "
            "them by it",
            file=sys.stderr,
        )
    if _is_typed(arguments):
        print("Each line is a message; Ctrl-D ends.", file=sys.stderr)


def _is_typed(arguments: argparse.Namespace) -> bool:
    return not (arguments.message or arguments.file or arguments.arrow) and sys.stdin.isatty()


def _reach(arguments: argparse.Namespace) -> str:
    """The options by which another command reaches the same broker; none if it does so without."""
    if arguments.profile:
        return f" --profile {arguments.profile}"
    usual = argparse.Namespace(profile=None, token=arguments.token, service_url=None)
    profiles.complete(usual)
    return "" if usual.service_url == arguments.service_url else f" --service-url {arguments.service_url}"


async def _tell_unheard(found: FoundTopic, security: Security | None, reach: str) -> None:
    """Tells a user who sends before there is a subscription for how long the messages are kept."""
    from anabranch.cli.messages.unheard import unheard  # Its import takes as long as most sends.

    hint = await asyncio.to_thread(unheard, found, security, reach)
    if hint is not None:
        print(hint, file=sys.stderr)


def _batching(arguments: argparse.Namespace) -> bool | Batching:
    if arguments.no_batching:
        return False
    usual = Batching()
    return Batching(
        delay_ms=usual.delay_ms if arguments.batch_delay is None else arguments.batch_delay,
        messages_max=arguments.batch_messages or usual.messages_max,
        bytes_max=arguments.batch_bytes or usual.bytes_max,
    )


def _is_tabling(arguments: argparse.Namespace, source: Source) -> bool:
    """Whether lines are sent as tables, which have neither properties nor a pace."""
    is_plain = not (arguments.property or arguments.rate or arguments.no_batching)
    return (
        is_plain and isinstance(source, TextLines) and source.size >= TABLES_FROM_BYTES and can_make_tables()
    )


def _has_bar(arguments: argparse.Namespace) -> bool:
    return is_terminal() and not arguments.quiet and not _is_typed(arguments)


async def _settled(sending: MessageSending, stopping: CommandStopping, bar: Bar) -> None:
    flushing = asyncio.ensure_future(sending.flushed())
    if stopping:
        await asyncio.wait([flushing], timeout=PATIENCE_S)
        if not flushing.done():
            sending.look()
            bar.say(f"waiting for the receipts of {plural(sending.pending)}; Ctrl-C again gives them up")
    await flushing
