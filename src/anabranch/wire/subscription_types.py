"""The types of subscriptions: their numbers in the protocol, and what Pulsar calls them."""

from __future__ import annotations

from typing import Final

from anabranch.wire import pulsar_pb2 as pb

EXCLUSIVE: Final = pb.CommandSubscribe.Exclusive
SHARED: Final = pb.CommandSubscribe.Shared
FAILOVER: Final = pb.CommandSubscribe.Failover
KEY_SHARED: Final = pb.CommandSubscribe.Key_Shared

TYPE_NAMES: Final[dict[int, str]] = {
    EXCLUSIVE: "Exclusive",
    SHARED: "Shared",
    FAILOVER: "Failover",
    KEY_SHARED: "Key_Shared",
}
