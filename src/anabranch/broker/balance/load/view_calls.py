"""The requests by which brokers report their load to the leader, and learn all brokers' from it.

Loads are in JSON (`balance.core.load_json`), as on the topics of the views. A view has a name of its own for each
leadership, and counts its changes: a broker says which view it has read and how far, and gets what changed since.
"""

from __future__ import annotations

from typing import Final

import msgspec

from anabranch.broker.peers.methods import Nothing, PeerMethod

# How long the leader waits for a change before it answers without any.
FOLLOW_WAIT_S: Final = 20.0


class BrokerReport(msgspec.Struct, frozen=True):
    """What a broker says of itself."""

    # Empty: it leaves, and its keys are to be removed.
    load: bytes = b""
    # Its heaviest bundles. Empty: as reported before.
    top: bytes = b""


class FollowLoads(msgspec.Struct, frozen=True):
    # Empty: nothing was read.
    view: str = ""
    after: int = 0
    wait_s: float = FOLLOW_WAIT_S


class LoadsSince(msgspec.Struct, frozen=True):
    """What has changed in the view since the one, or the change, that was named."""

    view: str
    until: int
    # By the leader's clock, as are the times in the loads: the clocks of two machines differ.
    now_ms: int
    loads: dict[str, bytes] = {}
    # Brokers whose keys were removed.
    gone: list[str] = []


REPORT_LOAD: Final = PeerMethod("balance.report", BrokerReport, Nothing)
FOLLOW_LOADS: Final = PeerMethod("balance.follow", FollowLoads, LoadsSince, answer_max_s=FOLLOW_WAIT_S + 10.0)
