"""Connections whose token runs out: asked for a newer one, and ended if there is none. A clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import jwt
import pytest

import anabranch
from anabranch.broker.broker import Broker
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.policy.namespace import ClusterRecord
from anabranch.broker.security.authentication import Authentication
from anabranch.broker.security.tokens import Tokens
from anabranch.client.errors import AccessFailed, RequestRefused
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.position import Incarnation
from anabranch.storage.memory import MemoryLogStore

SECRET = bytes(range(32))
START_S = 1_700_000_000


def token(role: str = "alice", lasts_s: int | None = None) -> str:
    claims: dict[str, object] = {"sub": role}
    if lasts_s is not None:
        claims["exp"] = START_S + lasts_s
    return jwt.encode(claims, SECRET, "HS256")


@dataclass
class River:
    url: str
    broker: Broker
    clock: Clock

    @property
    def roles(self) -> list[str]:
        return [session.role for session in self.broker.sessions]


@dataclass
class Clock:
    now_s: int = START_S

    def ms(self) -> int:
        return self.now_s * 1000


@contextlib.asynccontextmanager
async def serving(authentication: Authentication) -> AsyncIterator[River]:
    clock = Clock()
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
        BrokerConfig(keep_alive_interval_seconds=1, authentication_refresh_check_seconds=0.05),
        metadata,
        log,
        resources,
        service_url=url,
        http_url="http://localhost:8080",
        now_ms=clock.ms,
        authentication=authentication,
    )
    brokers.append(broker)
    await broker.start()
    try:
        yield River(url, broker, clock)
    finally:
        server.close()
        await broker.close()
        await resources.close()
        await metadata.close()


@pytest.fixture
async def river() -> AsyncIterator[River]:
    async with serving(Authentication(Tokens(SECRET, ["HS256"]))) as made:
        yield made


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not met():  # noqa: ASYNC110  # It is a deadline that the loop looks at, not an event.
            await asyncio.sleep(0.01)


async def test_a_client_with_a_token_has_its_role(river: River) -> None:
    async with anabranch.connect(river.url, token=token()) as client:
        producer = await client.producer("topic://public/default/t")
        await producer.send(b"1")
        assert set(river.roles) == {"alice"}


@pytest.mark.parametrize("shown", [None, "nonsense", token(lasts_s=-1)])
async def test_a_client_that_proves_nothing_is_told_so_at_once(river: River, shown: str | None) -> None:
    async with anabranch.connect(river.url, token=shown) as client:
        with pytest.raises(RequestRefused, match="AuthenticationError"):
            await client.producer("topic://public/default/t")


async def test_a_token_that_runs_out_is_renewed_on_the_same_connection(river: River) -> None:
    shown: list[str] = []

    def newest() -> str:
        # The first lasts a minute, later ones an hour.
        shown.append(token(lasts_s=60 if river.clock.now_s == START_S else 3600))
        return shown[-1]

    async with anabranch.connect(river.url, token=newest) as client:
        producer = await client.producer("topic://public/default/t")
        await producer.send(b"1")
        sessions = list(river.broker.sessions)
        river.clock.now_s += 61
        await until(lambda: all(s.identity.expires_s == START_S + 3600 for s in sessions))
        await producer.send(b"2")
        assert list(river.broker.sessions) == sessions


async def test_a_connection_whose_token_is_not_renewed_is_ended(river: River) -> None:
    async with anabranch.connect(river.url, token=token(lasts_s=60)) as client:
        await (await client.producer("topic://public/default/t")).send(b"1")
        sessions = list(river.broker.sessions)
        river.clock.now_s += 61
        await until(lambda: not any(session.is_open for session in sessions))


async def test_a_connection_does_not_change_hands(river: River) -> None:
    tokens = iter([token(lasts_s=60), token(lasts_s=60)])
    async with anabranch.connect(
        river.url, token=lambda: next(tokens, token("mallory", lasts_s=3600))
    ) as client:
        await (await client.producer("topic://public/default/t")).send(b"1")
        sessions = list(river.broker.sessions)
        river.clock.now_s += 61
        await until(lambda: not any(session.is_open for session in sessions))
        assert all(session.role == "alice" for session in sessions)


async def test_a_token_file_that_is_not_there_is_named(river: River) -> None:
    async with anabranch.connect(river.url, token="file:///nowhere/token") as client:
        with pytest.raises(AccessFailed, match="/nowhere/token cannot be read"):
            await client.producer("topic://public/default/t")
