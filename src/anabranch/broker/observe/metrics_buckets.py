"""Figures of segments with several entry buckets, for Prometheus."""

from __future__ import annotations

from collections import Counter
from typing import Final

from anabranch.broker.observe.metrics_page import Page
from anabranch.broker.topic.topic import Topic
from anabranch.model.names import NamespaceName

UNSTAMPED: Final = "anabranch_scalable_unstamped_entries_total"


class BucketLines:
    """Adds each segment's lines, or their sums by namespace where topics are not listed one by one."""

    def __init__(self, page: Page, cluster: str, *, per_topic: bool) -> None:
        self._page = page
        self._cluster = cluster
        self._per_topic = per_topic
        self._sums: Counter[NamespaceName] = Counter()

    def add(self, labels: str, topic: Topic) -> None:
        """Adds a topic; `labels` are the topic's."""
        if topic.stamps is None:
            return
        if self._per_topic:
            self._page.add(UNSTAMPED, labels, topic.stamps.unstamped)
        else:
            self._sums[topic.name.namespace] += topic.stamps.unstamped

    def finish(self) -> None:
        """Adds the sums, once every topic was added."""
        for namespace, unstamped in self._sums.items():
            self._page.add(UNSTAMPED, f'{self._cluster},namespace="{namespace}"', unstamped)
