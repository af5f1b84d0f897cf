"""The form of a received message on standard output: its value, its bytes, all of it as JSON, or a row of a table."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from anabranch.cli.parsing.options import unescaped
from anabranch.client import Message
from anabranch.errors import AnabranchError

Printer = Callable[[Sequence[Message]], bytes]
Output = Literal["value", "raw", "json", "table"]

# Columns grow with what is in them, up to this.
COLUMN_MAX: Final = 40


def printer(
    output: Output, *, key_separator: str | None = None, name: str | None = None, width: int | None = None
) -> Printer:
    """Messages as lines. `name` is shown as their topic instead of their own, if given; rows of a table are cut to
    `width`."""
    if output == "json":
        encode = msgspec.json.encode

        def as_json(messages: Sequence[Message]) -> bytes:
            lines = [encode(described(message, name), enc_hook=str) for message in messages]
            return b"\n".join([*lines, b""])

        return as_json
    if output == "table":
        return Table(width)
    shown: Callable[[Message], bytes] = _payload if output == "raw" else value_line
    if key_separator is not None:
        separator = unescaped(key_separator)

        def with_keys(messages: Sequence[Message]) -> bytes:
            lines = [(m.key or "").encode() + separator + shown(m) for m in messages]
            return b"\n".join([*lines, b""])

        return with_keys
    return lambda messages: b"\n".join([*[shown(message) for message in messages], b""])


def _payload(message: Message) -> bytes:
    return message.payload


def value_line(message: Message) -> bytes:
    """The value as the topic's schema has it: text as it is, all else as JSON; the payload where no schema tells."""
    if not message.schema_version:
        return message.payload
    try:
        value = message.value
    except AnabranchError:
        return message.payload
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str)


def described(message: Message, name: str | None = None) -> dict[str, Any]:
    """The message as a JSON object."""
    found: dict[str, Any] = {
        "id": str(message.id),
        "topic": name or message.topic,
        "segment": message.segment,
        "key": message.key,
        "properties": dict(message.properties),
        "producer": message.producer,
        "sequenceId": message.sequence_id,
        "publishTime": message.publish_time_ms,
        "eventTime": message.event_time_ms or None,
        "redeliveries": message.redeliveries,
    }
    payload = message.payload
    try:
        found["payload"] = payload.decode()
    except UnicodeDecodeError:
        found["payloadBase64"] = base64.b64encode(payload).decode()
    if message.schema_version:
        try:
            value = message.value
        except AnabranchError as error:
            found["schemaError"] = str(error)
        else:
            if not isinstance(value, bytes):
                found["value"] = value
    return found


class Table:
    """Rows below a heading. A column is as wide as the widest text that it has had so far: nothing waits for more."""

    HEADINGS: Final = ("PUBLISHED", "ID", "KEY", "PROPERTIES", "VALUE")

    def __init__(self, width: int | None) -> None:
        self._width = width
        self._widths = [len(heading) for heading in self.HEADINGS]
        self._is_headed = False

    def __call__(self, messages: Sequence[Message]) -> bytes:
        rows: list[Sequence[str]] = [] if self._is_headed else [self.HEADINGS]
        self._is_headed = self._is_headed or bool(messages)
        rows += [_row(message) for message in messages]
        for row in rows:
            for column, text in enumerate(row[:-1]):
                self._widths[column] = max(self._widths[column], min(len(text), COLUMN_MAX))
        return b"".join(self._line(row).encode(errors="replace") + b"\n" for row in rows) if messages else b""

    def _line(self, row: Sequence[str]) -> str:
        cells = [_cut(text, COLUMN_MAX).ljust(self._widths[column]) for column, text in enumerate(row[:-1])]
        line = "  ".join([*cells, row[-1]]).rstrip()
        return line if self._width is None else _cut(line, self._width)


def _row(message: Message) -> tuple[str, ...]:
    properties = " ".join(f"{name}={value}" for name, value in message.properties.items())
    value = value_line(message).decode(errors="backslashreplace")
    texts = (str(message.id), message.key or "", properties, value)
    return (_when(message.publish_time_ms), *(_one_line(text) for text in texts))


def _when(publish_time_ms: int) -> str:
    try:
        when = datetime.fromtimestamp(publish_time_ms / 1000)
    except (OverflowError, OSError, ValueError):
        # Whatever a producer has sent as its time: in no year that is known.
        return f"{publish_time_ms} ms"
    return when.isoformat(sep=" ", timespec="milliseconds")


def _one_line(text: str) -> str:
    """The text without characters that would end a row, or that a terminal obeys."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
