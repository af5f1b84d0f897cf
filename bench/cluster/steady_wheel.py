"""The program of `bench.cluster.steady` for Pulsar's Python client.

python -m bench.cluster.steady_wheel URL TOPICS RATE FILE
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import pulsar

DRAIN_S_MAX = 60.0


def now_us() -> int:
    return time.time_ns() // 1_000


class Steady:
    def __init__(self, url: str, topics: list[str], rate: int, out: Path) -> None:
        self._out = out.open("w", buffering=1 << 16)
        self._lock = threading.Lock()
        self._rate = rate
        self._ending = threading.Event()
        self._drained = threading.Event()
        self._client: Any = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        self._unanswered = 0
        self._confirmed = [set[int]() for _ in topics]
        self._received = [set[int]() for _ in topics]
        self._consumers = [
            self._client.subscribe(topic, "steady", initial_position=pulsar.InitialPosition.Earliest)
            for topic in topics
        ]
        self._producers = [self._client.create_producer(topic, block_if_queue_full=True) for topic in topics]
        for place in range(len(topics)):
            # The client starts its count anew if its connection breaks before its first receipt.
            self._producers[place].send(b"0")
            self._confirmed[place].add(0)
            self._note(f"r {place} 0 {now_us()} {now_us()}")

    def _note(self, line: str) -> None:
        with self._lock:
            self._out.write(line + "\n")

    def run(self) -> None:
        threads = [
            threading.Thread(target=self._receive, args=(place,)) for place in range(len(self._consumers))
        ]
        threads += [threading.Thread(target=self._produce)]
        for thread in threads:
            thread.start()
        print("ready", flush=True)
        sys.stdin.read()
        self._ending.set()
        threads[-1].join()
        ends = time.monotonic() + DRAIN_S_MAX
        while time.monotonic() < ends and (self._unanswered or not self._has_all()):
            time.sleep(0.05)
        self._drained.set()
        for thread in threads:
            thread.join()
        self._client.close()
        self._out.close()

    def _has_all(self) -> bool:
        return all(sent <= got for sent, got in zip(self._confirmed, self._received, strict=True))

    def _produce(self) -> None:
        began, number = time.monotonic(), 1
        while not self._ending.is_set():
            for place, producer in enumerate(self._producers):
                self._send(place, producer, number)
            number += 1
            self._ending.wait(max(0.0, began + number / self._rate - time.monotonic()))

    def _send(self, place: int, producer: Any, number: int) -> None:
        sent = now_us()

        def answered(result: Any, _: Any) -> None:
            if result == pulsar.Result.Ok:
                self._confirmed[place].add(number)
                self._note(f"r {place} {number} {sent} {now_us()}")
            else:
                self._note(f"x {place} {number} {result}")
            self._unanswered -= 1

        self._unanswered += 1
        try:
            producer.send_async(str(number).encode(), answered)
        except pulsar.PulsarException as error:
            self._unanswered -= 1
            self._note(f"x {place} {number} {error!r}")

    def _receive(self, place: int) -> None:
        consumer = self._consumers[place]
        while not self._drained.is_set():
            try:
                message = consumer.receive(timeout_millis=200)
            except pulsar.Timeout:
                continue
            except pulsar.PulsarException as error:
                self._note(f"e receive: {error!r}")
                time.sleep(0.1)
                continue
            number = int(message.data())
            self._note(f"m {place} {number}")
            self._received[place].add(number)
            try:
                consumer.acknowledge(message)
            except pulsar.PulsarException as error:
                self._note(f"e acknowledge: {error!r}")


if __name__ == "__main__":
    Steady(sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]), Path(sys.argv[4])).run()
