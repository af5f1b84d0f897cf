"""Several `Peers` over one memory store, served by real sessions over real sockets, without the rest of a broker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import msgspec

from anabranch.broker.catalog.registry import BROKERS
from anabranch.broker.connection.session import ClientSession, SessionSettings
from anabranch.broker.peers.directory import RegisteredPeers
from anabranch.broker.peers.handshake import METHOD, PeerIdentity
from anabranch.broker.peers.link import PLAIN, PeerTls
from anabranch.broker.peers.methods import PeerMethod
from anabranch.broker.peers.peers import Peers
from anabranch.metadata.memory import MemoryMetadata, MemoryStore
from anabranch.wire import pulsar_pb2 as pb


class Asked(msgspec.Struct, frozen=True):
    text: str = ""


class Told(msgspec.Struct, frozen=True):
    text: str = ""


ECHO = PeerMethod("test.echo", Asked, Told)


@dataclass(eq=False)
class PeerNode:
    """Implements the `Commands` and `Surroundings` of its sessions, for peers only."""

    peers: Peers
    metadata: MemoryStore
    server: asyncio.Server
    has_tls: bool
    sessions: list[ClientSession] = field(default_factory=list)
    is_congested = False

    @property
    def id(self) -> str:
        return self.peers.me.id

    def perform(self, session: ClientSession, kind: int, command: pb.BaseCommand) -> None:
        if kind == pb.BaseCommand.CONNECT and command.connect.auth_method_name == METHOD:
            self.peers.acceptor.connect(session, command.connect)
        elif kind == pb.BaseCommand.CONNECT:
            session.write((session.connection.accept("lab"),))
        elif kind == pb.BaseCommand.AUTH_RESPONSE:
            self.peers.acceptor.answer(session, command.authResponse)
        elif kind == pb.BaseCommand.ANABRANCH_PEER:
            self.peers.acceptor.request(session, command.anabranchPeer)

    def opened(self, session: ClientSession) -> None:
        self.sessions.append(session)

    def became_peer(self, session: ClientSession) -> None: ...

    def closed(self, session: ClientSession) -> None:
        self.sessions.remove(session)

    def refused(self) -> None: ...

    def pause(self, session: ClientSession) -> None: ...

    def connection_lost(self, session: ClientSession) -> None: ...

    def link_writable(self, session: ClientSession) -> None: ...


SETTINGS = SessionSettings(
    message_bytes_max=100_000, keep_alive_s=30, write_buffer_bytes=64 << 10, unanswered_publishes_max=0
)


@dataclass
class PeerLab:
    store: MemoryMetadata = field(default_factory=lambda: MemoryMetadata(lambda: 0))
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def node(
        self,
        run: str = "run",
        *,
        registered: str | None = None,
        starts: bool = True,
        tls: PeerTls = PLAIN,
        context: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
    ) -> PeerNode:
        """A broker's links; `registered` is the run id in its registration, if not its own. With `context` its port
        speaks TLS."""
        loop = asyncio.get_running_loop()
        metadata = await self.store.connect()
        made: list[PeerNode] = []
        server = await loop.create_server(
            lambda: ClientSession(loop, SETTINGS, made[0], made[0]), host, 0, ssl=context
        )
        port = server.sockets[0].getsockname()[1]
        numbers = iter(range(1 << 30))
        peers = Peers(
            PeerIdentity(f"{host}:{port}", run),
            metadata,
            RegisteredPeers(metadata),
            lambda size: next(numbers).to_bytes(size, "big"),
            tls=tls,
            server_version="lab",
        )
        node = PeerNode(peers, metadata, server, context is not None)
        made.append(node)
        self.stack.push_async_callback(metadata.close)
        self.stack.push_async_callback(peers.close)
        self.stack.callback(server.close)
        await self.register(node, run if registered is None else registered)
        if starts:
            await peers.start()
        return node

    async def register(self, node: PeerNode, run: str) -> None:
        value = {
            "pulsarServiceUrl": f"pulsar://{node.id}",
            "pulsarServiceUrlTls": f"pulsar+ssl://{node.id}" if node.has_tls else "",
            "webServiceUrl": "",
            "runId": run,
        }
        await node.metadata.put(f"{BROKERS}/{node.id}", json.dumps(value).encode())

    async def pair(self) -> tuple[PeerNode, PeerNode]:
        return await self.node("one"), await self.node("two")


@contextlib.asynccontextmanager
async def peer_lab() -> AsyncIterator[PeerLab]:
    lab = PeerLab()
    async with lab.stack:
        yield lab
