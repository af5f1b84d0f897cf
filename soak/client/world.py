"""What all participants of the run share: the history, chance, which client owns which connection, and sabotage."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from anabranch.client import Client, Message, Routing
from anabranch.errors import AnabranchError
from anabranch.simulation.world.history import HistoryPlace, Sent
from soak.client.history import ClientHistory

KEYS = 40
OPEN_SECONDS_MAX = 60.0
FLUSH_SECONDS_MAX = 120.0
EXPECTED = (AnabranchError, TimeoutError, OSError)

# The client life that is running now; connections opened in its context are its own.
WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


class Sabotage(Enum):
    """What a run does wrong on purpose, once in a while, to test its judge."""

    LOSS = "loss"  # A message is acknowledged and not processed.
    ORDER = "order"  # Two messages of a key change places.
    REPEAT = "repeat"  # A message is processed twice.
    DOUBLE = "double"  # A producer in doubt sends again under another number.
    STALL = "stall"  # A consumer that leaves stays attached.


class OwnedLoop(asyncio.SelectorEventLoop):
    """Remembers for each connection opened on it which client owns it, by its local port."""

    def __init__(self) -> None:
        super().__init__()
        self.owners: dict[int, str] = {}

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        transport, protocol = await super().create_connection(*args, **options)
        self.owners[transport.get_extra_info("sockname")[1]] = WHO.get()
        return transport, protocol


@dataclass
class World:
    """Once `is_calm`, clients neither leave nor crash any more, and producers end."""

    url: str
    namespace: str
    routing: Routing
    chance: random.Random
    history: ClientHistory
    message_bytes_max: int
    note: Callable[[str], None] = lambda text: None
    sabotage: Sabotage | None = None
    is_calm: bool = False
    # Whether consumers come back under other names too.
    has_new_names: bool = True
    # Producers that had to send again under another name.
    may_double: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)

    def client(self) -> Client:
        return Client(self.url, chance=random.Random(self.chance.getrandbits(64)))

    def topic(self, name: str) -> str:
        return f"topic://{self.namespace}/{name}"

    def spoils(self, what: Sabotage) -> bool:
        """One chance in a hundred, and every tenth of the first thousand: short runs on slow machines have enough."""
        if self.sabotage is not what:
            return False
        chances = self.counts["chances to spoil"] = self.counts["chances to spoil"] + 1
        return (chances <= 1_000 and chances % 10 == 0) or self.chance.random() < 0.01


# -- messages: all of one follows from producer and number, so that it can be made again and compared


def key_of(producer: str, number: int) -> str:
    return f"k{zlib.crc32(f'{producer} {number}'.encode()) % KEYS}"


def payload_of(producer: str, number: int, large_bytes: int = 0) -> bytes:
    """Some hundred bytes; of a producer with large messages, one in fifty has about `large_bytes`."""
    head = f"{producer}|{number}|{large_bytes}|".encode()
    mixed = zlib.crc32(head)
    size = mixed % 400
    if large_bytes and mixed % 50 == 0:
        size = large_bytes + mixed % large_bytes
    # Repeats only after some time, so that the order matters for equality.
    pattern = b"".join(b"%d." % (mixed + n) for n in range(min(64, size // 8 + 1)))
    return head + (pattern * (size // len(pattern) + 1))[:size]


def place_of(message: Message) -> HistoryPlace:
    return HistoryPlace(*message.id)


def sent_of(message: Message) -> Sent:
    """The producer and number of a message. ValueError if it is not byte for byte what was sent."""
    payload = message.payload
    producer, number, large_bytes, _ = payload.split(b"|", 3)
    sent = Sent(producer.decode(), int(number))
    if payload != payload_of(*sent, int(large_bytes)):
        raise ValueError(f"{sent} is not what was sent: {len(payload)} bytes, {payload[:60]!r}")
    return sent
