"""A consumer that only counts: asks for a whole backlog with one permit grant and reads frames as fast as they come.

It looks at each frame's header and at the batch count in the entry's metadata, never at payloads, so what it measures
is the broker. Prints the same JSON lines as the Java load client.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

from bench import wire

PERMITS = 1_000_000_000
BUFFER_BYTES = 8 * 1024 * 1024


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def messages_in(data: memoryview, at: int) -> int:
    """How many messages the entry holds whose magic number is at `at`."""
    if data[at : at + 2] == wire.MAGIC:
        at += 6
    size = int.from_bytes(data[at : at + 4], "big")
    for field, value, _ in wire.fields(data, at + 4, at + 4 + size):
        if field == 11:
            return value
    return 1


class Count:
    def __init__(self) -> None:
        self.messages = self.entries = self.bytes = 0

    def take(self, data: memoryview, end: int) -> int:
        """Counts whole frames in data[:end]; returns where the first incomplete one starts."""
        at = 0
        while at + 12 <= end:
            size = int.from_bytes(data[at : at + 4], "big")
            stop = at + 4 + size
            if stop > end:
                break
            # Type is always the first field of a command: 08 09 is MESSAGE.
            if data[at + 9] == wire.MESSAGE:
                self.messages += messages_in(data, at + 8 + int.from_bytes(data[at + 4 : at + 8], "big"))
                self.entries += 1
                self.bytes += size + 4
            elif data[at + 9] in (wire.ERROR, wire.CLOSE_CONSUMER):
                kind, start, body_end = wire.command(data, at + 4)
                raise wire.BrokerRefused(f"command {kind}: {wire.explain(data, start, body_end)}")
            at = stop
        return at


def drain(port: int, topic: str, subscription: str, count: int) -> Count:
    link = wire.Blocking(port)
    link.lookup(topic)
    link.ask(wire.subscribe(topic, subscription, 1, 3), wire.SUCCESS)
    link.sock.sendall(wire.flow(1, PERMITS))
    seen = Count()
    buffer = bytearray(BUFFER_BYTES)
    view = memoryview(buffer)
    filled = 0
    while seen.messages < count:
        got = link.sock.recv_into(view[filled:])
        if not got:
            raise ConnectionError("the broker closed the connection")
        filled += got
        used = seen.take(view, filled)
        if used:
            buffer[: filled - used] = view[used:filled]
            filled -= used
    link.close()
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--subscription", required=True)
    parser.add_argument("--count", type=int, required=True)
    args = parser.parse_args()
    say(event="begin")
    started = time.perf_counter()
    seen = drain(args.port, args.topic, args.subscription, args.count)
    seconds = time.perf_counter() - started
    say(event="end")
    used = resource.getrusage(resource.RUSAGE_SELF)
    say(
        event="result",
        messages=seen.messages,
        entries=seen.entries,
        bytes=seen.bytes,
        seconds=seconds,
        per_second=seen.messages / seconds,
        mb_per_second=seen.bytes / seconds / 1e6,
        client_cpu_seconds=used.ru_utime + used.ru_stime,
    )


if __name__ == "__main__":
    main()
