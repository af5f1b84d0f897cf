"""What the metadata process and its clients send each other: frames of msgpack, and errors as values. Pure.

A request is `(number, verb, arguments)`, an answer `(number, kind, body)`. Requests are pipelined and take effect in
their order; answers come in any order. Answers with number 0 are unasked for: changes of watched nodes, and the end of
the session.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import Any, Final

import msgspec

from anabranch.metadata.errors import (
    AlreadyExists,
    EphemeralParent,
    InvalidPath,
    MetadataError,
    NotACounter,
    NotEmpty,
    StoreClosed,
    StoreDamaged,
    StoreFull,
    StoreUnavailable,
    ValueTooLarge,
    VersionConflict,
)
from anabranch.metadata.paths import PATH_BYTES_MAX
from anabranch.metadata.port import VALUE_BYTES_MAX, Versioned

PROTOCOL: Final = 1
# A value at its limit, its path, and what stands around them.
FRAME_BYTES_MAX: Final = VALUE_BYTES_MAX + PATH_BYTES_MAX + 4_096
_SIZE_BYTES: Final = 4


class Verb(StrEnum):
    HELLO = "hello"  # (protocol, session, secret): begins a session, or goes on with one.
    PING = "ping"
    GET = "get"
    CREATE = "create"
    PUT = "put"
    DELETE = "delete"
    CHILDREN = "children"
    SCAN = "scan"
    NEXT_IDS = "next_ids"
    NOW = "now"
    WATCH = "watch"
    UNWATCH = "unwatch"
    END = "end"  # (session): ends a session, one's own or that of a process known to be dead.


class AnswerKind(IntEnum):
    DONE = 0
    REFUSED = 1
    PART = 2  # Of a long answer: DONE follows.
    CHANGED = 3  # Paths of watched nodes.
    EVERYTHING = 4  # Too many changes to name.
    ENDED = 5  # The session.


class NotAMessage(ValueError):
    """The bytes are no frame of this protocol."""


_VERSION: Final = (int, type(None))
_ARGUMENTS: Final[dict[Verb, tuple[type | tuple[type, ...], ...]]] = {
    Verb.HELLO: (int, (str, type(None)), int),
    Verb.PING: (),
    Verb.GET: (str,),
    Verb.CREATE: (str, bytes, bool),
    Verb.PUT: (str, bytes, _VERSION),
    Verb.DELETE: (str, _VERSION),
    Verb.CHILDREN: (str,),
    Verb.SCAN: (str,),
    Verb.NEXT_IDS: (str, int),
    Verb.NOW: (),
    Verb.WATCH: (str,),
    Verb.UNWATCH: (str,),
    Verb.END: (str,),
}
# What is cut off, of the wrong kind, not UTF-8, or nested deeply.
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(tuple[int, Verb, list[Any]])
_answers = msgspec.msgpack.Decoder(tuple[int, AnswerKind, Any])


def encode(number: int, what: Verb | AnswerKind, body: Any) -> bytes:
    """A request or an answer as a frame."""
    message = _encoder.encode((number, what, body))
    return len(message).to_bytes(_SIZE_BYTES, "big") + message


def decode_request(message: bytes) -> tuple[int, Verb, list[Any]]:
    try:
        number, verb, arguments = _requests.decode(message)
    except _UNREADABLE as error:
        raise NotAMessage(str(error)) from error
    kinds = _ARGUMENTS[verb]
    if len(arguments) != len(kinds) or not all(map(isinstance, arguments, kinds)):
        raise NotAMessage(f"{verb} with other arguments than it takes")
    return number, verb, arguments


def decode_answer(message: bytes) -> tuple[int, AnswerKind, Any]:
    try:
        return _answers.decode(message)
    except _UNREADABLE as error:
        raise NotAMessage(str(error)) from error


class MessageCutter:
    """Cuts a byte stream into messages. Holds at most one that is incomplete."""

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        buffer = self._buffer
        buffer += data
        messages: list[bytes] = []
        at = 0
        while (start := at + _SIZE_BYTES) <= len(buffer):
            size = int.from_bytes(buffer[at:start], "big")
            if size > self._bytes_max:
                raise NotAMessage(f"a message of {size} bytes, limit {self._bytes_max}")
            if start + size > len(buffer):
                break
            messages.append(bytes(buffer[start : start + size]))
            at = start + size
        if at:
            del buffer[:at]
        return messages


# Nodes.


def packed(node: Versioned | None) -> tuple[bytes, int, int, int, str | None] | None:
    return None if node is None else (node.value, node.version, node.created_ms, node.modified_ms, node.owner)


def unpacked(fields: Sequence[Any] | None) -> Versioned | None:
    return None if fields is None else Versioned(*fields)


# Errors.

_BY_PATH: Final[dict[str, type[MetadataError]]] = {
    kind.__name__: kind for kind in (AlreadyExists, NotEmpty, EphemeralParent, NotACounter)
}
_BY_TEXT: Final[dict[str, type[MetadataError]]] = {
    kind.__name__: kind for kind in (InvalidPath, ValueTooLarge, StoreDamaged, StoreUnavailable, StoreFull)
}


def refusal(error: Exception) -> tuple[str, str, int, int | None]:
    """An error as the body of an answer. What no client could act upon is unavailability."""
    name = type(error).__name__
    if isinstance(error, VersionConflict):
        return name, error.path, error.expected, error.current
    if name in _BY_PATH:
        return name, getattr(error, "path", ""), 0, None
    if name in _BY_TEXT:
        return name, str(error), 0, None
    if isinstance(error, StoreClosed):
        return StoreUnavailable.__name__, "the metadata process is ending", 0, None
    return StoreUnavailable.__name__, f"the metadata process failed: {error}", 0, None


def error_of(body: Sequence[Any]) -> MetadataError:
    name, text, expected, current = body
    if name == VersionConflict.__name__:
        return VersionConflict(text, expected, current)
    kind = _BY_PATH.get(name) or _BY_TEXT.get(name, StoreUnavailable)
    return kind(text)
