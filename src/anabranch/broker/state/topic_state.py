"""A topic's durable state: how it is written in full (snapshots) and in steps (deltas), and how both fold. Pure.

The state is the cursors of its subscriptions, the deduplication table, the hidden entries and whether the topic is
sealed. Deltas go into the same commits as the entries. Folding uses the cursor operations of the live subscription, so
the two cannot disagree, and acknowledgements may appear both in a snapshot and in a delta after it.

Both forms are one version byte and a msgpack value. A snapshot is a map: keys unknown to this version are kept and
written again. A delta is an array that starts with its kind; an unknown kind is refused, because the broker must not
build on partly understood state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from anabranch.broker.state.cursor import Cursor
from anabranch.broker.state.hidden_entries import HiddenDecision, HiddenEntries
from anabranch.errors import AnabranchError
from anabranch.model.entry_runs import EntryRuns
from anabranch.model.hidden_writes import WriteBatch
from anabranch.model.position import BEFORE_ALL, Position

_VERSION: Final = b"\x01"

# Kinds of delta. These numbers are stored on disk.
_SUBSCRIBED: Final = 1
_UNSUBSCRIBED: Final = 2
_PROPERTIES: Final = 3
_ACKED_THROUGH: Final = 4
_ACKED: Final = 5
_RESET: Final = 6
_SEALED: Final = 7
_PRODUCER_FORGOTTEN: Final = 8
_ATTEMPT_ATTACHED: Final = 9
_ATTEMPTS_DECIDED: Final = 10

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class StateError(AnabranchError):
    """Stored state that this version cannot read: a newer version wrote it, or it is not state at all."""


@dataclass(slots=True)
class SubscriptionState:
    """A durable subscription. `kind` is its last known type (a number of the protocol), or -1."""

    cursor: Cursor
    kind: int = -1
    properties: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class TopicState:
    subscriptions: dict[str, SubscriptionState] = field(default_factory=dict)
    # The highest sequence id per producer, as of every entry below `producers_as_of`.
    producers: dict[str, Any] = field(default_factory=dict)
    producers_as_of: Position = BEFORE_ALL
    is_sealed: bool = False
    # The hidden entries among the same entries: those that an attempt has written since are in the log.
    hidden: HiddenEntries = field(default_factory=HiddenEntries)
    # Items stored by a later version and unknown to this one.
    extra: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        return encode_snapshot(
            self.subscriptions,
            producers=self.producers,
            producers_as_of=self.producers_as_of,
            is_sealed=self.is_sealed,
            hidden=self.hidden,
            extra=self.extra,
        )


# -- snapshots


def encode_snapshot(
    subscriptions: Mapping[str, SubscriptionState],
    *,
    producers: Mapping[str, Any],
    producers_as_of: Position,
    is_sealed: bool,
    hidden: HiddenEntries | None = None,
    extra: Mapping[str, Any] | None = None,
) -> bytes:
    value = {
        **(extra or {}),
        "subscriptions": {
            name: {
                **one.extra,
                "cursor": one.cursor.image(),
                "kind": one.kind,
                "properties": one.properties,
            }
            for name, one in subscriptions.items()
        },
        "producers": producers,
        "producers_as_of": producers_as_of,
        "sealed": is_sealed,
    }
    if hidden is not None and not hidden.is_empty:
        value["hidden"] = hidden.image()
    return _VERSION + _encode(value)


def decode_snapshot(data: bytes | memoryview) -> TopicState:
    value = _open(data)
    if not isinstance(value, dict):
        raise StateError("stored topic state is not a map")
    as_of = value.pop("producers_as_of", BEFORE_ALL)
    state = TopicState(
        producers=value.pop("producers", {}),
        producers_as_of=(as_of[0], as_of[1]),
        is_sealed=value.pop("sealed", False),
    )
    if (hidden := value.pop("hidden", None)) is not None:
        state.hidden = HiddenEntries.of_image(hidden)
    for name, one in value.pop("subscriptions", {}).items():
        state.subscriptions[name] = SubscriptionState(
            cursor=Cursor.of_image(one.pop("cursor")),
            kind=one.pop("kind", -1),
            properties=one.pop("properties", {}),
            extra=one,
        )
    state.extra = value
    return state


# -- deltas


def subscribed(name: str, at: Position, kind: int = -1, properties: Mapping[str, str] | None = None) -> bytes:
    """Creates a durable subscription with its cursor at `at`."""
    return _delta(_SUBSCRIBED, name, at, kind, properties or {})


def unsubscribed(name: str) -> bytes:
    return _delta(_UNSUBSCRIBED, name)


def properties_changed(name: str, properties: Mapping[str, str]) -> bytes:
    return _delta(_PROPERTIES, name, properties)


def acked_below(name: str, at: Position) -> bytes:
    """Acknowledges everything below `at`."""
    return _delta(_ACKED_THROUGH, name, at)


def acked(
    name: str, entries: Mapping[int, Sequence[int]], batches: Sequence[tuple[Position, int, int]]
) -> bytes:
    """Single acknowledgements: entry ids per ledger, and (position, bits still unacked, size) of parts of batches."""
    parts = [(at, bits.to_bytes((bits.bit_length() + 7) // 8, "little"), size) for at, bits, size in batches]
    return _delta(_ACKED, name, [(ledger, _runs(ids)) for ledger, ids in entries.items()], parts)


def reset(name: str, at: Position, unacked: int = 0) -> bytes:
    """A seek: the cursor is at `at` and nothing beyond is acknowledged, except bits of the batch there."""
    return _delta(_RESET, name, at, unacked.to_bytes((unacked.bit_length() + 7) // 8, "little"))


def sealed() -> bytes:
    return _delta(_SEALED)


def producer_forgotten(name: str) -> bytes:
    return _delta(_PRODUCER_FORGOTTEN, name)


def attempt_attached(name: str, batch: WriteBatch) -> bytes:
    """Hides the entries of that attempt from now on."""
    return _delta(_ATTEMPT_ATTACHED, name, batch.write, batch.batch)


def attempts_decided(decision: HiddenDecision) -> bytes:
    return _delta(_ATTEMPTS_DECIDED, decision.attempts, decision.dropped.packed())


def _delta(*value: Any) -> bytes:
    return _VERSION + _encode(value)


def _runs(entries: Sequence[int]) -> list[int]:
    """Sorted ids as first, count, first, count … A single id is the common case."""
    if len(entries) == 1:
        return [entries[0], 1]
    runs: list[int] = []
    end = -1
    for entry in sorted(set(entries)):
        if entry == end:
            runs[-1] += 1
        else:
            runs += (entry, 1)
        end = entry + 1
    return runs


# -- folding


def fold(snapshot: bytes | memoryview | None, deltas: Iterable[bytes | memoryview]) -> TopicState:
    """The state after those deltas. Cursors are not settled: the caller does that once it has the log."""
    state = TopicState() if snapshot is None else decode_snapshot(snapshot)
    for delta in deltas:
        apply(state, delta)
    return state


def apply(state: TopicState, delta: bytes | memoryview) -> None:
    kind, *rest = _open(delta)
    if kind == _SEALED:
        state.is_sealed = True
    elif kind == _PRODUCER_FORGOTTEN:
        state.producers.pop(rest[0], None)
    elif kind == _SUBSCRIBED:
        name, at, sub_kind, properties = rest
        # Creating twice must not move an existing cursor: the delta may repeat what a snapshot holds.
        if name not in state.subscriptions:
            state.subscriptions[name] = SubscriptionState(Cursor((at[0], at[1])), sub_kind, properties)
    elif kind == _UNSUBSCRIBED:
        state.subscriptions.pop(rest[0], None)
    elif kind == _ATTEMPT_ATTACHED:
        state.hidden.attach(rest[0], WriteBatch(rest[1], rest[2]))
    elif kind == _ATTEMPTS_DECIDED:
        state.hidden.replay(rest[0], EntryRuns.unpacked(rest[1]))
    elif _PROPERTIES <= kind <= _RESET:
        _apply_to_subscription(state, kind, rest)
    else:
        raise StateError(f"a state record of kind {kind}, written by a newer version")


def _apply_to_subscription(state: TopicState, kind: int, rest: Sequence[Any]) -> None:
    one = state.subscriptions.get(rest[0])
    if one is None:
        return
    cursor = one.cursor
    if kind == _PROPERTIES:
        one.properties = rest[1]
    elif kind == _ACKED_THROUGH:
        cursor.ack_below((rest[1][0], rest[1][1]))
    elif kind == _RESET:
        cursor.reset((rest[1][0], rest[1][1]), int.from_bytes(rest[2], "little"))
    else:
        for ledger, runs in rest[1]:
            for n in range(0, len(runs), 2):
                cursor.ack_run(ledger, runs[n], runs[n + 1])
        for at, bits, size in rest[2]:
            cursor.ack_batch((at[0], at[1]), int.from_bytes(bits, "little"), size)


def _open(data: bytes | memoryview) -> Any:
    if bytes(data[:1]) != _VERSION:
        raise StateError(f"topic state of version {bytes(data[:1]).hex() or 'none'}, this broker reads 01")
    try:
        return _decode(data[1:])
    except msgspec.DecodeError as error:
        raise StateError(f"stored topic state cannot be read: {error}") from error
