"""The writing process of the kill test: `python -m soak.hidden URL FOLDER SEED`, until its standard input ends.

Jobs write batch after batch with the client's hidden writes to topics that are deleted when they are unused. A driver
pauses between the last task and its decision. Winning entries are noted as sent and receipted at the decision: from
then on these and no others must be in the log.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from uuid import UUID

from anabranch.client import Client
from anabranch.client.hidden_writes.records import WinnerDropped, WriteRecordsClient
from anabranch.client.hidden_writes.write import Write
from anabranch.errors import AnabranchError
from soak.history import Writer
from soak.workload import ProducerPlan, mixed, payload_of

TASK_SECONDS_MAX = 10.0
# Between the last task and the decision: the topics are deleted after one second without use.
SLOW_SECONDS = (0.0, 4.0)
EXPECTED = (AnabranchError, TimeoutError, OSError)


class Writing:
    def __init__(self, url: str, admin: str, folder: Path, plan: ProducerPlan, seed: int) -> None:
        self._url = url
        self._plan = plan
        self._chance = random.Random(f"{seed} {plan.name}")
        self._write = f"{plan.name}-{seed}"
        self._records = WriteRecordsClient(lambda: admin, target=plan.topic.url)
        self.history = Writer(folder / f"producer-{plan.name}.log")

    async def live(self, ending: asyncio.Event) -> None:
        first, batch = 0, 0
        while not ending.is_set():
            count = self._chance.randint(1, 20)
            tried = await self._tasks(batch, first, count)
            await asyncio.sleep(self._chance.uniform(*SLOW_SECONDS))
            if await self._decided(batch, first, count, *tried):
                first += count
            batch += 1
        self.history.close()

    async def _tasks(self, batch: int, first: int, count: int) -> tuple[UUID, frozenset[str]]:
        """Tries until one attempt is complete, and sometimes once more: the last one counts."""
        while True:
            attempt = UUID(int=self._chance.getrandbits(128), version=4)
            try:
                async with asyncio.timeout(TASK_SECONDS_MAX):
                    written = await self._task(Write(self._write, batch, attempt), first, count)
            except EXPECTED:
                await asyncio.sleep(0.1)
                continue
            if self._chance.random() < 0.8:
                return attempt, written

    async def _task(self, write: Write, first: int, count: int) -> frozenset[str]:
        async with (
            Client(self._url) as client,
            client.producer(self._plan.topic.url, write=write) as producer,
        ):
            receipts = [
                await producer.post(payload_of(self._plan, index)) for index in range(first, first + count)
            ]
            await asyncio.gather(*receipts)
            return producer.topics_written

    async def _decided(
        self, batch: int, first: int, count: int, attempt: UUID, topics: frozenset[str]
    ) -> bool:
        """False if the batch must be written again, which a broker may ask for after a long absence."""
        for index in range(first, first + count):
            self.history.note("s", self._plan.name, index)
        try:
            await asyncio.to_thread(self._records.decide, self._write, batch, [attempt], topics)
        except WinnerDropped:
            return False
        for index in range(first, first + count):
            self.history.note("r", self._plan.name, index, -1, -1, -1, -1)
        self.history.flush()
        await asyncio.to_thread(self._records.reveal, self._write, batch, topics)
        return True


async def write(url: str, admin: str, folder: Path, seed: int) -> None:
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    jobs = [Writing(url, admin, folder, plan, seed) for plan in mixed().writers]

    def watch_input() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(ending.set)

    watching = loop.run_in_executor(None, watch_input)
    await asyncio.gather(*(job.live(ending) for job in jobs))
    await watching


def main() -> None:
    url, folder, seed, admin = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    asyncio.run(write(url, admin, folder, seed))
    print("done", flush=True)


if __name__ == "__main__":
    main()
