"""Which broker serves a topic, and how brokers find each other.

Ownership says who should open a topic; the log's fence says who can write it. A broker alone owns everything. Each
broker registers itself at `/loadbalance/brokers/{host:port}` for as long as its session lasts, so that whoever knows a
broker by one of its addresses finds the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from anabranch.errors import AnabranchError
from anabranch.metadata.errors import AlreadyExists, MetadataError
from anabranch.metadata.port import MetadataStore, SessionState
from anabranch.model.names import TopicName

log = logging.getLogger(__name__)

BROKERS: Final = "/loadbalance/brokers"
# How long to wait before a registration that the store refused is tried again.
RETRY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Owner:
    """A broker, as clients reach it."""

    service_url: str
    http_url: str
    service_url_tls: str = ""


class Owners(Protocol):
    def owner(self, topic: TopicName) -> Owner:
        """The broker that should serve the topic now."""
        ...

    def is_mine(self, topic: TopicName) -> bool: ...

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back, on the event loop, whenever some topic may have another owner. The result ends it."""
        ...


class SoleOwner:
    """One broker, which owns everything."""

    def __init__(self, me: Owner) -> None:
        self._me = me

    def owner(self, topic: TopicName) -> Owner:
        return self._me

    def is_mine(self, topic: TopicName) -> bool:
        return True

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


def broker_path(service_url: str) -> str:
    """Where the broker of that service URL registers."""
    return f"{BROKERS}/{service_url.rpartition('/')[2]}"


class BrokerRegistry:
    """This broker's own entry, kept for as long as it runs, and the look into those of others."""

    def __init__(self, metadata: MetadataStore, me: Owner, started_ms: int) -> None:
        self._metadata = metadata
        self._path = broker_path(me.service_url)
        value = {
            "pulsarServiceUrl": me.service_url,
            "pulsarServiceUrlTls": me.service_url_tls,
            "webServiceUrl": me.http_url,
            "startTimestamp": started_ms,
        }
        self._value = json.dumps(value, separators=(",", ":")).encode()
        self._me = me
        self._stop: Callable[[], None] | None = None
        self._registering: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._stop = self._metadata.session.on_change(self._session_changed)
        await self._register()

    async def close(self) -> None:
        if self._stop is not None:
            self._stop()
        if self._registering is not None:
            self._registering.cancel()
            await asyncio.gather(self._registering, return_exceptions=True)
        with contextlib.suppress(MetadataError):
            await self._metadata.delete(self._path)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            if self._registering is not None:
                self._registering.cancel()
            # Awaited by `close`.
            self._registering = asyncio.create_task(self._register_until_done())

    async def _register_until_done(self) -> None:
        while True:
            try:
                await self._register()
                return
            except MetadataError as error:
                log.warning("this broker could not register itself: %s", error)
                await asyncio.sleep(RETRY_S)

    async def _register(self) -> None:
        while True:
            found = await self._metadata.get(self._path)
            if found is not None and found.owner == self._metadata.session.id:
                return
            if found is not None:
                # An earlier run's, on the same address: its session is about to end, and would take ours with it.
                await self._metadata.delete(self._path)
            with contextlib.suppress(AlreadyExists):
                await self._metadata.create(self._path, self._value, ephemeral=True)
                return

    async def find(self, service_url: str) -> Owner | None:
        """The broker that registered with that service URL; None if there is none now."""
        if service_url == self._me.service_url:
            return self._me
        found = await self._metadata.get(broker_path(service_url))
        if found is None:
            return None
        try:
            value = json.loads(found.value)
            return Owner(
                value["pulsarServiceUrl"], value["webServiceUrl"], value.get("pulsarServiceUrlTls") or ""
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadRegistration(f"the registration of {service_url} cannot be read: {error!r}") from error

    async def web_url(self, service_url: str) -> str:
        """Where that broker answers admin REST; empty if it is not registered."""
        found = await self.find(service_url)
        return "" if found is None else found.http_url


class BadRegistration(AnabranchError):
    """A broker's stored registration that cannot be read."""
