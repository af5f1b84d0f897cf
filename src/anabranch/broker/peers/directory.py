"""Where the brokers of a cluster are found: in their registrations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec

from anabranch.broker.catalog.registry import BROKERS
from anabranch.broker.peers.handshake import PeerIdentity
from anabranch.metadata.port import MetadataStore


@dataclass(frozen=True, slots=True)
class RegisteredPeer:
    """A living broker, as it has registered itself."""

    identity: PeerIdentity
    service_url: str
    service_url_tls: str = ""


class PeerDirectory(Protocol):
    async def find(self, peer: str) -> RegisteredPeer | None:
        """The broker of that id, if it is registered now."""
        ...


class _Registration(msgspec.Struct):
    pulsarServiceUrl: str
    pulsarServiceUrlTls: str | None = None
    runId: str = ""


class RegisteredPeers:
    """Implements `PeerDirectory` over the registrations in the metadata store."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def find(self, peer: str) -> RegisteredPeer | None:
        found = await self._metadata.get(f"{BROKERS}/{peer}")
        if found is None:
            return None
        try:
            value = msgspec.json.decode(found.value, type=_Registration)
        except msgspec.MsgspecError:
            return None
        return RegisteredPeer(
            PeerIdentity(peer, value.runId), value.pulsarServiceUrl, value.pulsarServiceUrlTls or ""
        )


def peer_id(service_url: str) -> str:
    """The id of the broker with that service URL, or that id itself."""
    return service_url.rpartition("/")[2]
