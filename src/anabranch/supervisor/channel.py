"""What a supervisor and its processes tell each other over a socket pair: first orders, then notes, in JSON.

The orders hold all settings, so that no key stands in a command line or an environment. The pair is also what ties the
process to its supervisor: when the supervisor ends, however it ends, the process reads the end.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

import msgspec

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.config.listeners import Addresses
from anabranch.supervisor.core.processes import ProcessKind

_SIZE_BYTES: Final = 4


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is to be. The numbers of sockets are those that it inherited."""

    kind: ProcessKind
    name: str
    brokers: int
    config: BrokerConfig
    metadata_path: str
    # For the metadata: no process of this cluster has been served yet.
    is_first: bool = False
    # For a broker.
    index: int = 0
    shared: Addresses = Addresses()
    # By the scheme of their URLs, the broker's own first.
    sockets: dict[str, tuple[int, ...]] = {}


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is told after that; each has one of these facts."""

    is_serving: bool = False  # From a process: its clients are answered.
    session: str = ""  # From a broker: its present session at the metadata store.
    ended_session: str = ""  # To the metadata: the broker that had this session is dead.
    is_stopping: bool = (
        False  # To a process: stop. The whole cluster does, so that nothing is to be handed over.
    )


def receive_orders(channel: socket.socket) -> Orders:
    """Blocks until the orders are there. EOFError if the supervisor has gone."""
    size = int.from_bytes(_received(channel, _SIZE_BYTES), "big")
    return _decode_orders(_received(channel, size))


_decode_orders = msgspec.json.Decoder(Orders).decode
_decode_note = msgspec.json.Decoder(Note).decode


def _received(channel: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        # No more than that: notes may follow.
        part = channel.recv(size - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def encode_orders(orders: Orders) -> bytes:
    encoded = msgspec.json.encode(orders)
    return len(encoded).to_bytes(_SIZE_BYTES, "big") + encoded


class NoteLink:
    """One end of the channel on an event loop. `on_note` is called with each note, `on_end` once the peer is gone."""

    def __init__(
        self, channel: socket.socket, on_note: Callable[[Note], None], on_end: Callable[[], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._channel = channel
        self._on_note = on_note
        self._on_end = on_end
        self._buffer = bytearray()
        self._is_open = True
        channel.setblocking(False)
        self._loop.add_reader(channel.fileno(), self._readable)

    def send(self, note: Note) -> None:
        """Notes are short and few: one that does not fit the socket's buffer finds a process that has stopped reading
        for good."""
        if not self._is_open:
            return
        try:
            self._channel.sendall(msgspec.json.encode(note) + b"\n")
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            self._end()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._channel.fileno())
            self._channel.close()

    def _readable(self) -> None:
        try:
            part = self._channel.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self._end()
            return
        self._buffer += part
        *lines, rest = bytes(self._buffer).split(b"\n")
        self._buffer = bytearray(rest)
        for line in lines:
            self._on_note(_decode_note(line))

    def _end(self) -> None:
        self.close()
        self._on_end()
