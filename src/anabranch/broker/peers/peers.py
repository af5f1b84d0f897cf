"""The other brokers, as parts of this one see them: calls to them, and the table of what they may ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import msgspec

from anabranch.broker.peers.acceptor import PeerAcceptor
from anabranch.broker.peers.directory import PeerDirectory, peer_id
from anabranch.broker.peers.handlers import PeerHandlers
from anabranch.broker.peers.handshake import PeerIdentity
from anabranch.broker.peers.link import PLAIN, PeerLink, PeerTls
from anabranch.broker.peers.methods import HELLO, Hello, Nothing, PeerMethod
from anabranch.broker.peers.secret import cluster_secret
from anabranch.broker.security.authentication import AuthenticationFailed
from anabranch.metadata.port import MetadataStore

R = TypeVar("R", bound=msgspec.Struct)
A = TypeVar("A", bound=msgspec.Struct)

# Links to brokers that are gone are dropped beyond this number.
LINKS_MAX: Final = 256


class Peers:
    def __init__(
        self,
        me: PeerIdentity,
        metadata: MetadataStore,
        directory: PeerDirectory,
        random_bytes: Callable[[int], bytes],
        *,
        tls: PeerTls = PLAIN,
        server_version: str = "",
    ) -> None:
        self.me = me
        self.handlers = PeerHandlers()
        self._metadata = metadata
        self._directory = directory
        self._random_bytes = random_bytes
        self._tls = tls
        self._links: dict[str, PeerLink] = {}
        self._runs: dict[str, str] = {}  # Of the living brokers, as last heard.
        self._found_secret: bytes | None = None
        self.acceptor = PeerAcceptor(
            me,
            directory,
            self._secret,
            self.handlers,
            random_bytes,
            server_version=server_version,
        )
        self.handlers.add(HELLO, self._hello)
        self._server_version = server_version

    async def start(self) -> None:
        """From here on this broker can call others, and be called. A broker that has no others never starts this."""
        self._found_secret = await cluster_secret(self._metadata, self._random_bytes)

    def living(self, runs: Mapping[str, str]) -> None:
        """To be called when registrations have changed, with the run ids of all living brokers by their ids: calls to
        others end, and calls of others are not listened to."""
        before, self._runs = self._runs, dict(runs)
        # A broker that was never seen here has registered a moment ago: it is not gone.
        for link in self._links.values():
            if link.peer in before and before[link.peer] != runs.get(link.peer):
                link.gone(before[link.peer])
        self.acceptor.living(before, runs)

    async def close(self) -> None:
        await self.acceptor.close()
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links))

    async def call(
        self, broker: str, method: PeerMethod[R, A], request: R, *, answer_max_s: float | None = None
    ) -> A:
        """The answer of the broker with that id or service URL, which may be this one.

        PeerUnavailable if there is no answer: then the call may have taken effect. Other errors are the answer."""
        peer = peer_id(broker)
        if peer == self.me.id:
            # The same way as for others, less the wire: a request means the same wherever it is sent.
            answer = await self.handlers.perform(peer, method.name, method.encode(request))
            return method.read_answer(answer)
        return await self._link(peer).call(method, request, answer_max_s)

    def is_linked(self, broker: str) -> bool:
        """Whether the link to that broker is open now."""
        link = self._links.get(peer_id(broker))
        return link is not None and link.is_open

    def _link(self, peer: str) -> PeerLink:
        link = self._links.get(peer)
        if link is None:
            if len(self._links) >= LINKS_MAX:
                for gone in [one for one, link in self._links.items() if link.is_unused]:
                    del self._links[gone]
            link = self._links[peer] = PeerLink(
                peer, self.me, self._directory, self._secret, self._tls, self._random_bytes
            )
        return link

    def _secret(self) -> bytes:
        if self._found_secret is None:
            raise AuthenticationFailed("this broker has no other brokers beside it")
        return self._found_secret

    async def _hello(self, peer: str, request: Nothing) -> Hello:
        return Hello(self._server_version)
