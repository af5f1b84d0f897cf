"""Whose is the publish tail at 1,000 msg/s: what Pulsar's Java client measures, beside what the wire shows.

The loopback's packets are recorded with the kernel's times while the client runs. From the packet that completes a SEND
to the packet that completes its receipt is the broker's time, whatever the client does before and after. Needs root (or
CAP_NET_RAW), Java and Maven; the peers are those of `make bench`.
"""

from __future__ import annotations

import argparse
import os
import socket
import struct
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from anabranch.wire import pulsar_pb2 as pb
from bench.javaclient import JavaClient
from bench.rawlatency import summary
from bench.systems import Anabranch, Pulsar, PulsarSynced, Settings, System

IP_PACKETS = 0x0800
OUTGOING = 4  # On the loopback every packet is seen twice: going out, and coming in.
TIMES = 35  # SO_TIMESTAMPNS, which the socket module does not name.
PACKET_BYTES_MAX = 1 << 18
BUFFER_BYTES = 1 << 26
RATE = 1_000
WARMUP_S, SECONDS = 10, 30

# The client's port, and whether it is to the broker.
Direction = tuple[int, bool]


@dataclass(frozen=True, slots=True)
class Packet:
    at_ns: int
    direction: Direction
    sequence: int
    data: bytes


class Tap(threading.Thread):
    """Records the TCP payloads to and from one port of this machine until `stop`."""

    def __init__(self, port: int) -> None:
        super().__init__(name="tap", daemon=True)
        self.packets: list[Packet] = []
        self._port = port
        self._is_over = False
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(IP_PACKETS))
        self._socket.bind(("lo", IP_PACKETS))
        self._socket.setsockopt(socket.SOL_SOCKET, TIMES, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self._socket.settimeout(0.2)

    def run(self) -> None:
        while not self._is_over:
            try:
                data, ancillary, _, address = self._socket.recvmsg(PACKET_BYTES_MAX, 64)
            except TimeoutError:
                continue
            if address[2] != OUTGOING and (packet := self._packet(data, ancillary)) is not None:
                self.packets.append(packet)

    def _packet(self, data: bytes, ancillary: list[tuple[int, int, bytes]]) -> Packet | None:
        head = (data[0] & 0x0F) * 4
        if data[9] != socket.IPPROTO_TCP:
            return None
        source, target, sequence = struct.unpack_from("!HHI", data, head)
        if self._port not in (source, target):
            return None
        payload = data[head + (data[head + 12] >> 4) * 4 :]
        if not payload:
            return None
        seconds, nanoseconds = struct.unpack("qq", ancillary[0][2][:16])
        is_to_broker = target == self._port
        direction = (source if is_to_broker else target, is_to_broker)
        return Packet(seconds * 1_000_000_000 + nanoseconds, direction, sequence, payload)

    def stop(self) -> list[Packet]:
        self._is_over = True
        self.join()
        self._socket.close()
        return self.packets


def commands(packets: list[Packet]) -> Iterator[tuple[Direction, int, pb.BaseCommand]]:
    """Each command with the time of the packet that completes it. Packets of one direction come in order."""
    streams: dict[Direction, bytearray] = defaultdict(bytearray)
    ends: dict[Direction, int] = {}
    for packet in packets:
        expected = ends.setdefault(packet.direction, packet.sequence)
        repeated = (expected - packet.sequence) & 0xFFFFFFFF
        if repeated > 1 << 31:
            raise ValueError("a packet was not recorded: the machine is too busy to listen")
        data = packet.data[repeated:]
        ends[packet.direction] = (expected + len(data)) & 0xFFFFFFFF
        stream = streams[packet.direction]
        stream += data
        while len(stream) >= 8:
            total, size = struct.unpack_from("!II", stream)
            if len(stream) < total + 4:
                break
            yield packet.direction, packet.at_ns, pb.BaseCommand.FromString(bytes(stream[8 : 8 + size]))
            del stream[: total + 4]


def broker_times(packets: list[Packet], warmup_s: float) -> list[float]:
    """Seconds from each SEND on the wire to its receipt on the wire, without those of the warm-up."""
    sent: dict[tuple[int, int, int], int] = {}
    times: list[tuple[int, int]] = []
    for (port, _), at_ns, command in commands(packets):
        if command.type == pb.BaseCommand.SEND:
            sent[port, command.send.producer_id, command.send.sequence_id] = at_ns
        elif command.type == pb.BaseCommand.SEND_RECEIPT:
            receipt = command.send_receipt
            began = sent.pop((port, receipt.producer_id, receipt.sequence_id))
            times.append((began, at_ns - began))
    first = times[0][0] + warmup_s * 1e9
    return [took / 1e9 for began, took in times if began >= first]


def measure(system: System, java: JavaClient, *, is_batched: bool) -> None:
    system.start(java)
    try:
        tap = Tap(system.port)
        tap.start()
        outcome = java.run(
            system.pid,
            180,
            "latency",
            system=system.client,
            url=system.url,
            topic="tail",
            rate=RATE,
            warmup=WARMUP_S,
            seconds=SECONDS,
            batched=is_batched,
        )
        packets = tap.stop()
    finally:
        system.stop()
    seen = outcome.result["publish"]
    wire = summary(broker_times(packets, WARMUP_S))
    how = "batched" if is_batched else "unbatched"
    print(
        f"{system.title:26} {how:10} client p50 {seen['p50_ms']:5.2f} p99 {seen['p99_ms']:6.2f} ms   "
        f"broker p50 {wire['p50_ms']:5.2f} p99 {wire['p99_ms']:6.2f} p99.9 {wire['p999_ms']:6.2f} ms   "
        f"others {outcome.others_cores:.2f} cores",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--peers", type=Path, default=Path(os.environ.get("PEERS_DIR", "peers")))
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    java = JavaClient()
    java.build()
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        settings = Settings(options.peers, Path(scratch))
        for _ in range(options.rounds):
            for is_batched in (True, False):
                for kind in (Anabranch, Pulsar, PulsarSynced):
                    if reason := kind.missing(settings):
                        print(f"{kind.title}: left out, {reason}", file=sys.stderr)
                        continue
                    measure(kind(settings), java, is_batched=is_batched)
    return 0


if __name__ == "__main__":
    sys.exit(main())
