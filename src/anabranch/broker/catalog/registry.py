"""How brokers find each other: each registers itself for as long as its session lasts, and follows the registrations of
all.

A registration stands at `/loadbalance/brokers/{host:port}`. Its fields have Pulsar's names; `runId`, `incarnation` and
`isDraining` are ours. A run id belongs to one start of a broker, so two registrations at one path with different run
ids are two processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from anabranch.broker.catalog.owners import BrokerAddress, broker_id
from anabranch.broker.config.listeners import Addresses
from anabranch.errors import AnabranchError
from anabranch.metadata.errors import AlreadyExists, MetadataError
from anabranch.metadata.followed import FollowedRecords
from anabranch.metadata.port import MetadataStore, SessionState, Versioned
from anabranch.model.position import Incarnation
from anabranch.storage.port import Writers

log = logging.getLogger(__name__)

BROKERS: Final = "/loadbalance/brokers"
# How long to wait before retrying a registration that the store refused.
RETRY_S: Final = 1.0


class BadRegistration(AnabranchError):
    """A broker's stored registration cannot be read."""


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """What a broker says of itself to the others."""

    address: BrokerAddress
    run_id: str = ""
    # The incarnation of its log: ledgers of that incarnation are its own for as long as it lives.
    incarnation: str = ""
    version: str = ""
    started_ms: int = 0
    has_persistent_topics: bool = True
    has_non_persistent_topics: bool = True
    # By name of the protocol, as in Pulsar: those besides the binary one and the REST. There are none.
    protocols: Mapping[str, str] = field(default_factory=dict)
    # It is about to end: it still answers, and owns nothing any more.
    is_draining: bool = False

    @property
    def id(self) -> str:
        return self.address.id

    @property
    def web_names(self) -> tuple[str, ...]:
        """Host and port of its REST, with TLS and without: by them Pulsar knows brokers."""
        webs = (self.address.http_url, self.address.http_url_tls)
        return tuple(url.partition("://")[2] for url in webs if url)

    def encode(self) -> bytes:
        told = self.address
        value = {
            "webServiceUrl": told.http_url,
            "webServiceUrlTls": told.http_url_tls,
            "pulsarServiceUrl": told.service_url,
            "pulsarServiceUrlTls": told.service_url_tls,
            "advertisedListeners": {
                name: {
                    "brokerServiceUrl": listener.service_url,
                    "brokerServiceUrlTls": listener.service_url_tls,
                    "brokerHttpUrl": listener.http_url,
                    "brokerHttpsUrl": listener.http_url_tls,
                }
                for name, listener in told.listeners.items()
            },
            "protocols": dict(self.protocols),
            "persistentTopicsEnabled": self.has_persistent_topics,
            "nonPersistentTopicsEnabled": self.has_non_persistent_topics,
            "startTimestamp": self.started_ms,
            "brokerVersion": self.version,
            "runId": self.run_id,
            "incarnation": self.incarnation,
            "isDraining": self.is_draining,
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, stored: bytes) -> BrokerRegistration:
        """Fields that are missing are empty; BadRegistration without the two URLs that every broker has."""
        try:
            value: dict[str, Any] = json.loads(stored)
            listeners = {
                str(name): Addresses(
                    told.get("brokerServiceUrl") or "",
                    told.get("brokerServiceUrlTls") or "",
                    told.get("brokerHttpUrl") or "",
                    told.get("brokerHttpsUrl") or "",
                )
                for name, told in (value.get("advertisedListeners") or {}).items()
            }
            return cls(
                BrokerAddress(
                    value["pulsarServiceUrl"],
                    value["webServiceUrl"],
                    value.get("pulsarServiceUrlTls") or "",
                    value.get("webServiceUrlTls") or "",
                    listeners,
                ),
                value.get("runId") or "",
                value.get("incarnation") or "",
                value.get("brokerVersion") or "",
                int(value.get("startTimestamp") or 0),
                bool(value.get("persistentTopicsEnabled", True)),
                bool(value.get("nonPersistentTopicsEnabled", True)),
                dict(value.get("protocols") or {}),
                bool(value.get("isDraining", False)),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadRegistration(f"a broker's registration cannot be read: {error!r}") from error


def broker_path(service_url: str) -> str:
    """The path at which the broker of that service URL registers."""
    return f"{BROKERS}/{broker_id(service_url)}"


def writers_in(metadata: MetadataStore) -> Writers:
    """Reads the registrations themselves: never what a watch or a cache has told before."""

    async def writers() -> frozenset[Incarnation] | None:
        try:
            # After a fresh read no other read of this session is older.
            await metadata.get(BROKERS, fresh=True)
            found = set()
            for name in await metadata.children(BROKERS):
                stored = await metadata.get(f"{BROKERS}/{name}")
                if stored is None:
                    continue
                incarnation = BrokerRegistration.decode(stored.value).incarnation
                if not incarnation:
                    # Of a release that does not tell: which log it writes is not known.
                    return None
                found.add(Incarnation(incarnation))
            return frozenset(found)
        except (MetadataError, BadRegistration) as error:
            log.warning("which brokers live could not be read: %s", error)
            return None

    return writers


class BrokerRegistry:
    """This broker's own registration, kept for as long as it runs, and those of all living brokers."""

    def __init__(self, metadata: MetadataStore, me: BrokerRegistration) -> None:
        self._metadata = metadata
        self._path = f"{BROKERS}/{me.id}"
        self.me = me
        self._living: dict[str, BrokerRegistration] = {}
        # The session that holds this broker's registration, as last read.
        self._session: str | None = None
        self._listeners: list[Callable[[], None]] = []
        self._followed = FollowedRecords(metadata, BROKERS, self._read)
        self._stop: Callable[[], None] | None = None
        self._registering: asyncio.Task[None] | None = None

    # -- this broker

    async def start(self) -> None:
        """Registers this broker and reads all registrations: `living` has at least this one."""
        self._stop = self._metadata.session.on_change(self._session_changed)
        await self._register()
        await self._followed.start()

    async def register(self) -> None:
        """Registers this broker, unless it is registered."""
        await self._register()

    async def drain(self) -> None:
        """Tells the others that this broker is about to end: it owns nothing from now on."""
        self.me = replace(self.me, is_draining=True)
        await self._tell()

    async def close(self) -> None:
        if self._stop is not None:
            self._stop()
        if self._registering is not None:
            self._registering.cancel()
            await asyncio.gather(self._registering, return_exceptions=True)
        await self._followed.close()
        with contextlib.suppress(MetadataError):
            found = await self._metadata.get(self._path)
            if found is not None and found.owner == self._metadata.session.id:
                await self._metadata.delete(self._path)

    async def _tell(self) -> bool:
        """Stores what is to be told, if the registration is there and ours."""
        found = await self._metadata.get(self._path)
        if found is None or found.owner != self._metadata.session.id:
            return False
        if found.value != self.me.encode():
            # Without the version, a node that is gone by now would be made again, and would not end with the session.
            await self._metadata.put(self._path, self.me.encode(), if_version=found.version)
        return True

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
        while not await self._tell():
            # The registration of an earlier run on the same address: when its session ends, the node would be deleted
            # under ours.
            await self._metadata.delete(self._path)
            with contextlib.suppress(AlreadyExists):
                await self._metadata.create(self._path, self.me.encode(), ephemeral=True)
                return

    # -- all brokers

    def living(self) -> Mapping[str, BrokerRegistration]:
        """The registered brokers by id, as last read; also this one, unless its registration was lost."""
        return MappingProxyType(self._living)

    @property
    def is_registered(self) -> bool:
        """Whether the last read had this very run, in its present session: else the others have seen it go, or have
        not seen it yet."""
        found = self._living.get(self.me.id)
        is_ours = found is not None and found.run_id == self.me.run_id
        session = self._metadata.session
        return is_ours and session.state is not SessionState.LOST and session.id == self._session

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls `callback`, on the event loop, whenever `living` has changed. Returns a function to stop."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def by_incarnation(self, incarnation: str) -> BrokerRegistration | None:
        """The living broker that writes the log of that incarnation; None if there is none."""
        return next((one for one in self._living.values() if one.incarnation == incarnation), None)

    def named(self, text: str) -> BrokerRegistration | None:
        """The living broker with that id, or, as in Pulsar, with that host and port of its REST."""
        if (found := self._living.get(text)) is not None:
            return found
        return next((one for one in self._living.values() if text in one.web_names), None)

    def leader(self) -> BrokerRegistration:
        """The broker that does what one broker is enough for: the one that has run for longest, by what is registered.
        An economy and no safeguard: two brokers may believe that they lead."""
        able = [one for one in self._living.values() if not one.is_draining] or [self.me]
        return min(able, key=lambda one: (one.started_ms, one.id))

    async def find(self, service_url: str) -> BrokerAddress | None:
        """The broker that registered with that service URL; None if there is none now."""
        if service_url == self.me.address.service_url:
            return self.me.address
        if (known := self._living.get(broker_id(service_url))) is not None:
            return known.address
        # It may have registered a moment ago.
        found = await self._metadata.get(broker_path(service_url), fresh=True)
        return None if found is None else BrokerRegistration.decode(found.value).address

    async def web_url(self, service_url: str) -> str:
        """The URL of that broker's admin REST; empty if it is not registered."""
        found = await self.find(service_url)
        return "" if found is None else found.http_url

    def _read(self, records: Mapping[str, Versioned | None]) -> None:
        living, session = dict(self._living), self._session
        if self._path in records:
            own = records[self._path]
            self._session = None if own is None else own.owner
        for path, node in records.items():
            name = path.rpartition("/")[2]
            living.pop(name, None)
            if node is None:
                continue
            try:
                found = BrokerRegistration.decode(node.value)
            except BadRegistration as error:
                log.warning("%s: %s", path, error)
                continue
            if found.id != name:
                log.warning("%s: the registration is that of %s and is ignored", path, found.id)
            else:
                living[name] = found
        if living != self._living or session != self._session:
            # Sorted, so that all brokers go through them in one order.
            self._living = dict(sorted(living.items()))
            for callback in list(self._listeners):
                callback()
