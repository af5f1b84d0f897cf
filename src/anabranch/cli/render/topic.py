"""The figures of a classic topic as tables. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.cli.render.dag import aligned, rate, size

Stats = Mapping[str, Any]


def page(name: str, stats: Stats) -> list[str]:
    parts = (heading(name, stats), partition_table(stats), producer_table(stats), subscription_table(stats))
    told: list[str] = []
    for part in parts:
        if part:
            told += ["", *part] if told else part
    return told


def heading(name: str, stats: Stats) -> list[str]:
    backlog = sum(s["msgBacklog"] for s in stats["subscriptions"].values())
    dedup = ", deduplicated" if stats.get("deduplicationStatus") == "Enabled" else ""
    return [
        name,
        f"in {rate(stats['msgRateIn'])} msg/s ({size(stats['msgThroughputIn'])}/s), "
        f"out {rate(stats['msgRateOut'])} msg/s ({size(stats['msgThroughputOut'])}/s), "
        f"{size(stats['storageSize'])} stored, backlog {backlog:,}{dedup}",
    ]


def partition_table(stats: Stats) -> list[str]:
    partitions = stats.get("partitions")
    if not partitions:
        return []
    rows = [("PARTITION", "IN msg/s", "OUT msg/s", "STORED", "PRODUCERS", "BACKLOG")]
    for name, part in sorted(partitions.items(), key=lambda item: _index(item[0])):
        backlog = sum(s["msgBacklog"] for s in part["subscriptions"].values())
        rows.append(
            (
                str(_index(name)),
                rate(part["msgRateIn"]),
                rate(part["msgRateOut"]),
                size(part["storageSize"]),
                str(len(part["publishers"])),
                f"{backlog:,}",
            )
        )
    return aligned(rows, left=set())


def _index(partition: str) -> int:
    return int(partition.rpartition("-")[2])


def producer_table(stats: Stats) -> list[str]:
    if not stats["publishers"]:
        return []
    rows = [("PRODUCER", "IN msg/s", "IN bytes/s", "CLIENT", "ADDRESS")]
    rows += [
        (
            producer["producerName"],
            rate(producer["msgRateIn"]),
            f"{size(producer['msgThroughputIn'])}/s",
            producer.get("clientVersion") or "-",
            producer.get("address") or "-",
        )
        for producer in stats["publishers"]
    ]
    return aligned(rows, left={0, 3, 4})


def subscription_table(stats: Stats, only: str | None = None) -> list[str]:
    found = {name: s for name, s in stats["subscriptions"].items() if only in (None, name)}
    if not found:
        return []
    rows = [("SUBSCRIPTION", "TYPE", "BACKLOG", "UNACKED", "OUT msg/s", "CONSUMERS")]
    for name, subscription in found.items():
        consumers = ", ".join(consumer["consumerName"] for consumer in subscription["consumers"])
        stopped = f"; stopped: {error}" if (error := subscription.get("dispatchError")) else ""
        rows.append(
            (
                name,
                (subscription["type"] or "-").lower(),
                f"{subscription['msgBacklog']:,}",
                f"{subscription['unackedMessages']:,}",
                rate(subscription["msgRateOut"]),
                f"{len(subscription['consumers'])}{f': {consumers}' if consumers else ''}{stopped}",
            )
        )
    return aligned(rows, left={0, 1, 5})
