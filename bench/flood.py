"""A producer that costs next to nothing itself: the same block of frames again and again, as fast as they are accepted.

    python -m bench.flood PORT TOPIC SECONDS

Single entries of 100 bytes, which cost a broker the most for each byte. Frames are made once; what is left is to
write them and to count the receipts, so that a part of one core of such producers fills another one of a broker's.
Prints receipts a second.
"""

from __future__ import annotations

import sys
import threading
import time

from bench import wire

PAYLOAD = bytes(100)
BLOCK = 500
# How the command begins. Counted without reading what follows, which costs less than the broker's own work for it.
RECEIPT = wire.number(1, wire.SEND_RECEIPT) + wire.text(wire.SEND_RECEIPT, b"")[:1]
# The most blocks without receipts.
BLOCKS_AHEAD = 32


class Flood:
    def __init__(self, port: int, topic: str) -> None:
        self._link = wire.Blocking(port)
        self._link.lookup(topic)
        data, start, end = self._link.ask(wire.producer(topic, 1, 2), wire.PRODUCER_SUCCESS)
        name = next(bytes(data[a:b]).decode() for field, a, b in wire.fields(data, start, end) if field == 2)
        self._frames = b"".join(wire.send(1, number, name, PAYLOAD) for number in range(BLOCK))
        self._room = threading.Semaphore(BLOCKS_AHEAD)
        self._released = 0
        self.receipts = 0

    def run(self, seconds: float) -> float:
        """Receipts a second."""
        threading.Thread(target=self._count, daemon=True).start()
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            if not self._room.acquire(timeout=30):
                raise TimeoutError("no receipts for 30 s")
            self._link.sock.sendall(self._frames)
        return self.receipts / (time.monotonic() - started)

    def _count(self) -> None:
        rest = b""
        while data := self._link.sock.recv(1 << 18):
            data = rest + data
            self.receipts += data.count(RECEIPT)
            while self._released * BLOCK < self.receipts:
                self._released += 1
                self._room.release()
            # A receipt that is cut in two is counted once its end has come.
            rest = data[-(len(RECEIPT) - 1) :]


if __name__ == "__main__":
    print(Flood(int(sys.argv[1]), sys.argv[2]).run(float(sys.argv[3])))
