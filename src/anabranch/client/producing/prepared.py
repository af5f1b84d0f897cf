"""Applications' messages, checked and encoded as far as possible without a number and a segment. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from anabranch.client.errors import BadArgument
from anabranch.client.producing.core.runs import SingleMessage
from anabranch.client.producing.singles import pairs_of
from anabranch.client.times import to_ms

# Beyond it a time in milliseconds would not fit into its field.
DELAY_MAX_S: Final = 2.0**43

# A message for a batch: its payload, 32-bit hash (None without a key), encoded properties and key, event time, and
# whether the key is base64. Or a message with its own entry.
Prepared: TypeAlias = tuple[bytes, int | None, bytes, int | None, bool] | SingleMessage


def whole_of(
    payload: Any,
    key: str | bytes | None,
    properties: Mapping[str, str] | None,
    event_time: datetime | int | None,
    deliver_at: datetime | int | None,
    deliver_after: timedelta | float | None,
    ordering_key: bytes | None,
    now_ms: Callable[[], int],
) -> SingleMessage:
    is_null = payload is None
    if payload is None:
        payload = b""
    elif isinstance(payload, bytearray | memoryview):
        payload = bytes(payload)
    elif not isinstance(payload, bytes):
        raise BadArgument(
            f"a value of type {type(payload).__name__}: send bytes, or make the producer with a schema"
        )
    if deliver_after is not None:
        if deliver_at is not None:
            raise BadArgument("deliver_at and deliver_after: give one of them")
        after_s = deliver_after.total_seconds() if isinstance(deliver_after, timedelta) else deliver_after
        if not isinstance(after_s, int | float) or not 0 <= after_s < DELAY_MAX_S:
            raise BadArgument(
                f"deliver_after={deliver_after!r}: give a timedelta or a number of seconds, from 0 on"
            )
        deliver_at = now_ms() + round(after_s * 1000)
    pairs = tuple(pairs_of(properties or {}))
    if not all(isinstance(name, str) and isinstance(text, str) for name, text in pairs):
        raise BadArgument(f"properties={properties!r}: names and values must be text")
    return SingleMessage(payload, key, pairs, to_ms(event_time), to_ms(deliver_at), ordering_key, is_null)
