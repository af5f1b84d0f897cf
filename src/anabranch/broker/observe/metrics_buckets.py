"""Figures of segments and their entry buckets, for Prometheus."""

from __future__ import annotations

from collections import Counter
from typing import Final

from anabranch.broker.observe.metrics_page import Page
from anabranch.broker.topic.topic import Topic
from anabranch.model.names import Domain, NamespaceName

BUCKETS: Final = "anabranch_scalable_segment_entry_buckets"
PER_ENTRY: Final = "anabranch_scalable_segment_messages_per_entry"
UNSTAMPED: Final = "anabranch_scalable_unstamped_entries_total"


class BucketLines:
    """Adds each segment's lines, or their sums by namespace where topics are not listed one by one."""

    def __init__(self, page: Page, cluster: str, *, per_topic: bool) -> None:
        self._page = page
        self._cluster = cluster
        self._per_topic = per_topic
        self._sums: Counter[NamespaceName] = Counter()
        # Entries and messages in single buckets.
        self._fill: dict[NamespaceName, tuple[int, int]] = {}

    def add(self, labels: str, topic: Topic) -> None:
        """Adds a topic; `labels` are the topic's."""
        if self._per_topic and topic.name.domain is Domain.SEGMENT:
            self._page.add(BUCKETS, labels, 1 if topic.stamps is None else len(topic.stamps.fill))
        if topic.stamps is None:
            return
        fill = topic.stamps.fill
        entries, messages = sum(one[0] for one in fill), sum(one[1] for one in fill)
        if self._per_topic:
            self._page.add(UNSTAMPED, labels, topic.stamps.unstamped)
            self._add_fill(labels, entries, messages)
        else:
            namespace = topic.name.namespace
            self._sums[namespace] += topic.stamps.unstamped
            before = self._fill.get(namespace, (0, 0))
            self._fill[namespace] = (before[0] + entries, before[1] + messages)

    def _add_fill(self, labels: str, entries: int, messages: int) -> None:
        if entries:
            self._page.add(PER_ENTRY, labels, messages / entries)

    def finish(self) -> None:
        """Adds the sums, once every topic was added."""
        for namespace, unstamped in self._sums.items():
            labels = f'{self._cluster},namespace="{namespace}"'
            self._page.add(UNSTAMPED, labels, unstamped)
            self._add_fill(labels, *self._fill[namespace])
