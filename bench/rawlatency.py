"""Publish and end-to-end latency at a fixed rate through plain sockets: the broker's share, without a client's pauses.

One connection publishes single messages on schedule, another consumes them; a thread each reads the answers. Prints
the same JSON lines as the Java load client.
"""

from __future__ import annotations

import argparse
import json
import resource
import socket
import threading
import time
from collections.abc import Callable

from bench import wire

PAYLOAD = bytes(1024)
PERMITS = 1_000_000_000


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def follow(sock: socket.socket, wanted: int, count: int, seen: Callable[[int], None]) -> None:
    """Calls back with the number of each frame of the wanted kind, in the order they come, until `count`."""
    buffer = b""
    number = 0
    while number < count:
        data = sock.recv(1 << 16)
        if not data:
            raise ConnectionError("the broker closed the connection")
        buffer += data
        at = 0
        while at + 4 <= len(buffer):
            stop = at + 4 + int.from_bytes(buffer[at : at + 4], "big")
            if stop > len(buffer):
                break
            if buffer[at + 9] == wanted:
                seen(number)
                number += 1
            at = stop
        buffer = buffer[at:]


def summary(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        f"p{name}_ms": ordered[int(len(ordered) * share)] * 1000
        for name, share in (("50", 0.5), ("90", 0.9), ("99", 0.99), ("999", 0.999))
    }


def measure(port: int, topic: str, rate: int, warmup: float, seconds: float) -> dict[str, object]:
    count, skipped = int(rate * (warmup + seconds)), int(rate * warmup)
    reader, writer = wire.Blocking(port), wire.Blocking(port)
    writer.lookup(topic)
    writer.ask(wire.producer(topic, 1, 3), wire.PRODUCER_SUCCESS)
    reader.lookup(topic)
    reader.ask(wire.subscribe(topic, "raw", 1, 3), wire.SUCCESS)
    reader.sock.sendall(wire.flow(1, PERMITS))
    frames = [wire.send(1, n, "raw", PAYLOAD) for n in range(count)]
    sent, stored, arrived = [0.0] * count, [0.0] * count, [0.0] * count
    clock = time.perf_counter

    def note(times: list[float]) -> Callable[[int], None]:
        def seen(number: int) -> None:
            times[number] = clock() - sent[number]

        return seen

    threads = [
        threading.Thread(target=follow, args=(writer.sock, wire.SEND_RECEIPT, count, note(stored))),
        threading.Thread(target=follow, args=(reader.sock, wire.MESSAGE, count, note(arrived))),
    ]
    for thread in threads:
        thread.start()
    started = clock()
    for number, frame in enumerate(frames):
        wait = started + number / rate - clock()
        if wait > 0:
            time.sleep(wait)
        if number == skipped:
            say(event="begin")
        sent[number] = clock()
        writer.sock.sendall(frame)
    for thread in threads:
        thread.join(30)
    say(event="end")
    return {"publish": summary(stored[skipped:]), "end_to_end": summary(arrived[skipped:])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--warmup", type=float, default=3)
    parser.add_argument("--seconds", type=float, default=7)
    args = parser.parse_args()
    latencies = measure(args.port, args.topic, args.rate, args.warmup, args.seconds)
    used = resource.getrusage(resource.RUSAGE_SELF)
    say(
        event="result",
        messages=int(args.rate * args.seconds),
        per_second=args.rate,
        client_cpu_seconds=used.ru_utime + used.ru_stime,
        **latencies,
    )


if __name__ == "__main__":
    main()
