"""Brokers that are asked to end: they drain, and a client that lives through their restarts loses nothing."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition

from harness.broker_process import BrokerProcess, until
from interop.conftest import Connect
from interop.receiving import WAIT_MS, numbered

pytestmark = pytest.mark.interop

RESTARTS = 5
PER_RESTART = 400
# So far ahead of the consumer the producer may be.
AHEAD_MAX = 1000
# A restart takes seconds, on a busy machine many.
RESTART_MS = 60_000


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[BrokerProcess]:
    kept = {"defaultRetentionTimeInMinutes": -1, "defaultRetentionSizeInMB": -1}
    with BrokerProcess(tmp_path, {"brokerDeduplicationEnabled": True, **kept}) as process:
        yield process


class Traffic:
    """A producer that sends numbers, and a consumer that acknowledges them, until told to stop."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self.stored: list[int] = []
        self.refused: list[object] = []
        self.received: list[int] = []
        self._is_over = threading.Event()
        self._ahead = threading.Semaphore(AHEAD_MAX)
        self._consumer = client.subscribe(
            topic, "s", consumer_type=ConsumerType.Exclusive, initial_position=InitialPosition.Earliest
        )
        self._producer = client.create_producer(
            topic,
            producer_name="p",
            batching_enabled=True,
            batching_max_publish_delay_ms=1,
            max_pending_messages=200,
            block_if_queue_full=True,
            send_timeout_millis=0,
        )
        self.sent = 0
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._receive)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        for number in itertools.count():
            if self._is_over.is_set():
                self._producer.flush()
                return
            self._ahead.acquire()
            self._producer.send_async(
                b"m%d" % number, lambda result, _, number=number: self._answered(result, number)
            )
            self.sent = number + 1

    def _answered(self, result: object, number: int) -> None:
        (self.stored if result == pulsar.Result.Ok else self.refused).append(number)

    def _receive(self) -> None:
        while not self._is_over.is_set() or len(set(self.received)) < self.sent:
            message = self._consumer.receive(RESTART_MS)
            self.received.append(int(message.data()[1:]))
            self._consumer.acknowledge(message)
            self._ahead.release()

    def finish(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        until(lambda: len(self.stored) + len(self.refused) == self.sent)


@pytest.mark.timeout(240)
def test_a_client_lives_through_rolling_restarts_and_loses_nothing(
    mortal: BrokerProcess, connect: Connect
) -> None:
    client = connect(mortal)
    traffic = Traffic(client, "t")
    for _ in range(RESTARTS):
        goal = len(traffic.stored) + PER_RESTART
        until(lambda goal=goal: len(traffic.stored) > goal, within_s=60)  # type: ignore[misc]
        assert mortal.stop() == 0
        mortal.start()
    traffic.finish()
    assert traffic.refused == []
    reader = client.create_reader("t", pulsar.MessageId.earliest)
    stored = []
    while reader.has_message_available():
        stored.append(reader.read_next(WAIT_MS).data())
    assert stored == numbered(traffic.sent)
    # What was acknowledged and not yet written down may come again, but nothing is left out or out of order.
    first_seen = list(dict.fromkeys(traffic.received))
    assert first_seen == list(range(traffic.sent))


def test_what_is_under_way_at_a_stop_is_confirmed_before_the_end(
    mortal: BrokerProcess, connect: Connect
) -> None:
    client = connect(mortal)
    producer = client.create_producer("t", batching_enabled=False, max_pending_messages=2000)
    answers: list[tuple[object, str]] = []
    for number in range(500):
        producer.send_async(b"m%d" % number, lambda result, at: answers.append((result, str(at))))
    until(lambda: len(answers) > 0)
    assert mortal.stop() == 0
    mortal.start()
    until(lambda: len(answers) == 500, within_s=30)
    assert {result for result, _ in answers} == {pulsar.Result.Ok}
    # Not one was stored and left without its receipt, or it would have been sent, and stored, again.
    assert len({at for _, at in answers}) == 500
    assert mortal.get("persistent/public/default/t/internalStats")["numberOfEntries"] == 500


def test_a_clean_end_is_quick_and_leaves_no_one_waiting(mortal: BrokerProcess, connect: Connect) -> None:
    consumer = connect(mortal).subscribe("t", "s")
    page = urllib.request.urlopen(f"http://127.0.0.1:{mortal.http_port}/admin/v2/brokers/health", timeout=15)
    try:
        assert mortal.stop() == 0
    finally:
        page.close()
    assert "stopped" in mortal.log.splitlines()[-1]
    assert "Traceback" not in mortal.log
    mortal.start()
    producer = connect(mortal).create_producer("t")
    producer.send(b"back")
    assert consumer.receive(WAIT_MS).data() == b"back"


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        os.kill(broker.pid, signal.SIGTERM)
        until(lambda: "stopping" in broker.log)
        os.kill(broker.pid, signal.SIGTERM)
        # 0 if it was through before the second one came.
        assert broker.wait() in (0, -signal.SIGTERM)
