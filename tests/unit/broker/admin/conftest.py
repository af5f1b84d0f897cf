"""A real broker on the memory adapters: REST through the ASGI application, messages over a loopback socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from anabranch.broker.broker import Broker
from anabranch.broker.catalog.owners import BrokerAddress, Owners
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.policy.namespace import ClusterRecord
from anabranch.broker.rest import create_app
from anabranch.broker.scalable.owner.segments import unreachable
from anabranch.broker.security.rights import Authorizer
from anabranch.controller.ports import Segments
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.position import Incarnation
from anabranch.storage.memory import MemoryLogStore
from harness.simple_client import Client

NOW_MS = 1_700_000_000_000


@dataclass
class Rest:
    """Requests that say what they expect: `await rest.get("/x")` is JSON of a 2xx answer."""

    http: httpx.AsyncClient
    broker: Broker
    client: Client

    async def call(self, method: str, path: str, status: int | None = None, **kwargs: Any) -> httpx.Response:
        answer = await self.http.request(method, path, **kwargs)
        if status is None:
            assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        else:
            assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text}"
        if answer.status_code >= 400:
            assert answer.json().keys() == {"reason"}, answer.text
        return answer

    async def get(self, path: str, **kwargs: Any) -> Any:
        return (await self.call("GET", path, **kwargs)).json()

    async def refused(self, method: str, path: str, status: int, **kwargs: Any) -> str:
        return str((await self.call(method, path, status, **kwargs)).json()["reason"])

    async def publish(self, topic: str, *payloads: bytes, key: str | None = None) -> list[tuple[int, int]]:
        producer = await self.client.producer(topic)
        receipts = [await producer.send(payload, key=key) for payload in payloads]
        await producer.close()
        return [await receipt for receipt in receipts]


@contextlib.asynccontextmanager
async def serving(
    store: MemoryMetadata,
    config: BrokerConfig | None = None,
    *,
    http_url: str = "http://localhost:8080",
    authorizer: Authorizer | None = None,
    owners: Owners | None = None,
    remote_segments: Callable[[BrokerAddress], Segments] | None = None,
    now_ms: Callable[[], int] = lambda: NOW_MS,
) -> AsyncIterator[Rest]:
    """One broker with a session of its own on the store."""
    metadata = await store.connect()
    resources = Resources(metadata)
    await resources.start()
    await resources.bootstrap(ClusterRecord(service_url="http://localhost:8080"))
    log = MemoryLogStore(incarnation=Incarnation(http_url))
    await log.start()
    loop = asyncio.get_running_loop()
    brokers: list[Broker] = []
    server = await loop.create_server(lambda: brokers[0].new_session(), "127.0.0.1", 0)
    url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    broker = Broker(
        config or BrokerConfig(),
        metadata,
        log,
        resources,
        service_url=url,
        http_url=http_url,
        now_ms=now_ms,
        authorizer=authorizer,
        owners=owners,
        remote_segments=remote_segments or unreachable,
    )
    brokers.append(broker)
    await broker.start()
    transport = httpx.ASGITransport(create_app(broker.admin_services(), broker.page))
    async with (
        httpx.AsyncClient(transport=transport, base_url=http_url) as http,
        Client(url) as client,
    ):
        yield Rest(http, broker, client)
    server.close()
    await broker.close()
    await resources.close()
    await metadata.close()


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    async with serving(MemoryMetadata(lambda: NOW_MS)) as made:
        yield made
