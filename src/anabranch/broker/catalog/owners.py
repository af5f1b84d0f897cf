"""Which broker serves a topic, and how brokers find each other.

Ownership is by bundle (`model/bundles.py`). It decides which broker should open a topic; the log's fence decides which
one can write it. So owners may be wrong for a moment, and two brokers may disagree about them, and nothing is lost by
it. A single broker owns everything. Each broker registers itself at `/loadbalance/brokers/{host:port}` for as long as
its session lasts, so that a client or broker that knows one of its addresses finds the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from anabranch.broker.config.listeners import Addresses, default
from anabranch.errors import AnabranchError
from anabranch.metadata.errors import AlreadyExists, MetadataError
from anabranch.metadata.port import MetadataStore, SessionState
from anabranch.model.bundles import BundleName
from anabranch.model.names import TopicName

log = logging.getLogger(__name__)

BROKERS: Final = "/loadbalance/brokers"
# How long to wait before retrying a registration that the store refused.
RETRY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker's addresses for clients."""

    service_url: str
    http_url: str
    service_url_tls: str = ""
    http_url_tls: str = ""
    # By the names of its `advertisedListeners`.
    listeners: Mapping[str, Addresses] = field(default_factory=dict, hash=False)

    @property
    def id(self) -> str:
        """`host:port`, by which brokers know each other."""
        return broker_id(self.service_url)

    @property
    def for_clients(self) -> Addresses | None:
        """Where any client reaches this broker. None if it has several listeners: which one a client uses is known only
        when the client looks a topic up."""
        if len(self.listeners) > 1:
            return None
        own = Addresses(self.service_url, self.service_url_tls, self.http_url, self.http_url_tls)
        return default(self.listeners, own)


# What `on_change` calls: with the bundles that have another owner.
OwnersListener = Callable[[frozenset[BundleName]], None]


class Owners(Protocol):
    def owner(self, topic: TopicName) -> BrokerAddress | None:
        """The broker that should serve the topic now; None while none is known, or while the topic's bundle moves."""
        ...

    async def resolve(self, topic: TopicName) -> BrokerAddress:
        """The broker that should serve the topic. Waits a bounded time for one to be known; NotReadyError, which is
        retryable, if none is. Call this before a topic is opened: it also waits while this broker may open nothing
        because its session is in doubt."""
        ...

    def is_mine(self, topic: TopicName) -> bool:
        """Whether `owner` is this broker."""
        ...

    def on_change(self, callback: OwnersListener) -> Callable[[], None]:
        """Calls `callback`, on the event loop, with the bundles that have another owner than before, or none. When the
        boundaries of a namespace's bundles change, these are the old and the new ones. Returns a function to stop."""
        ...


class SoleOwner:
    """A single broker, which owns everything."""

    def __init__(self, me: BrokerAddress) -> None:
        self._me = me

    def owner(self, topic: TopicName) -> BrokerAddress | None:
        return self._me

    async def resolve(self, topic: TopicName) -> BrokerAddress:
        return self._me

    def is_mine(self, topic: TopicName) -> bool:
        return True

    def on_change(self, callback: OwnersListener) -> Callable[[], None]:
        return lambda: None


def broker_id(service_url: str) -> str:
    """The id of the broker with that service URL: `host:port`."""
    return service_url.rpartition("/")[2]


def broker_path(service_url: str) -> str:
    """The path at which the broker of that service URL registers."""
    return f"{BROKERS}/{broker_id(service_url)}"


class BrokerRegistry:
    """This broker's own registration, kept for as long as it runs, and look-ups of other brokers' registrations."""

    def __init__(self, metadata: MetadataStore, me: BrokerAddress, started_ms: int) -> None:
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
                log.warning("registering this broker failed: %s", error)
                await asyncio.sleep(RETRY_S)

    async def _register(self) -> None:
        while True:
            found = await self._metadata.get(self._path)
            if found is not None and found.owner == self._metadata.session.id:
                return
            if found is not None:
                # The registration of an earlier run on the same address: when its session ends, the node would be
                # deleted under ours.
                await self._metadata.delete(self._path)
            with contextlib.suppress(AlreadyExists):
                await self._metadata.create(self._path, self._value, ephemeral=True)
                return

    async def find(self, service_url: str) -> BrokerAddress | None:
        """The broker that registered with that service URL; None if there is none now."""
        if service_url == self._me.service_url:
            return self._me
        found = await self._metadata.get(broker_path(service_url))
        if found is None:
            return None
        try:
            value = json.loads(found.value)
            return BrokerAddress(
                value["pulsarServiceUrl"], value["webServiceUrl"], value.get("pulsarServiceUrlTls") or ""
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadRegistration(f"the registration of {service_url} cannot be read: {error!r}") from error

    async def web_url(self, service_url: str) -> str:
        """The URL of that broker's admin REST; empty if it is not registered."""
        found = await self.find(service_url)
        return "" if found is None else found.http_url


class BadRegistration(AnabranchError):
    """A broker's stored registration cannot be read."""
