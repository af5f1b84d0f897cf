"""Where the brokers of a cluster are found: in their registrations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from anabranch.broker.catalog.registry import BROKERS, BadRegistration, BrokerRegistration
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


class RegisteredPeers:
    """Implements `PeerDirectory` over the registrations in the metadata store."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def find(self, peer: str) -> RegisteredPeer | None:
        # Afresh: a broker that calls may have registered a moment ago, and one that has gone must not be believed.
        found = await self._metadata.get(f"{BROKERS}/{peer}", fresh=True)
        if found is None:
            return None
        try:
            told = BrokerRegistration.decode(found.value)
        except BadRegistration:
            return None
        address = told.address
        return RegisteredPeer(PeerIdentity(peer, told.run_id), address.service_url, address.service_url_tls)


def peer_id(service_url: str) -> str:
    """The id of the broker with that service URL, or that id itself."""
    return service_url.rpartition("/")[2]
