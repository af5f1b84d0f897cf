"""What the queries read: a topic that a producer fills and that splits and merges, as the one they write does."""

from __future__ import annotations

import http.client
import random
import threading
import urllib.error
from collections import Counter

from anabranch import blocking
from anabranch.errors import AnabranchError
from soak.broker import BrokerProcess
from soak.spark.judge import key_of

NAMESPACE = "public/spark-soak"
TOPIC = f"topic://{NAMESPACE}/input"
KEPT = "public/spark-soak-copy"
COPY = f"topic://{KEPT}/copy"
PATHS = (f"scalable/{NAMESPACE}/input", f"scalable/{KEPT}/copy")
ACTIVE_MAX = 8
REST_ERRORS = (urllib.error.URLError, http.client.HTTPException, OSError, TimeoutError)
JOIN_MAX_S = 120.0


class Source:
    """Use `prepare`, then `start`, and `finish` when there is to be no more. It waits while the queries are far
    behind."""

    def __init__(self, broker: BrokerProcess, seed: int, per_second: float) -> None:
        self.broker = broker
        self.published = 0
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self._per_second = per_second
        self._seed = seed
        self._may = threading.Event()
        self._may.set()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._produce, name="producer", daemon=True),
            threading.Thread(target=self._reshape, name="reshaping", daemon=True),
        ]

    def prepare(self) -> None:
        # Only the queries' subscriptions keep the input; retention keeps the copy until it is compared.
        for namespace, keep in ((NAMESPACE, 0), (KEPT, -1)):
            self.broker.rest("PUT", f"namespaces/{namespace}", {})
            self.broker.rest("POST", f"namespaces/{namespace}/deduplication", True)
            policy = {"retentionTimeInMinutes": keep, "retentionSizeInMB": keep}
            self.broker.rest("POST", f"namespaces/{namespace}/retention", policy)
        for path in PATHS:
            self.broker.rest("PUT", f"{path}?numInitialSegments=2")
            self.broker.rest("POST", f"{path}/autoScalePolicy", {"enabled": False})

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def allow(self, is_allowed: bool) -> None:
        """Whether to continue."""
        if is_allowed:
            self._may.set()
        else:
            self._may.clear()

    def finish(self) -> None:
        """Publishes what was begun; the broker must be running."""
        self.stop()
        for thread in self._threads:
            thread.join(JOIN_MAX_S)
            if thread.is_alive():
                self.faults.append(f"the {thread.name} thread was not done within {JOIN_MAX_S:.0f} s")

    def stop(self) -> None:
        """Waits for nothing."""
        self._stopping.set()
        self._may.set()

    def _produce(self) -> None:
        """Publishes numbers from 0 on. With a name and deduplication, what is sent again is not stored again."""
        try:
            with (
                blocking.connect(self.broker.url) as client,
                client.producer(TOPIC, name="input", send_timeout_s=None) as producer,
            ):
                while not self._stopping.wait(0.05):
                    for _ in range(max(1, round(self._per_second * 0.05))):
                        producer.post(b"%d" % self.published, key=key_of(self.published))
                        self.published += 1
                    self._may.wait()
                producer.flush()
        except AnabranchError as error:
            self.faults.append(f"the producer failed: {error!r}")

    def _reshape(self) -> None:
        chance = random.Random(f"{self._seed} reshaping")
        while not self._stopping.wait(chance.expovariate(1 / 5.0)):
            for path in PATHS:
                try:
                    self._reshape_once(path, chance)
                except REST_ERRORS:
                    self.counts["refused"] += 1
            self._may.wait()

    def _reshape_once(self, path: str, chance: random.Random) -> None:
        segments = self.broker.rest("GET", path)["segments"].items()
        active = sorted((s["hashRange"]["start"], int(n)) for n, s in segments if s["state"] == "ACTIVE")
        at = chance.randrange(len(active))
        if len(active) >= ACTIVE_MAX or (at + 1 < len(active) and chance.random() < 0.5):
            at = min(at, len(active) - 2)
            self.broker.rest("POST", f"{path}/merge/{active[at][1]}/{active[at + 1][1]}")
            self.counts["merge"] += 1
        else:
            self.broker.rest("POST", f"{path}/split/{active[at][1]}")
            self.counts["split"] += 1
