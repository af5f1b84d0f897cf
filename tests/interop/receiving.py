"""Small words for tests that receive with Pulsar's client."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest

# For messages that are on their way. Nothing waits this long unless the test fails.
WAIT_MS = 60_000
# For messages that must not come: long enough for a local broker to make the mistake.
SILENCE_MS = 200


def receive(consumer: Any, count: int, *, acknowledge: bool = True) -> list[pulsar.Message]:
    messages = []
    for _ in range(count):
        message = consumer.receive(WAIT_MS)
        if acknowledge:
            consumer.acknowledge(message)
        messages.append(message)
    return messages


def payloads(consumer: Any, count: int, *, acknowledge: bool = True) -> list[bytes]:
    return [message.data() for message in receive(consumer, count, acknowledge=acknowledge)]


def assert_silent(consumer: Any, for_ms: int = SILENCE_MS) -> None:
    with pytest.raises(pulsar.Timeout):
        consumer.receive(for_ms)


def drain(consumer: Any, *, quiet_ms: int = SILENCE_MS) -> list[pulsar.Message]:
    """All messages until none comes for a while."""
    messages = []
    while True:
        try:
            messages.append(consumer.receive(quiet_ms))
        except pulsar.Timeout:
            return messages


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"m%d" % n for n in range(start, start + count)]


def send_all(producer: Any, contents: list[bytes], **options: Any) -> None:
    """Sends without waiting for each receipt, then waits for all of them."""
    failed: list[Any] = []
    for content in contents:
        producer.send_async(
            content,
            lambda result, _: failed.append(result) if result != pulsar.Result.Ok else None,
            **options,
        )
    producer.flush()
    assert failed == []
