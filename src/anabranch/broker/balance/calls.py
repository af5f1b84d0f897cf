"""What brokers ask each other about bundles, over their links."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from anabranch.broker.peers.methods import Nothing, PeerMethod


class ReleasedBundle(msgspec.Struct, frozen=True):
    """The source of a transfer tells its destination how far it has come."""

    bundle: str
    version: int  # Of the transfer.
    left: int = 0  # So many topics are still open at the source.


class PrepareBundle(msgspec.Struct, frozen=True):
    """The leader asks a destination whether it could get the bundle now."""

    bundle: str
    source: str = ""  # The id of the broker that has it.


class RequestKind(StrEnum):
    TRANSFER = "transfer"  # To `to`; if that is empty, to the broker that suits best.
    UNLOAD = "unload"
    REVIVE = "revive"  # A bundle that was deleted, and that its namespace has again.


class BundleRequest(msgspec.Struct, frozen=True):
    """What the leader is asked to do to a bundle."""

    kind: str  # Of `RequestKind`.
    bundle: str
    to: str = ""
    reason: str = ""


class RequestTaken(msgspec.Struct, frozen=True):
    """The leader has stored the change that the request wants."""

    version: int = 0  # Of the bundle's state after it.


PREPARE_MAX_S: Final = 3.0
# A request waits for its destination to be ready, and for the channel.
REQUEST_MAX_S: Final = 8.0

RELEASED: Final = PeerMethod("balance.released", ReleasedBundle, Nothing, answer_max_s=2.0)
PREPARE: Final = PeerMethod("balance.prepare", PrepareBundle, Nothing, answer_max_s=PREPARE_MAX_S)
REQUEST: Final = PeerMethod("balance.request", BundleRequest, RequestTaken, answer_max_s=REQUEST_MAX_S)
