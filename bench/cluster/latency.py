"""Publish latency at 1,000 messages a second, with one broker and with three, through plain sockets.

The messages go to six topics in turn; with three brokers each has two of them. Both clusters serve at the same time,
and the load changes between them from round to round.
"""

from __future__ import annotations

import selectors
import threading
import time
from statistics import median

from bench import wire
from bench.cluster.findings import Finding, percentile
from bench.cluster.running import Cluster, running
from bench.cluster.swarm import port_of

RATE = 1_000
TOPICS = 6
RATIO_MAX = 1.20
PAYLOAD = bytes(1024)


def located(port: int, topic: str) -> int:
    """The port of the topic's owner."""
    while True:
        link = wire.Blocking(port)
        try:
            data, start, end = link.ask(wire.lookup(topic, 1), wire.LOOKUP_RESPONSE)
        finally:
            link.close()
        found = {part: value for part, value, _ in wire.fields(data, start, end)}
        urls = [bytes(data[a:b]).decode() for part, a, b in wire.fields(data, start, end) if part == 1 and b]
        if found.get(3) not in (0, 1) or not urls:
            raise wire.BrokerRefused("lookup: " + wire.explain(data, start, end))
        port = port_of(urls[0])
        if found[3] == 1:
            return port


class Paced:
    """A producer for each topic; one thread sends on schedule, another reads the receipts."""

    def __init__(self, port: int, topics: list[str]) -> None:
        self._links: list[tuple[wire.Blocking, str]] = []
        for topic in topics:
            link = wire.Blocking(located(port, topic))
            data, start, end = link.ask(wire.producer(topic, 1, 3), wire.PRODUCER_SUCCESS)
            name = next(
                bytes(data[a:b]).decode() for part, a, b in wire.fields(data, start, end) if part == 2
            )
            self._links.append((link, name))
        self._sequence = 0

    def close(self) -> None:
        for link, _ in self._links:
            link.close()

    def measure(self, seconds: float) -> list[float]:
        """Milliseconds from sending to the receipt, of each message."""
        count = int(RATE * seconds)
        lanes = len(self._links)
        first, self._sequence = self._sequence, self._sequence + count
        frames = [
            wire.send(1, first + number, self._links[number % lanes][1], PAYLOAD) for number in range(count)
        ]
        sent, took = [0.0] * count, [0.0] * count
        reader = threading.Thread(target=self._receipts, args=(count, sent, took))
        reader.start()
        began = time.perf_counter()
        for number, frame in enumerate(frames):
            wait = began + number / RATE - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            sent[number] = time.perf_counter()
            self._links[number % lanes][0].sock.sendall(frame)
        reader.join(30)
        if not all(took):
            raise TimeoutError("receipts are missing")
        return took

    def _receipts(self, count: int, sent: list[float], took: list[float]) -> None:
        lanes = len(self._links)
        buffers, next_of = [b""] * lanes, list(range(lanes))
        seen = 0
        with selectors.DefaultSelector() as selector:
            for lane, (link, _) in enumerate(self._links):
                selector.register(link.sock, selectors.EVENT_READ, lane)
            while seen < count:
                for key, _ in selector.select(30):
                    lane = key.data
                    data = buffers[lane] + self._links[lane][0].sock.recv(1 << 16)
                    at = 0
                    while at + 4 <= len(data):
                        stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
                        if stop > len(data):
                            break
                        if data[at + 9] == wire.SEND_RECEIPT:
                            took[next_of[lane]] = (time.perf_counter() - sent[next_of[lane]]) * 1000
                            next_of[lane] += lanes
                            seen += 1
                        at = stop
                    buffers[lane] = data[at:]


def _prepared(cluster: Cluster) -> Paced:
    cluster.namespace("paced", TOPICS)
    cluster.spread("paced")
    names: dict[str, str] = {}
    number = 0
    while len(names) < TOPICS:  # One topic in each bundle.
        topic = f"public/paced/t-{number}"
        names.setdefault(cluster.bundle_of(topic), f"persistent://{topic}")
        number += 1
    return Paced(cluster.port, list(names.values()))


def measure(is_quick: bool) -> list[Finding]:
    rounds, seconds = (2, 3.0) if is_quick else (10, 6.0)
    figures: dict[tuple[int, float], list[float]] = {(n, share): [] for n in (1, 3) for share in (0.5, 0.99)}
    with running(1) as one, running(3) as three:
        loads = {1: _prepared(one), 3: _prepared(three)}
        for load in loads.values():
            load.measure(2.0)
        for number in range(rounds):
            for brokers in (1, 3) if number % 2 else (3, 1):
                took = loads[brokers].measure(seconds)
                for share in (0.5, 0.99):
                    figures[brokers, share].append(percentile(took, share))
        for load in loads.values():
            load.close()
    findings = []
    for share, name in ((0.5, "p50"), (0.99, "p99")):
        single, several = median(figures[1, share]), median(figures[3, share])
        findings.append(Finding(f"publish {name}, 1 broker", single, "ms"))
        findings.append(Finding(f"publish {name}, 3 brokers", several, "ms"))
        findings.append(Finding(f"{name}, 3 brokers to one", several / single, "x", RATIO_MAX))
    return findings
