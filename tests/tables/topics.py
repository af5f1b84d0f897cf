"""Topics with a table that the test writes when it wants to."""

from __future__ import annotations

from pathlib import Path

from anabranch import blocking
from harness.broker_process import BrokerProcess
from tables.by_hand import HandTable


class TabledTopic:
    """A scalable topic with numbered messages, and its table."""

    def __init__(
        self, broker: BrokerProcess, client: blocking.Client, folder: Path, name: str, segments: int
    ) -> None:
        self.broker, self.client, self.published = broker, client, 0
        self.topic, self.path = f"topic://public/default/{name}", f"scalable/public/default/{name}"
        broker.put(f"{self.path}?numInitialSegments={segments}")
        broker.post(f"{self.path}/autoScalePolicy", {"enabled": False})
        self._producer = client.producer(self.topic)
        self.table = HandTable(folder, self.topic, self._producer.topic_id)

    def publish(self, count: int, keys: int = 23) -> None:
        for number in range(self.published, self.published + count):
            key = None if number % 50 == 49 else f"key-{number % keys}"
            self._producer.post(b"%d" % number, key=key, properties={"n": str(number)})
        self._producer.flush()
        self.published += count

    def split(self, number: int) -> None:
        self.broker.post(f"{self.path}/split/{number}")

    def merge(self, one: int, other: int) -> None:
        self.broker.post(f"{self.path}/merge/{one}/{other}")

    def delete(self) -> None:
        self._producer.close()
        self.broker.rest("DELETE", f"{self.path}?force=true")

    def commit(self) -> int:
        return self.table.commit(self.client)

    @property
    def numbers(self) -> list[bytes]:
        """The values of all messages, sorted as numbers."""
        return [b"%d" % n for n in range(self.published)]
