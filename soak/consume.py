"""The consuming process of the kill test: `python -m soak.consume URL FOLDER SEED`.

Opens every subscription of the workload, says "ready", and consumes through all restarts of the broker. While the load
runs some messages are deliberately not acknowledged: they must come again after the next restart. A line "drain" on
standard input ends that, and end of input ends the process.
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
from soak.rawconsume import RawConsuming
from soak.workload import SubscriptionPlan, mixed, read_payload

KINDS = {
    "exclusive": pulsar.ConsumerType.Exclusive,
    "failover": pulsar.ConsumerType.Failover,
    "shared": pulsar.ConsumerType.Shared,
    "key-shared": pulsar.ConsumerType.KeyShared,
}
RECEIVE_MS = 200
FLUSH_SECONDS = 0.2
# Per hundred messages: left without ack, and returned at once.
WITHHELD_PERCENT = 5
RETURNED_PERCENT = 1
CUMULATIVE_EVERY = 30


class Consuming(threading.Thread):
    """One consumer (or reader) with Pulsar's own client."""

    def __init__(
        self,
        client: Any,
        plan: SubscriptionPlan,
        number: int,
        history: Writer,
        seed: int,
        stop: threading.Event,
        drain: threading.Event,
    ) -> None:
        super().__init__(name=f"{plan.name}-{number}", daemon=True)
        self._plan = plan
        self._history = history
        self._random = random.Random(f"{seed} {plan.topic.name} {plan.name} {number}")
        self._ending = stop
        self._drain = drain
        self._since_ack = 0
        self._last: Any = None
        self._client = client
        # A consumer that has met some chunks before a kill never accepts the message again: in the end a new one must.
        self._is_to_open_again = plan.is_chunked
        self._open()

    def _open(self) -> None:
        plan = self._plan
        if plan.kind == "reader":
            self._consumer = self._client.create_reader(plan.topic.url, pulsar.MessageId.earliest)
            self._receive = self._consumer.read_next
        else:
            self._consumer = self._client.subscribe(
                plan.topic.url,
                plan.name,
                KINDS[plan.kind],
                consumer_name=self.name,
                initial_position=pulsar.InitialPosition.Earliest,
                negative_ack_redelivery_delay_ms=500,
                receiver_queue_size=500,
            )
            self._receive = self._consumer.receive

    def run(self) -> None:
        while not self._ending.is_set():
            if self._is_to_open_again and self._drain.is_set():
                self._is_to_open_again = False
                self._consumer.close()
                self._open()
            try:
                message = self._receive(timeout_millis=RECEIVE_MS)
            except pulsar.Timeout:
                if self._drain.is_set():
                    self._ack_rest()
                continue
            where = _place(message.message_id())
            producer, index, key = read_payload(message.data())
            self._history.note("m", self.name, producer, index, key or "-", *where)
            if self._plan.kind != "reader":
                self._judge(message, where)
        with contextlib.suppress(pulsar.PulsarException):
            self._consumer.close()

    def _judge(self, message: Any, where: tuple[int, ...]) -> None:
        """Acknowledges it, leaves it, or returns it."""
        if self._plan.acks == "cumulative":
            self._last = message
            self._since_ack += 1
            if self._since_ack >= CUMULATIVE_EVERY and self._random.random() < 0.2:
                self._ack_rest()
            return
        dice = 100 if self._drain.is_set() else self._random.uniform(0, 100)
        if dice < WITHHELD_PERCENT:
            return
        if dice < WITHHELD_PERCENT + RETURNED_PERCENT and self._plan.kind == "shared":
            self._consumer.negative_acknowledge(message)
            return
        # Noted first: an ack that the broker has and the history lacks would look like a wrong cursor.
        self._history.note("a", self.name, *where)
        with contextlib.suppress(pulsar.PulsarException):
            self._consumer.acknowledge(message)

    def _ack_rest(self) -> None:
        if self._last is None:
            return
        message, self._last, self._since_ack = self._last, None, 0
        self._history.note("c", self.name, *_place(message.message_id()))
        with contextlib.suppress(pulsar.PulsarException):
            self._consumer.acknowledge_cumulative(message)


def _place(message_id: Any) -> tuple[int, int, int, int]:
    return message_id.partition(), message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


def main() -> None:
    url, folder, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    port = int(url.rsplit(":", 1)[1])
    stop, drain = threading.Event(), threading.Event()
    client = pulsar.Client(
        url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(folder / "client-consumers.log"))
    )
    histories: list[Writer] = []
    threads: list[threading.Thread] = []
    for plan in mixed().subscriptions:
        history = Writer(folder / plan.file)
        histories.append(history)
        for number in range(plan.consumers):
            if plan.raw:
                threads.append(RawConsuming(port, plan, number, history, seed, stop, drain))
            else:
                threads.append(Consuming(client, plan, number, history, seed, stop, drain))
    for thread in threads:
        thread.start()
        if isinstance(thread, RawConsuming):
            thread.is_subscribed.wait()

    def flush() -> None:
        while not stop.is_set():
            time.sleep(FLUSH_SECONDS)
            for history in histories:
                history.flush()

    threading.Thread(target=flush, daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "drain":
            drain.set()
    stop.set()
    for thread in threads:
        thread.join(30)
    for history in histories:
        history.close()
    client.close()
    print("done", flush=True)


if __name__ == "__main__":
    main()
