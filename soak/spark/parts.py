"""Topics that come and go under a query by pattern: each is created, filled, read, deleted, and created again."""

from __future__ import annotations

import random
import threading
import time
import urllib.error
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anabranch import blocking
from anabranch.errors import AnabranchError
from soak.broker import BrokerProcess
from soak.spark.outcome import Outcome
from soak.spark.source import JOIN_MAX_S, REST_ERRORS

NAMESPACE = "public/spark-soak-parts"
PATTERN = f"{NAMESPACE}/part-.*"
NAMES = tuple(f"part-{number}" for number in range(5))
ROWS_MAX = 40
CONFLICT, NOT_FOUND = 409, 404


@dataclass(frozen=True, slots=True)
class Standing:
    """A topic that exists now: the key of its messages, and how many it has."""

    key: str
    rows: int


class Parts:
    """Use `prepare`, then `start`, and `finish` when there is to be no more.

    A topic is deleted once all its messages are in finished batches: a query that continues from a checkpoint with this
    topic has lost nothing then.
    """

    def __init__(self, broker: BrokerProcess, seed: int, outcome: Outcome) -> None:
        self.broker = broker
        self.keys: list[str] = []
        """Of each message, by its number."""
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self._outcome = outcome
        self._chance = random.Random(f"{seed} parts")
        self._standing: dict[str, Standing] = {}
        # Names that a topic had before.
        self._used: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="topics", daemon=True)

    def prepare(self) -> None:
        self.broker.rest("PUT", f"namespaces/{NAMESPACE}", {})
        self.broker.rest("POST", f"namespaces/{NAMESPACE}/deduplication", True)
        # The query has no subscription of a topic that it has not seen yet.
        keep = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        self.broker.rest("POST", f"namespaces/{NAMESPACE}/retention", keep)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Publishes what was begun; the broker must be running."""
        self.stop()
        self._thread.join(JOIN_MAX_S)
        if self._thread.is_alive():
            self.faults.append(f"the {self._thread.name} thread was not done within {JOIN_MAX_S:.0f} s")

    def stop(self) -> None:
        """Waits for nothing."""
        self._stopping.set()

    def _run(self) -> None:
        try:
            with blocking.connect(self.broker.url) as client:
                while not self._stopping.wait(self._chance.uniform(0.0, 2.0)):
                    self._change(self._chance.choice(NAMES), client)
        except AnabranchError as error:
            self.faults.append(f"the producer of topics that come and go failed: {error!r}")

    def _change(self, name: str, client: blocking.Client) -> None:
        standing = self._standing.get(name)
        if standing is None:
            self._make(name, client)
        elif self._outcome.keys()[standing.key] >= standing.rows:
            self._insist(lambda: self._delete(name))
            del self._standing[name]
            self.counts["deleted"] += 1
        elif self._chance.random() < 0.2:
            self._split(name)

    def _make(self, name: str, client: blocking.Client) -> None:
        path = f"scalable/{NAMESPACE}/{name}"
        self._insist(lambda: self._put(f"{path}?numInitialSegments={self._chance.randint(1, 2)}"))
        self._insist(lambda: self.broker.rest("POST", f"{path}/autoScalePolicy", {"enabled": False}))
        key = f"{name}.{self.counts['made']}"
        rows = self._chance.randint(1, ROWS_MAX)
        with client.producer(f"topic://{NAMESPACE}/{name}", name=key, send_timeout_s=None) as producer:
            for _ in range(rows):
                producer.post(b"%d" % len(self.keys), key=key)
                self.keys.append(key)
            producer.flush()
        self._standing[name] = Standing(key, rows)
        self.counts["made"] += 1
        self.counts["made again"] += name in self._used
        self._used.add(name)

    def _split(self, name: str) -> None:
        path = f"scalable/{NAMESPACE}/{name}"
        try:
            segments = self.broker.rest("GET", path)["segments"].items()
            active = sorted(int(number) for number, one in segments if one["state"] == "ACTIVE")
            self.broker.rest("POST", f"{path}/split/{self._chance.choice(active)}")
            self.counts["split"] += 1
        except REST_ERRORS:
            self.counts["refused"] += 1

    # -- the broker may be gone in any moment

    def _insist(self, act: Callable[[], Any]) -> None:
        """Repeats `act` until it is done, though it may have been done before."""
        while True:
            try:
                act()
                return
            except REST_ERRORS:
                self.counts["refused"] += 1
                time.sleep(0.1)

    def _put(self, path: str) -> None:
        try:
            self.broker.rest("PUT", path)
        except urllib.error.HTTPError as error:
            if error.code != CONFLICT:
                raise

    def _delete(self, name: str) -> None:
        try:
            self.broker.rest("DELETE", f"scalable/{NAMESPACE}/{name}?force=true")
        except urllib.error.HTTPError as error:
            if error.code != NOT_FOUND:
                raise
