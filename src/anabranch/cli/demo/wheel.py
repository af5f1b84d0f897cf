"""Pulsar's own client (the `pulsar-client` wheel) as the demo uses it: a few sends, a few readers in threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import pulsar

RECEIVE_MS = 200
QUIET_MAX_S = 20.0


def connect(service_url: str) -> Any:
    # The wheel's log would report every reconnection; the demo reports that itself.
    silent = logging.getLogger("anabranch.demo.wheel")
    silent.addHandler(logging.NullHandler())
    silent.propagate = False
    return pulsar.Client(service_url, logger=silent, operation_timeout_seconds=20)


@dataclass
class Receipts:
    """The messages that the broker has acknowledged, in order. Called from the wheel's own threads."""

    stored: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def send(self, producer: Any, key: str, text: str) -> None:
        producer.send_async(text.encode(), lambda result, _: self._told(result, text), partition_key=key)

    def _told(self, result: Any, text: str) -> None:
        with self._changed:
            (self.stored if result == pulsar.Result.Ok else self.failed).append(text)
            self._changed.notify_all()

    def wait_for(self, count: int, timeout_s: float = 30.0) -> bool:
        """Waits; returns whether that many were stored in time."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.stored) >= count, timeout_s)


@dataclass(frozen=True)
class Received:
    consumer: int
    key: str
    text: str


def consume(consumers: Iterable[Any], count: int, seen: Iterable[Received] = ()) -> list[Received]:
    """Reads from all consumers at once, acknowledging, until `count` different messages were seen or no more come.

    `seen` counts too: a batch whose consumer left in the middle comes again whole.
    """
    received: list[Received] = []
    texts = {one.text for one in seen}
    errors: list[Exception] = []
    lock = threading.Lock()
    last = monotonic()

    def is_over() -> bool:
        return len(texts) >= count or bool(errors) or monotonic() - last > QUIET_MAX_S

    def read(number: int, consumer: Any) -> None:
        nonlocal last
        while not is_over():
            try:
                message = consumer.receive(timeout_millis=RECEIVE_MS)
            except pulsar.Timeout:
                continue
            with lock:
                received.append(Received(number, message.partition_key(), message.data().decode()))
                texts.add(received[-1].text)
                last = monotonic()
            consumer.acknowledge(message)

    def guarded(number: int, consumer: Any) -> None:
        try:
            read(number, consumer)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=item, daemon=True) for item in enumerate(consumers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return received
