"""`python -m bench.ticks`: what ten thousand idle scalable topics cost a broker that would scale them. Ours only.

Each has one segment, open here, and this broker leads it. CPU time is measured for a round of the load reporter (every
10 s) and for a tick of the automatic scaler (every 60 s), and given as a share of one core; the aim is at most 5 %. The
first of each also reads and writes what later ones know, and is shown apart.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

from anabranch.broker.broker import Broker
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.policy.namespace import ClusterRecord
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.names import TopicName
from anabranch.model.position import Incarnation
from anabranch.storage.memory import MemoryLogStore

AIM_SHARE = 0.05
NEVER_S = 86_400.0
CONFIG = BrokerConfig(
    scalable_topic_load_report_interval=NEVER_S,
    scalable_topic_auto_scale_interval=NEVER_S,
    scalable_topic_load_report_window=0.05,
)
REPORT_S, TICK_S = 10.0, 60.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def cost_s(work: Callable[[], Awaitable[None]], rounds: int) -> tuple[float, float]:
    """CPU seconds of the first round, and the least of the others."""
    costs = []
    for _ in range(rounds + 1):
        await asyncio.sleep(0.1)
        start = time.process_time()
        await work()
        costs.append(time.process_time() - start)
    return costs[0], min(costs[1:])


async def measure(topics: int, rounds: int) -> float:
    metadata = await MemoryMetadata(now_ms).connect()
    log = MemoryLogStore(incarnation=Incarnation("bench"))
    await log.start()
    resources = Resources(metadata)
    await resources.start()
    await resources.bootstrap(ClusterRecord())
    broker = Broker(
        CONFIG,
        metadata,
        log,
        resources,
        service_url="pulsar://localhost:6650",
        http_url="http://localhost:8080",
        now_ms=now_ms,
    )
    await broker.start()
    assert broker.scalable is not None
    assert broker.scaling is not None
    for number in range(topics):
        name = TopicName.parse(f"topic://public/default/idle-{number}")
        record = await broker.scalable.create(name)
        await broker.topic(record.layout.active[0].topic(name))
        await broker.scalable.leading(name)
    share = 0.0
    for what, work, every_s in (
        ("load reports", broker.scaling.reporter.sample, REPORT_S),
        ("tick", broker.autoscaler.tick, TICK_S),
    ):
        first, later = await cost_s(work, rounds)
        share += later / every_s
        print(
            f"{what:<14}{later * 1000:>8.0f} ms every {every_s:.0f} s{'':<4}(the first {first * 1000:.0f} ms)"
        )
    print(f"{topics:,} topics take {100 * share:.1f} % of a core")
    await broker.close()
    await resources.close()
    await metadata.close()
    return share


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ticks", description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    share = asyncio.run(measure(given.topics, given.rounds))
    return 0 if share <= AIM_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
