"""Several real brokers over one memory store and one memory medium, in one process.

Topics are placed by the test. Brokers ask each other as they do over a link: what they send is encoded and decoded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
import msgspec

from anabranch.broker.admin.elsewhere import BrokerSilent, InnerAnswer, InnerRequest
from anabranch.broker.admin.http.app import RestApp
from anabranch.broker.broker import Broker
from anabranch.broker.catalog.owners import BrokerAddress
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.policy.namespace import ClusterRecord
from anabranch.broker.rest import create_app
from anabranch.broker.security.rights import Authorizer
from anabranch.metadata.memory import MemoryMetadata, MemoryStore
from anabranch.metadata.port import MetadataStore, Watch
from anabranch.model.names import TopicName
from anabranch.model.position import Incarnation
from anabranch.storage.memory import MemoryLogStore, MemoryMedium
from harness.simple_client import Client

NOW_MS = 1_700_000_000_000


@dataclass
class Places:
    """Which broker owns what, for all brokers: partitions in turn, everything else the first, except what is moved."""

    addresses: list[BrokerAddress] = field(default_factory=list)
    moved: dict[TopicName, int] = field(default_factory=dict)

    def at(self, topic: TopicName) -> int:
        if topic in self.moved:
            return self.moved[topic]
        return topic.partition_index % len(self.addresses) if topic.is_partition else 0


@dataclass
class PlacedOwners:
    """Implements `Owners` for one broker. `believed` is what this broker wrongly takes for the owner."""

    places: Places
    mine: int
    believed: dict[TopicName, int] = field(default_factory=dict)

    def owner(self, topic: TopicName) -> BrokerAddress:
        return self.places.addresses[self.believed.get(topic, self.places.at(topic))]

    async def resolve(self, topic: TopicName) -> BrokerAddress:
        return self.owner(topic)

    def is_mine(self, topic: TopicName) -> bool:
        return self.believed.get(topic, self.places.at(topic)) == self.mine

    def on_change(self, callback: Callable[..., None]) -> Callable[[], None]:
        return lambda: None


@dataclass
class InProcess:
    """Implements `Elsewhere` for one broker: calls the other's application."""

    me: int
    places: Places
    apps: list[RestApp]
    silent: set[int] = field(default_factory=set)
    asked: list[tuple[int, InnerRequest]] = field(default_factory=list)
    # Called when a request has arrived, before it is answered.
    arrived: Callable[[int, InnerRequest], None] = lambda number, request: None
    has_others = True

    async def others(self) -> Sequence[BrokerAddress]:
        return [address for number, address in enumerate(self.places.addresses) if number != self.me]

    async def ask(
        self, broker: BrokerAddress, request: InnerRequest, *, answer_max_s: float = 30.0
    ) -> InnerAnswer:
        number = [one.service_url for one in self.places.addresses].index(broker.service_url)
        self.asked.append((number, request))
        if number in self.silent:
            raise BrokerSilent(f"{broker.service_url} does not answer")
        self.arrived(number, request)
        carried = msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=InnerRequest)
        answer = await self.apps[number].inner(carried)
        return msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=InnerAnswer)

    def serve(self, answer: Callable[[InnerRequest], Awaitable[InnerAnswer]]) -> None:
        """The applications are called as they are."""


class LateStore:
    """A session whose watches are late: they say nothing for as long as the test runs."""

    def __init__(self, inner: MemoryStore) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def watch(self, prefix: str) -> Watch:
        return self._inner.watch("/never")


@dataclass
class Member:
    """One broker of several, with a REST client and a wire client of its own."""

    broker: Broker
    http: httpx.AsyncClient
    client: Client
    owners: PlacedOwners
    elsewhere: InProcess
    app: RestApp

    async def call(self, method: str, path: str, status: int | None = None, **kwargs: Any) -> httpx.Response:
        answer = await self.http.request(method, path, **kwargs)
        if status is None:
            assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        else:
            assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer

    async def get(self, path: str, **kwargs: Any) -> Any:
        return (await self.call("GET", path, **kwargs)).json()

    async def refused(self, method: str, path: str, status: int, **kwargs: Any) -> str:
        return str((await self.call(method, path, status, **kwargs)).json()["reason"])

    async def publish(self, topic: str, *payloads: bytes) -> None:
        producer = await self.client.producer(topic)
        for receipt in [await producer.send(payload) for payload in payloads]:
            await receipt
        await producer.close()


@contextlib.asynccontextmanager
async def several(
    count: int = 3,
    config: BrokerConfig | None = None,
    *,
    authorizer: Authorizer | None = None,
    late: Collection[int] = (),
    now_ms: Callable[[], int] = lambda: NOW_MS,
) -> AsyncIterator[list[Member]]:
    """The watches of the brokers that are `late` tell them nothing."""
    store, medium, places = MemoryMetadata(now_ms), MemoryMedium(), Places()
    apps: list[RestApp] = []
    async with contextlib.AsyncExitStack() as stack:
        members: list[Member] = []
        clients: list[Client] = []
        owned: list[PlacedOwners] = []
        told: list[InProcess] = []
        made: list[Broker] = []
        loop = asyncio.get_running_loop()
        for number in range(count):
            accept = lambda number=number: made[number].new_session()  # noqa: E731
            server = await loop.create_server(accept, "127.0.0.1", 0)
            stack.callback(server.close)
            url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            places.addresses.append(BrokerAddress(url, f"http://broker-{number}:8080"))
        for number, address in enumerate(places.addresses):
            metadata = await store.connect()
            stack.push_async_callback(metadata.close)
            seen = cast("MetadataStore", LateStore(metadata)) if number in late else metadata
            resources = Resources(seen)
            await resources.start()
            stack.push_async_callback(resources.close)
            await resources.bootstrap(ClusterRecord(service_url="http://localhost:8080"))
            log = MemoryLogStore(medium, incarnation=Incarnation(f"broker-{number}"))
            await log.start()
            owners = PlacedOwners(places, number)
            elsewhere = InProcess(number, places, apps)
            owned.append(owners)
            told.append(elsewhere)
            broker = Broker(
                config or BrokerConfig(),
                seen,
                log,
                resources,
                service_url=address.service_url,
                http_url=address.http_url,
                now_ms=now_ms,
                authorizer=authorizer,
                owners=owners,
                remote_segments=lambda owner: made[places.addresses.index(owner)].segment_owner,
                elsewhere=elsewhere,
            )
            made.append(broker)
            await broker.start()
            stack.push_async_callback(broker.close)
            apps.append(create_app(broker.admin_services(), broker.page))
            client = await stack.enter_async_context(Client(address.service_url))
            clients.append(client)
        reached: dict[str, httpx.AsyncBaseTransport | None] = {
            address.http_url: httpx.ASGITransport(app)
            for address, app in zip(places.addresses, apps, strict=True)
        }
        for number, broker in enumerate(made):
            http = await stack.enter_async_context(
                httpx.AsyncClient(mounts=reached, base_url=broker.http_url, follow_redirects=True)
            )
            members.append(Member(broker, http, clients[number], owned[number], told[number], apps[number]))
        yield members
