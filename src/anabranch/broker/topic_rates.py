"""How fast messages come into a topic, and where their keys belong: looked at every few seconds, never per message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch.broker.scalable.key_sample import KeySample
from anabranch.model.key_routing import KeysSeen
from anabranch.model.segments import segment_of

if TYPE_CHECKING:
    from anabranch.broker.topic import Topic

# At each turn of the rates, to tell whether producers agree on where a key belongs.
_KEYS_LOOKED_AT = 8
_KEYS_BYTES = 256 * 1024


class TopicRates:
    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self.rates_in = (0.0, 0.0)
        self._rates_from = (0, 0)
        self._keys = None if topic.name.is_classic else KeySample(segment_of(topic.name)[1])

    def update(self, seconds: float) -> None:
        now = (self._topic.publishing.messages_in, self._topic.publishing.bytes_in)
        before = self._rates_from
        # If nothing came now and nothing came then, all rates are zero already, those of producers too.
        if now != before or self.rates_in != (0.0, 0.0):
            self.rates_in = ((now[0] - before[0]) / seconds, (now[1] - before[1]) / seconds)
            self._rates_from = now
            if self._keys is not None and now[0] != before[0]:
                self._look_at_keys(self._keys)
            for producer in self._topic.producers.values():
                producer.update_rates(seconds)
        for subscription in self._topic.subscriptions.values():
            subscription.update_rates(seconds)
        if not self._topic.compaction.figures.is_empty:
            self._topic.compaction.figures.update_rates(seconds)

    def _look_at_keys(self, keys: KeySample) -> None:
        """At those of the latest messages, if they are at hand."""
        ledger, last = self._topic.log.last
        first = (ledger, max(0, last - _KEYS_LOOKED_AT + 1))
        _, entries = self._topic.log.read_cached(first, _KEYS_LOOKED_AT, _KEYS_BYTES) or (0, [])
        for _, _, data in entries:
            keys.look(data)

    @property
    def counters(self) -> tuple[int, int, int, int]:
        """Messages and bytes in, messages and bytes out to all subscriptions, since the topic was opened."""
        publishing = self._topic.publishing
        return publishing.messages_in, publishing.bytes_in, *self._topic.subscribing.sent

    @property
    def keys_seen(self) -> KeysSeen:
        """Where the keys belong that were published here. A sample: see `scalable/key_sample.py`."""
        return KeysSeen() if self._keys is None else self._keys.seen
