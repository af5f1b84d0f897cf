"""A topic's incoming rates, and a sample of where its keys belong: measured every few seconds, never per message."""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.broker.compaction.figures import CompactionFigures
from anabranch.broker.topic.key_sample import KeySample
from anabranch.broker.topic.producer import AttachedProducer
from anabranch.broker.topic.publishing import Publishing
from anabranch.broker.topic.subscriptions import Subscribing
from anabranch.model.key_routing import KeysSeen
from anabranch.model.names import TopicName
from anabranch.model.segments import segment_of
from anabranch.storage.topic.topic_log import TopicLog

# Sampled at each update of the rates, to find whether producers agree on where a key belongs.
_KEYS_LOOKED_AT = 8
_KEYS_BYTES = 256 * 1024


class TopicRates:
    __slots__ = (
        "_compaction",
        "_keys",
        "_log",
        "_producers",
        "_publishing",
        "_rates_from",
        "_subscribing",
    )

    def __init__(
        self,
        name: TopicName,
        log: TopicLog,
        publishing: Publishing,
        producers: Mapping[str, AttachedProducer],
        subscribing: Subscribing,
        compaction: CompactionFigures,
    ) -> None:
        self._log = log
        self._publishing = publishing
        self._producers = producers
        self._subscribing = subscribing
        self._compaction = compaction
        self._rates_from = (0, 0)
        self._keys = None if name.is_classic else KeySample(segment_of(name)[1])

    def update(self, seconds: float) -> None:
        publishing = self._publishing
        now = (publishing.messages_in, publishing.bytes_in)
        before = self._rates_from
        # If both the last period and this one are empty, all rates are zero already, those of producers too.
        if now != before or publishing.rates_in != (0.0, 0.0):
            publishing.rates_in = ((now[0] - before[0]) / seconds, (now[1] - before[1]) / seconds)
            self._rates_from = now
            if self._keys is not None and now[0] != before[0]:
                self._look_at_keys(self._keys)
            for producer in self._producers.values():
                producer.update_rates(seconds)
        for subscription in self._subscribing.all.values():
            subscription.update_rates(seconds)
        if not self._compaction.is_empty:
            self._compaction.update_rates(seconds)

    def _look_at_keys(self, keys: KeySample) -> None:
        """Samples the keys of the latest messages, if these are cached."""
        ledger, last = self._log.last
        first = (ledger, max(0, last - _KEYS_LOOKED_AT + 1))
        _, entries = self._log.read_cached(first, _KEYS_LOOKED_AT, _KEYS_BYTES) or (0, [])
        for _, _, data in entries:
            keys.look(data)

    @property
    def counters(self) -> tuple[int, int, int, int]:
        """Messages and bytes in, then messages and bytes out to all subscriptions, since the topic was opened."""
        publishing = self._publishing
        return publishing.messages_in, publishing.bytes_in, *self._subscribing.sent

    @property
    def keys_seen(self) -> KeysSeen:
        """How many of the sampled keys published here belong where. See `key_sample.py`."""
        return KeysSeen() if self._keys is None else self._keys.seen
