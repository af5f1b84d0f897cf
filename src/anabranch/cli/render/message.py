"""The form of a received message on standard output: its payload, with its key before it, or all of it as JSON."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from anabranch.cli.parsing.options import unescaped
from anabranch.client import Message

Printer = Callable[[Sequence[Message]], bytes]


def printer(*, is_json: bool, key_separator: str | None, name: str | None) -> Printer:
    """Messages as lines. `name` is shown as their topic instead of their own, if given."""
    if is_json:
        encode = msgspec.json.encode

        def as_json(messages: Sequence[Message]) -> bytes:
            lines = [encode(described(message, name)) for message in messages]
            return b"\n".join([*lines, b""])

        return as_json
    if key_separator is not None:
        separator = unescaped(key_separator)

        def with_keys(messages: Sequence[Message]) -> bytes:
            lines = [(m.key or "").encode() + separator + m.payload for m in messages]
            return b"\n".join([*lines, b""])

        return with_keys
    return lambda messages: b"\n".join([*[message.payload for message in messages], b""])


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
    return found
