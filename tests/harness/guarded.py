"""A real broker on the memory adapters that requires tokens, and calls of different roles on both protocols."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

import httpx
import jwt
import msgspec

from anabranch.broker.admin.http.app import RestApp
from anabranch.broker.admin.http.route_table import FoundRoute
from anabranch.broker.broker import Broker
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.policy.namespace import ClusterRecord, Tenant
from anabranch.broker.rest import create_app
from anabranch.broker.security.authentication import Authentication
from anabranch.broker.security.stored_rights import StoredRights
from anabranch.broker.security.tokens import Tokens
from anabranch.metadata.memory import MemoryMetadata, MemoryStore
from anabranch.model.names import NamespaceName
from anabranch.model.position import Incarnation
from anabranch.storage.memory import MemoryLogStore
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.encode import encode_command
from anabranch.wire.frames import FrameDecoder

C = pb.BaseCommand
SECRET = bytes(range(32))
START_S = 1_700_000_000
ANSWER_MAX_S = 10.0


def token(role: str, lasts_s: int | None = None) -> str:
    claims: dict[str, object] = {"sub": role}
    if lasts_s is not None:
        claims["exp"] = START_S + lasts_s
    return jwt.encode(claims, SECRET, "HS256")


@dataclass
class Clock:
    now_s: float = START_S

    def ms(self) -> int:
        return int(self.now_s * 1000)


class Wire:
    """One connection of the binary protocol, command by command."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = FrameDecoder()
        self._unread: list[pb.BaseCommand] = []

    def send(self, kind: int, field: str, **values: Any) -> None:
        command = C(type=cast("pb.BaseCommand.Type", kind))
        body = getattr(command, field)
        body.SetInParent()
        for name, value in values.items():
            if isinstance(value, list):
                getattr(body, name).extend(value)
            elif hasattr(value, "DESCRIPTOR"):
                getattr(body, name).CopyFrom(value)
            else:
                setattr(body, name, value)
        self.send_command(command)

    def send_command(self, command: pb.BaseCommand) -> None:
        self._writer.write(encode_command(command))

    async def receive(self) -> pb.BaseCommand | None:
        """The next command; None once the broker has closed the connection."""
        async with asyncio.timeout(ANSWER_MAX_S):
            while not self._unread:
                try:
                    data = await self._reader.read(1 << 16)
                except ConnectionError:
                    data = b""
                if not data:
                    return None
                for _, command, _ in self._decoder.feed(data):
                    self._unread.append(C.FromString(command.SerializeToString()))
            return self._unread.pop(0)

    async def ask(self, kind: int, field: str, **values: Any) -> pb.BaseCommand:
        """The next answer, which must come."""
        self.send(kind, field, **values)
        answer = await self.receive()
        assert answer is not None, "the broker closed the connection"
        return answer

    async def settle(self) -> list[pb.BaseCommand] | None:
        """What came until everything sent is read and answered; None if the connection was closed meanwhile."""
        self.send_command(C(type=C.PING, ping=pb.CommandPing()))
        found: list[pb.BaseCommand] = []
        while (command := await self.receive()) is not None:
            if command.type == C.PONG:
                return found
            found.append(command)
        return None

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


@dataclass
class Guarded:
    url: str
    broker: Broker
    clock: Clock
    http: httpx.AsyncClient
    app: RestApp
    metadata: MemoryStore

    def find_route(self, method: str, path: str) -> FoundRoute | None:
        """The route that answers; None if there is none, or none for this method."""
        found = self.app.table.find(method, path)
        return found if found is not None and found.runs else None

    async def rest(
        self, role: str | None, method: str, path: str, status: int | None = None, **options: Any
    ) -> httpx.Response:
        """A request of that role; None: without a token."""
        headers = {} if role is None else {"Authorization": f"Bearer {token(role)}"}
        answer = await self.http.request(method, path, headers=headers, **options)
        if status is not None:
            assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer

    async def open(self) -> Wire:
        host, port = self.url.removeprefix("pulsar://").split(":")
        return Wire(*await asyncio.open_connection(host, int(port)))

    @contextlib.asynccontextmanager
    async def wire(
        self, proof: str | bytes | None, method: str = "token", **connect: Any
    ) -> AsyncIterator[tuple[Wire, pb.BaseCommand | None]]:
        """A connection that has sent CONNECT with that proof, and the answer."""
        wire = await self.open()
        shown: dict[str, Any] = {}
        if proof is not None:
            shown = {
                "auth_method_name": method,
                "auth_data": proof if isinstance(proof, bytes) else proof.encode(),
            }
        wire.send(C.CONNECT, "connect", client_version="peer", protocol_version=21, **shown, **connect)
        try:
            yield wire, await wire.receive()
        finally:
            await wire.close()

    @contextlib.asynccontextmanager
    async def as_role(self, role: str) -> AsyncIterator[Wire]:
        async with self.wire(token(role)) as (wire, answer):
            assert answer is not None
            assert answer.type == C.CONNECTED, answer
            yield wire


@contextlib.asynccontextmanager
async def guarded(*, authentication: Authentication | None = None, **settings: Any) -> AsyncIterator[Guarded]:
    """A broker with super user `root`, and tenant `acme` with namespace `acme/news` and admin `boss`."""
    clock = Clock()
    config = BrokerConfig(authentication_enabled=True, authorization_enabled=True, super_user_roles=("root",))
    config = msgspec.structs.replace(config, **settings)
    metadata = await MemoryMetadata(clock_ms=clock.ms).connect()
    resources = Resources(metadata)
    await resources.start()
    await resources.bootstrap(ClusterRecord(service_url="http://localhost:8080"))
    log = MemoryLogStore(incarnation=Incarnation("one"))
    await log.start()
    brokers: list[Broker] = []
    server = await asyncio.get_running_loop().create_server(lambda: brokers[0].new_session(), "127.0.0.1", 0)
    url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    broker = Broker(
        config,
        metadata,
        log,
        resources,
        service_url=url,
        http_url="http://localhost:8080",
        now_ms=clock.ms,
        authentication=authentication or Authentication(Tokens(SECRET, ["HS256"])),
        authorizer=StoredRights(
            resources,
            config.super_user_roles,
            allows_wildcards=config.authorization_allow_wildcards_matching,
        ),
    )
    brokers.append(broker)
    await broker.start()
    app = create_app(broker.admin_services(), broker.page)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as http:
        made = Guarded(url, broker, clock, http, app, metadata)
        tenant = Tenant(admin_roles=("boss",), allowed_clusters=(resources.cluster,))
        await resources.create_tenant("acme", tenant)
        await resources.create_namespace(NamespaceName("acme", "news"))
        yield made
    server.close()
    await broker.close()
    await resources.close()
    await metadata.close()
