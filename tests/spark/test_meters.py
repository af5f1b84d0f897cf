"""Rows are counted the same from files as by a client. No session: only a broker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from anabranch import blocking
from anabranch.client.transport.attachment import Backoff
from anabranch.client.transport.layout_watch import LayoutWatch
from anabranch.client.transport.pool import Connections
from anabranch.model.cut import BEGINNING, MessagePosition, Place
from anabranch.model.segments import SegmentId
from anabranch.spark.driver.latest import Ends
from anabranch.spark.driver.row_counts import Meters
from anabranch.spark.plan.limit import Limit, Step
from anabranch.spark.plan.plan import SegmentRun
from spark.conftest import River
from spark.dry import DryQuery

WITHIN_S = 30.0


class Bench:
    """Meters of one topic: one set that looks at files, and one of clients."""

    def __init__(self, river: River) -> None:
        chance = random.Random(1)
        self.url = f"http://127.0.0.1:{river.broker.http_port}"
        self._connections = Connections(river.broker.url)
        self._watch = LayoutWatch(self._connections, river.topic, Backoff(chance))
        self._ends = Ends(self._connections, chance)
        self._files, self._clients = (
            Meters(self._connections, self._watch, chance, fails_on_data_loss=True) for _ in range(2)
        )

    async def __aenter__(self) -> Bench:
        await self._watch.open(create=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._files.close()
        await self._clients.close()
        await self._ends.keep(())
        await self._watch.close()
        await self._connections.close()

    async def steps(self, limit: Limit, start: MessagePosition = BEGINNING) -> list[Step]:
        """Those of segment 0, which both ways agree on."""
        end = await self._ends.of(self._watch.topic_of(SegmentId(0)))
        assert end is not None
        segment = self._watch.layout.segments[SegmentId(0)]
        run = SegmentRun(segment, Place.of(segment).moved(start), end, closes=False)
        by_files = (await self._files.measure([run], limit, self.url))[segment.id]
        by_client = (await self._clients.measure([run], limit))[segment.id]
        shared = min(len(by_files.steps), len(by_client.steps))
        assert shown(by_files.steps[:shared]) == shown(by_client.steps[:shared])
        for found in (by_files, by_client):
            rows, size = sum(s.rows for s in found.steps), sum(s.bytes for s in found.steps)
            is_enough = (limit.rows is not None and rows > limit.rows) or (
                limit.bytes is not None and size > limit.bytes
            )
            assert is_enough or found.until >= end
        return list(by_files.steps)


def shown(steps: Sequence[Step]) -> list[tuple[MessagePosition, int, int]]:
    return [(step.at, step.rows, step.time_ms) for step in steps]


async def test_rows_sizes_and_times_are_those_that_a_client_finds(river: River) -> None:
    await asyncio.to_thread(publish, river)
    async with asyncio.timeout(WITHIN_S), Bench(river) as bench:
        steps = await bench.steps(Limit(rows=1 << 40))
        assert sum(step.rows for step in steps) == river.published
        assert all(step.bytes > 0 and step.time_ms > 0 for step in steps)
        assert len({step.rows for step in steps}) > 1


def publish(river: River) -> None:
    for count in (5, 1, 40, 3):
        river.publish(count)


async def test_counting_goes_on_where_it_ended_and_follows_a_start_within_a_batch(river: River) -> None:
    await asyncio.to_thread(river.publish, 50)
    async with asyncio.timeout(WITHIN_S), Bench(river) as bench:
        first = await bench.steps(Limit(rows=10))
        ledger, entry, _ = first[0].at
        await asyncio.to_thread(river.publish, 50)
        later = await bench.steps(Limit(bytes=1 << 40), (ledger, entry, 1))
        assert later[0].at[:2] == (ledger, entry)
        behind = await bench.steps(Limit(rows=1 << 40), (ledger, entry + 1, 0))
        assert behind == later[1:]


async def test_pieces_of_a_message_are_counted_by_a_client(river: River) -> None:
    await asyncio.to_thread(post_large, river)
    async with asyncio.timeout(WITHIN_S), Bench(river) as bench:
        steps = await bench.steps(Limit(rows=1 << 40))
        assert sum(step.rows for step in steps) == 4


def post_large(river: River) -> None:
    with blocking.connect(river.broker.url) as client:
        producer = client.producer(river.topic, chunking=True, batching=False)
        for size in (1, 1, 7 << 20, 1):
            producer.send(bytes(size))


def test_files_are_looked_at_again_behind_a_message_in_pieces(
    river: River, caplog: pytest.LogCaptureFixture
) -> None:
    """What a client counts crosses the network twice."""
    river.publish(100)
    post_large(river)
    for _ in range(100):  # An entry each.
        river.publish(3)
    query = DryQuery(**river.options(start="earliest", maxRowsPerTrigger=60))
    with caplog.at_level("INFO", "anabranch.spark.driver.row_counts"):
        rows = query.catch_up()
    assert len(rows) == 404
    by_client = [record for record in caplog.records if "counted by a client" in record.message]
    again = [record for record in caplog.records if "counted from files again" in record.message]
    assert (len(by_client), len(again)) == (1, 1)
    query.stop()
