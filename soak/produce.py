"""The producing process of the kill test: `python -m soak.produce URL FOLDER SEED`, until its standard input ends.

Every producer is Pulsar's own client and lives through all restarts of the broker: what has no receipt when the
connection breaks is sent again by the client itself. Producers with a fixed name also come back as a new client that
asks what is stored and continues after it, as an application with exactly-once publishing does.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pulsar

from soak.history import Writer
from soak.workload import ProducerPlan, key_of, mixed, payload_of

WINDOW = 300
REOPEN_SECONDS = (3.0, 15.0)
FLUSH_SECONDS = 0.2
ANSWER_SECONDS_MAX = 60.0


class Producing(threading.Thread):
    """One producer: sends as planned and notes every receipt."""

    def __init__(self, url: str, folder: Path, plan: ProducerPlan, seed: int, stop: threading.Event) -> None:
        super().__init__(name=plan.name, daemon=True)
        self.plan = plan
        self.history = Writer(folder / f"producer-{plan.name}.log")
        self._url = url
        self._log_file = str(folder / f"client-{plan.name}.log")
        self._random = random.Random(f"{seed} {plan.name}")
        # Not named `_stop`: that is a method of every thread.
        self._ending = stop
        self._next = 0
        self._window = threading.Semaphore(WINDOW)
        self._unanswered = 0
        self._lock = threading.Lock()
        self._client: Any = None
        self._producer: Any = None

    def run(self) -> None:
        self._open()
        reopen_at = self._reopen_time()
        while not self._ending.is_set():
            burst = self._random.randint(1, 2 * max(1, self.plan.per_second // 20))
            for _ in range(burst):
                if not self._send():
                    break
            self._ending.wait(burst / self.plan.per_second)
            if self.plan.fixed and time.monotonic() > reopen_at and not self._ending.is_set():
                self._reopen()
                reopen_at = self._reopen_time()
        self._settle()

    def _reopen_time(self) -> float:
        return time.monotonic() + self._random.uniform(*REOPEN_SECONDS)

    def _open(self) -> None:
        options: dict[str, Any] = {}
        if self.plan.style == "chunked":
            options = {"chunking_enabled": True}
        elif self.plan.style != "single":
            kind = (
                pulsar.BatchingType.KeyBased
                if self.plan.style == "keyed-batches"
                else pulsar.BatchingType.Default
            )
            options = {"batching_enabled": True, "batching_type": kind, "batching_max_publish_delay_ms": 5}
        if not self.plan.fixed:
            # If its connection breaks before its first receipt, Pulsar's client takes the broker's last id and counts
            # from there, though its pending messages keep their ids: later messages get the same ids again, and
            # deduplication drops them. It does not if it was told where to begin.
            options["initial_sequence_id"] = 0
        while True:
            self._client = pulsar.Client(
                self._url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, self._log_file)
            )
            try:
                self._producer = self._client.create_producer(
                    self.plan.topic.url,
                    producer_name=self.plan.name,
                    send_timeout_millis=0,
                    block_if_queue_full=True,
                    max_pending_messages=2 * WINDOW,
                    **options,
                )
                return
            except pulsar.PulsarException:
                # The broker is being restarted, or has not noticed that our last connection is gone.
                self._client.close()
                time.sleep(0.1)

    def _send(self) -> bool:
        while not self._window.acquire(timeout=0.1):
            if self._ending.is_set():
                return False
        index = self._next
        self._next += 1
        self.history.note("s", self.plan.name, index)
        with self._lock:
            self._unanswered += 1
        options: dict[str, Any] = {}
        if self.plan.keys:
            options["partition_key"] = key_of(self.plan, index)
        if self.plan.fixed:
            options["sequence_id"] = index

        def answered(result: Any, message_id: Any) -> None:
            self._answered(index, result, message_id)

        try:
            self._producer.send_async(payload_of(self.plan, index), answered, **options)
        except pulsar.PulsarException as error:
            self._answered(index, error, None)
        return True

    def _answered(self, index: int, result: Any, message_id: Any) -> None:
        """Runs on a thread of the client."""
        if result == pulsar.Result.Ok:
            where = (
                message_id.partition(),
                message_id.ledger_id(),
                message_id.entry_id(),
                message_id.batch_index(),
            )
            self.history.note("r", self.plan.name, index, *where, time.monotonic_ns() // 1_000_000)
        else:
            self.history.note("x", self.plan.name, index, result)
        with self._lock:
            self._unanswered -= 1
        self._window.release()

    def _reopen(self) -> None:
        """A new client under the same name: asks what is stored, and sends the rest again."""
        with contextlib.suppress(pulsar.PulsarException):
            self._client.close()
        self._open()
        stored = int(self._producer.last_sequence_id())
        if stored >= 0:
            self.history.note("l", self.plan.name, stored)
        self._next = stored + 1

    def _settle(self) -> None:
        """Waits for the answers to everything sent, then closes."""
        if self.plan.fixed:
            # What was in flight when a client closed is known to be stored only after asking again.
            sent = self._next
            self._wait_answers()
            self._reopen()
            while self._next < sent:
                self._send()
        self._wait_answers()
        with contextlib.suppress(pulsar.PulsarException):
            self._client.close()
        self.history.close()

    def _wait_answers(self) -> None:
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while self._unanswered and time.monotonic() < deadline:
            time.sleep(0.05)
        if self._unanswered:
            print(f"{self.plan.name}: {self._unanswered} messages were never answered", flush=True)


def main() -> None:
    url, folder, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    stop = threading.Event()
    threads = [Producing(url, folder, plan, seed, stop) for plan in mixed().producers]
    for thread in threads:
        thread.start()

    def watch_input() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=watch_input, daemon=True).start()
    for thread in threads:
        while thread.is_alive():
            thread.join(FLUSH_SECONDS)
            for one in threads:
                if one.is_alive():
                    with contextlib.suppress(ValueError):  # Closed meanwhile.
                        one.history.flush()
    print("done", flush=True)


if __name__ == "__main__":
    main()
