"""The program of `bench.cluster.steady` for our client.

python -m bench.cluster.steady_ours URL TOPICS RATE FILE
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from pathlib import Path

import anabranch

DRAIN_S_MAX = 60.0


def now_us() -> int:
    return time.time_ns() // 1_000


async def run(url: str, topics: list[str], rate: int, out: Path) -> None:
    confirmed, received = [set[int]() for _ in topics], [set[int]() for _ in topics]
    with out.open("w", buffering=1 << 16) as file:
        async with anabranch.connect(url) as client, contextlib.AsyncExitStack() as stack:
            consumers = [
                await stack.enter_async_context(client.stream_consumer(topic, "steady", start="earliest"))
                for topic in topics
            ]
            producers = [await stack.enter_async_context(client.producer(topic)) for topic in topics]
            under_way: set[asyncio.Task[None]] = set()

            async def send(place: int, number: int) -> None:
                sent = now_us()
                try:
                    await producers[place].send(str(number).encode())
                except anabranch.AnabranchError as error:
                    file.write(f"x {place} {number} {error!r}\n")
                else:
                    confirmed[place].add(number)
                    file.write(f"r {place} {number} {sent} {now_us()}\n")

            async def receive(place: int) -> None:
                while True:
                    try:
                        message = await consumers[place].receive()
                        file.write(f"m {place} {int(message.value)}\n")
                        received[place].add(int(message.value))
                        await consumers[place].ack_cumulative(message)
                    except anabranch.AnabranchError as error:
                        file.write(f"e receive: {error!r}\n")
                        await asyncio.sleep(0.1)

            receiving = [asyncio.create_task(receive(place)) for place in range(len(topics))]
            for place in range(len(topics)):
                await send(place, 0)
            print("ready", flush=True)
            ending = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
            began, number = time.monotonic(), 1
            while not ending.done():
                for place in range(len(topics)):
                    task = asyncio.create_task(send(place, number))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                number += 1
                await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            if under_way:
                await asyncio.wait(under_way, timeout=DRAIN_S_MAX)
            for _ in range(int(DRAIN_S_MAX / 0.05)):
                if all(sent <= got for sent, got in zip(confirmed, received, strict=True)):
                    break
                await asyncio.sleep(0.05)
            for one in receiving:
                one.cancel()
            await asyncio.gather(*receiving, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]), Path(sys.argv[4])))
