"""The options of `anabranch produce` and `anabranch consume`."""

from __future__ import annotations

import argparse
from typing import Final

from anabranch.cli.parsing.access import declare_access
from anabranch.cli.parsing.amounts import count
from anabranch.cli.parsing.profiles import SERVICE_URL

TOPIC: Final = (
    "`t` is short for a topic of public/default; topic://public/default/t is the scalable one of that name"
)


def declare_produce(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(module="messages.produce")
    parser.add_argument("topic", help=TOPIC)
    source = parser.add_argument_group("what is sent (default: each line of standard input)")
    source.add_argument(
        "-m", "--message", action="append", metavar="MESSAGE", help="a message; may be repeated"
    )
    source.add_argument(
        "-n", "--num", type=int, default=1, metavar="N", help="send all of it N times (with -m)"
    )
    source.add_argument("-f", "--file", metavar="FILE", help="each line, or each record, of a file")
    source.add_argument(
        "--format",
        choices=("lines", "json", "csv", "parquet"),
        default="lines",
        metavar="FORMAT",
        help="of the file or of standard input: lines (the default); json: an object a line; csv: rows below a "
        "heading; parquet: rows of a Parquet or Arrow file. Records are sent as JSON unless there is a --schema",
    )
    source.add_argument(
        "--schema",
        metavar="WHAT",
        help="encode values: topic (by the topic's schema), string, int8 to int64, float, double, bool, or a file with "
        "an Avro definition; values are written as JSON then, or are records",
    )
    source.add_argument(
        "--schema-type",
        choices=("avro", "json"),
        metavar="TYPE",
        help="how values are encoded by that file: avro (the default) or json",
    )
    source.add_argument(
        "--arrow", metavar="FILE", help="each row of a Parquet or Arrow file; --key and --value name columns"
    )
    source.add_argument(
        "--value", metavar="COLUMN", help="the column with the values (with --arrow; default: value)"
    )
    keys = parser.add_argument_group("keys and properties")
    keys.add_argument("-k", "--key", help="the key of every message; with --arrow, the column with the keys")
    keys.add_argument(
        "--key-separator", metavar="TEXT", help=r"lines are KEY TEXT VALUE: '\t', for instance, or ':'"
    )
    keys.add_argument(
        "--key-field",
        metavar="NAME",
        help="lines are JSON objects or other records, and this field of each is its key",
    )
    keys.add_argument(
        "-p", "--property", action="append", default=[], metavar="NAME=VALUE", help="may be repeated"
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "-c",
        "--compression",
        choices=("none", "lz4", "zstd", "snappy", "zlib"),
        default="none",
        help="of batches (default: none)",
    )
    how.add_argument(
        "--batch-messages", type=count, metavar="N", help="a batch has at most N messages (default: 1000)"
    )
    how.add_argument("--batch-bytes", type=count, metavar="N", help="… and at most N bytes (default: 131072)")
    how.add_argument(
        "--batch-delay", type=float, metavar="MS", help="… and waits so many milliseconds (default: 1)"
    )
    how.add_argument("--no-batching", action="store_true", help="an entry of its own for every message")
    how.add_argument(
        "--chunking",
        action="store_true",
        help="send messages in chunks if they are larger than the broker accepts",
    )
    how.add_argument("--rate", type=float, metavar="N", help="at most N messages a second")
    how.add_argument(
        "--timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="fail when the broker does not confirm a message for S seconds; 0: never (default: 30)",
    )
    _common(how)
    declare_access(parser)


def declare_consume(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(module="messages.consume", create=True, follow=True, last_by_default=None)
    parser.add_argument("topic", nargs="?", help=TOPIC)
    what = parser.add_argument_group("what is read")
    what.add_argument(
        "--namespace", metavar="TENANT/NAMESPACE", help="all scalable topics there, also those to come"
    )
    what.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="only topics with that property (with --namespace); may be repeated",
    )
    what.add_argument("-s", "--subscription", metavar="SUB", help="name of the subscription")
    what.add_argument(
        "-t",
        "--type",
        choices=("stream", "queue", "checkpoint", "exclusive", "failover", "shared", "key_shared"),
        metavar="TYPE",
        help="stream (the default): in order, its consumers share the segments; queue: consumers share single "
        "messages, without an order; checkpoint: in order, without a subscription. exclusive and failover mean "
        "stream, shared means queue",
    )
    what.add_argument(
        "--start",
        "--initial-position",
        metavar="WHERE",
        help="where a new subscription starts: earliest, latest (the default: only what comes from now on) or a time "
        "such as 2026-01-31T15:00; with --type checkpoint also an id as `--output json` prints it",
    )
    what.add_argument(
        "--last", type=int, metavar="N", help="read without a subscription, from the last N messages on"
    )
    what.add_argument(
        "--checkpoint",
        metavar="FILE",
        help="read without a subscription: continue from the position in FILE, and store it there",
    )
    what.add_argument(
        "--no-ack", action="store_true", help="acknowledge nothing: the messages come again the next time"
    )
    end = parser.add_argument_group("when it ends (default: at Ctrl-C)")
    end.add_argument("-n", "--num", type=int, metavar="N", help="after N messages")
    end.add_argument(
        "--timeout",
        type=float,
        metavar="S",
        help="when no message came for S seconds; the exit code is 1 if there were fewer than --num",
    )
    how = parser.add_argument_group("how")
    _output(how)
    _common(how)
    declare_access(parser)


def declare_tail(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(
        module="messages.consume",
        create=False,
        last_by_default=10,
        namespace=None,
        filter=[],
        subscription=None,
        type="checkpoint",
        checkpoint=None,
        no_ack=False,
    )
    parser.add_argument("topic", help=TOPIC)
    what = parser.add_argument_group("what is shown")
    what.add_argument(
        "-n", "--last", type=int, metavar="N", help="the last N messages first (default: 10); 0: none of them"
    )
    what.add_argument(
        "--start",
        metavar="WHERE",
        help="instead: from earliest, latest, a time such as 2026-01-31T15:00, or an id as `--output json` prints it",
    )
    end = parser.add_argument_group("when it ends (default: at Ctrl-C)")
    end.add_argument(
        "--no-follow",
        dest="follow",
        action="store_false",
        help="after the last N messages: wait for no others",
    )
    end.add_argument("--num", type=int, metavar="N", help="after N messages in all")
    end.add_argument("--timeout", type=float, metavar="S", help="when no message came for S seconds")
    how = parser.add_argument_group("how")
    _output(how)
    _common(how)
    declare_access(parser)


def _output(how: argparse._ArgumentGroup) -> None:
    how.add_argument(
        "-o",
        "--output",
        choices=("value", "raw", "json", "table"),
        metavar="FORMAT",
        help="value (the default): values, decoded by the topic's schema; raw: the bytes as they were sent; json: "
        "objects with id, key, properties, times and value; table: a row for each",
    )
    how.add_argument("--json", action="store_true", help="the same as --output json")
    how.add_argument("--key-separator", metavar="TEXT", help=r"print KEY TEXT VALUE: '\t', for instance")


def _common(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar and no summary")
    declare_service_url(parser)


def declare_service_url(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--service-url",
        metavar="URL",
        help=f"the broker (default: $ANABRANCH_SERVICE_URL, the profile's, or {SERVICE_URL})",
    )
