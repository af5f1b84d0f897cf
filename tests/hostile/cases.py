"""Cases: a state, a command and what is wrong with it. A case's name is all that it takes to run it again.

producing-dedup/SEND-batch/sequence_id=-1
consuming-shared/ACK/message_id.ack_set=largest-many+message_id.batch_size=i32-max
both/FRAME/size=largest-claim
any/RANDOM/417            a state, a command and up to four edges, drawn with that seed
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from anabranch.wire.frames import FRAME_BYTES_MAX
from hostile import commands, sends
from hostile.commands import TYPES, Place, body_of, envelope, frame
from hostile.edges import Edit, edits
from hostile.nodes import BYTES, VARINT, item
from hostile.states import STATES, State

FRAME, RANDOM = "FRAME", "RANDOM"
_FRAMES: Final = (
    *("size=0", "size=3", "size=largest-claim", "size=over-the-limit", "size=http"),
    *("command-size=0", "command-size=over", "command-size=largest-claim"),
    *("type=absent", "type=0", "type=999", "type=-1", "body=absent", "body=two", "body=wrong"),
    *("half=head", "half=command", "half=entry", "garbage=64", "garbage=65536", "garbage=framed"),
    *("varint=endless", "group=nested", "pings=10000", "flows=50000"),
)
# Sent by brokers: a peer that sends one is refused at sight, whatever is in it.
_ANSWERS: Final = frozenset(
    name
    for name in TYPES
    if name.endswith(("_RESPONSE", "_SUCCESS", "_RECEIPT", "_ERROR", "_UPDATE", "_CHALLENGE", "_CHANGE"))
    or name in ("CONNECTED", "MESSAGE", "SUCCESS", "ERROR", "REACHED_END_OF_TOPIC", "TOPIC_MIGRATED")
) - {"AUTH_RESPONSE"}
_ANSWERED_IN: Final = ("unknown", "connected-to-consume", "both")


@dataclass(frozen=True)
class Case:
    state: State
    command: str
    changes: tuple[Edit, ...]
    name: str

    @property
    def is_large(self) -> bool:
        return any(edit.is_large for edit in self.changes)

    def frames(self, place: Place, producer: str) -> bytes:
        """What is sent, in one piece. A SEND comes between two good ones, and once more as the last of its producer."""
        if self.command == FRAME:
            return _frame(str(self.changes[0]), place)
        if self.command in sends.KINDS:
            evil = sends.spoiled(self.command, self.changes, place, 1, producer)
            good = (sends.good(place, number, producer) for number in (0, 10))
            again = b"" if self.is_large else evil
            return b"".join((next(good), evil, next(good), again))
        return commands.spoiled(self.command, self.changes, place)


def parse(name: str) -> Case:
    state, command, rest = name.split("/", 2)
    if command == RANDOM:
        return drawn(int(rest))
    changes = tuple(Edit.parse(text) for text in rest.split("+") if text)
    return Case(STATES[state], command, changes, name)


def _case(state: str, command: str, *changes: Edit) -> Case:
    return Case(STATES[state], command, changes, f"{state}/{command}/{'+'.join(map(str, changes))}")


def edits_of(command: str) -> list[Edit]:
    return list(sends.all_edits(command) if command in sends.KINDS else edits(body_of(command)))


def asked() -> list[str]:
    """What clients send: every command of the protocol but the answers, some in several variants."""
    plain = [name for name in TYPES if name not in _ANSWERS and name != "SEND"]
    return [*plain, *commands.VARIANTS, *sends.KINDS]


def every() -> Iterator[Case]:
    """Each command with one field at one of its edges, in each state; and frames that are none."""
    by_command = {command: edits_of(command) for command in asked()}
    for state in STATES:
        yield from (_case(state, FRAME, Edit.parse(text)) for text in _FRAMES)
        for command, found in by_command.items():
            if command in sends.KINDS and not STATES[state].produces:
                found = found[:: len(found) // 20]  # Nobody's: looked at no further than its producer's id.
            if not STATES[state].is_connected and not command.startswith(("CONNECT", "AUTH_RESPONSE")):
                found = found[:: max(1, len(found) // 20)]  # Refused by its type.
            yield _case(state, command)
            yield from (_case(state, command, edit) for edit in found)
    for command in sorted(_ANSWERS):
        for state in _ANSWERED_IN:
            yield _case(state, command)
            yield from (
                _case(state, command, edit)
                for edit in edits(body_of(command))
                if edit.edge in ("absent", "largest")
            )


def drawn(seed: int) -> Case:
    """Two to four edges at once."""
    chance = random.Random(seed)
    state = chance.choice([state for state in STATES.values() if state.is_connected])
    names = list(sends.KINDS) if state.produces and chance.random() < 0.5 else asked()
    command = chance.choice(names)
    found = edits_of(command)
    if not found:
        return Case(state, command, (), f"any/{RANDOM}/{seed}")
    chosen = [chance.choice(found) for _ in range(chance.randint(2, 4))]
    large = [edit for edit in chosen if edit.is_large][:1]
    small = [edit for edit in chosen if not edit.is_large]
    # One edit for a field; of what is inside an edited message, none.
    kept: list[Edit] = []
    for edit in [*large, *small]:
        if not any(
            edit.path[: len(other.path)] == other.path or other.path[: len(edit.path)] == edit.path
            for other in kept
        ):
            kept.append(edit)
    return Case(state, command, tuple(kept), f"any/{RANDOM}/{seed}")


def _frame(text: str, place: Place) -> bytes:
    ping = envelope("PING", b"")
    kind = commands.BASE.fields_by_name["type"].number
    match text:
        case "size=0":
            return struct.pack(">II", 0, 0)
        case "size=3":
            return struct.pack(">I", 3) + b"abc"
        case "size=largest-claim":
            return struct.pack(">II", 0xFFFFFFFF, 10) + bytes(64)
        case "size=over-the-limit":
            return struct.pack(">II", FRAME_BYTES_MAX + 1, 10) + bytes(1 << 20)
        case "size=http":
            return b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        case "command-size=0":
            return struct.pack(">II", 4, 0)
        case "command-size=over":
            return struct.pack(">II", 4 + len(ping), len(ping) + 1) + ping
        case "command-size=largest-claim":
            return struct.pack(">II", 4 + len(ping), 0xFFFFFFFF) + ping
        case "type=absent":
            return frame(item(TYPES["PING"], BYTES, b""))
        case "type=0" | "type=999" | "type=-1":
            return frame(item(kind, VARINT, int(text.partition("=")[2])) + item(TYPES["PING"], BYTES, b""))
        case "body=absent":
            return b"".join(frame(item(kind, VARINT, number)) for number in TYPES.values())
        case "body=two":
            ack = commands.plausible(body_of("ACK"), place).encode()
            return frame(
                envelope("FLOW", commands.plausible(body_of("FLOW"), place).encode()) + item(10, BYTES, ack)
            )
        case "body=wrong":
            return frame(
                item(kind, VARINT, TYPES["SUBSCRIBE"]) + item(TYPES["ACK"], BYTES, b"\x08\x01\x10\x00")
            )
        case "half=head":
            return b"\x00\x00\x01"
        case "half=command":
            return struct.pack(">II", 10_000, 9_000) + bytes(4_500)
        case "half=entry":
            return sends.good(place, 0, "hostile", bytes(100_000))[:50_000]
        case "garbage=64" | "garbage=65536":
            return random.Random(text).randbytes(int(text.partition("=")[2]))
        case "garbage=framed":
            return frame(random.Random(text).randbytes(400))
        case "varint=endless":
            return frame(item(kind, VARINT, TYPES["PING"]) + b"\x92\x01" + b"\xff" * 4_000)
        case "group=nested":
            return frame(item(kind, VARINT, TYPES["PING"]) + b"\xa3\x1f" * 5_000)
        case "pings=10000":
            return frame(ping) * 10_000
        case "flows=50000":
            return frame(envelope("FLOW", commands.plausible(body_of("FLOW"), place).encode())) * 50_000
    raise ValueError(f"no frame is called {text}")
