"""Serves one broker, on given stores and sockets, until it is stopped. `run_standalone` is a whole one in one process.

The binary port opens first and the REST, which takes a tenth of a second to import, right after it: clients can publish
before the page is up. `/admin/v2/brokers/health` answers once both are.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from anabranch.broker.broker import Broker
from anabranch.broker.catalog.neighbours import LOOK_S, Neighbours
from anabranch.broker.catalog.owners import broker_id
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.config import listeners
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.config.listeners import Addresses
from anabranch.broker.connection.accepting import Acceptor, descriptors_for_connections
from anabranch.broker.connection.one_port import OnePort
from anabranch.broker.policy.namespace import ClusterRecord
from anabranch.broker.runtime import data_folder, logs
from anabranch.broker.runtime.listening import (
    ServedSockets,
    StartError,
    addresses_on,
    listen,
    sole_sockets,
)
from anabranch.broker.runtime.loop_watch import LoopWatch
from anabranch.broker.runtime.process import all_loaded, on_signals, run_to_end
from anabranch.broker.security.authentication import Authentication
from anabranch.broker.security.stored_rights import StoredRights
from anabranch.broker.security.tls import Certificates
from anabranch.broker.stores import Stores, now_ms, sole_stores

log = logging.getLogger(__name__)

# With fewer descriptors there is hardly room for a connection beside the broker's own files.
CONNECTIONS_LEAST = 96


@dataclass(frozen=True, slots=True)
class ClusterPlace:
    """A broker's number among those that share ports, from 0, and the addresses on these ports; None where each has
    ports of its own only.

    `has_one_port`: clients reach every broker through the shared port."""

    index: int = 0
    shared: Addresses | None = None
    has_one_port: bool = False
    # How many there are once all have started; 0 if that is not known.
    brokers: int = 0
    # Whether this broker must find out itself that another has died: there is no supervisor that tells.
    looks_after_others: bool = False
    # Set once all of them stop: nothing is handed over any more.
    all_stop: asyncio.Event = field(default_factory=asyncio.Event)


def own_addresses(config: BrokerConfig, sockets: ServedSockets) -> Addresses:
    """The broker's addresses on the ports that are its own."""
    return addresses_on(config, {"http": config.web_service_port, **sockets.ports})


def _authentication(config: BrokerConfig) -> Authentication | None:
    if not config.authentication_enabled:
        return None
    # Imported only if needed: it takes a tenth of a second.
    from anabranch.broker.security import tokens

    return tokens.authentication(config)


def _authorizer(config: BrokerConfig, resources: Resources) -> StoredRights | None:
    if not config.authorization_enabled:
        return None
    return StoredRights(
        resources, config.super_user_roles, allows_wildcards=config.authorization_allow_wildcards_matching
    )


@contextlib.asynccontextmanager
async def running(config: BrokerConfig) -> AsyncIterator[Broker]:
    """A broker on its own that serves its binary port, without REST. Leaving the context ends it cleanly."""
    with listen(config.bind_address, config.broker_service_port) as binary:
        async with serving(config, sole_stores(config), ServedSockets((binary,))) as broker:
            yield broker


@contextlib.asynccontextmanager
async def serving(
    config: BrokerConfig,
    opening: AbstractAsyncContextManager[Stores],
    sockets: ServedSockets,
    certificates: Certificates | None = None,
    place: ClusterPlace | None = None,
) -> AsyncIterator[Broker]:
    """A broker on these stores that serves the binary ones of these sockets. Leaving the context ends it cleanly.

    `place` is its place among brokers that share ports, if there are any."""
    descriptors_end = descriptors_for_connections()
    if descriptors_end < CONNECTIONS_LEAST:
        raise StartError("too few open files are allowed here: raise `ulimit -n` to some thousands")
    authentication = _authentication(config)
    filled = listeners.filled(config.advertised_listeners, place.index if place else 0, sockets.ports)
    config = msgspec.structs.replace(config, advertised_listeners=filled)
    async with contextlib.AsyncExitStack() as stack:
        stores = await stack.enter_async_context(opening)
        named = listeners.read(config.advertised_listeners, config.internal_listener_name)
        told = listeners.default(named, own_addresses(config, sockets))
        shared = told if place is None or place.shared is None else place.shared
        resources = Resources(
            stores.metadata,
            config.cluster_name,
            bundles=config.default_number_of_namespace_bundles,
            defaults_yield=config.authorization_enabled,
        )
        await resources.start()
        stack.push_async_callback(resources.close)
        await resources.bootstrap(
            ClusterRecord(
                service_url=shared.http_url,
                service_url_tls=shared.http_url_tls,
                broker_service_url=shared.service_url,
                broker_service_url_tls=shared.service_url_tls,
            ),
            me=broker_id(told.service_url) if place is not None else "",
        )
        await stores.log.start()
        broker = Broker(
            config,
            stores.metadata,
            stores.log,
            resources,
            service_url=told.service_url,
            http_url=told.http_url,
            now_ms=now_ms,
            service_url_tls=told.service_url_tls,
            http_url_tls=told.http_url_tls,
            authentication=authentication,
            authorizer=_authorizer(config, resources),
            one_port=place.shared if place is not None and place.has_one_port else None,
            in_cluster=place is not None,
            brokers_expected=0 if place is None else place.brokers,
            last_hour=_last_hour(config, place),
        )
        # Once it is registered, others send clients to its own ports; they wait there until it has started. The shared
        # ones are for brokers that serve.
        sockets.listen_on_own()
        await broker.start()
        stack.push_async_callback(_closing(broker, place))
        if place is not None and place.looks_after_others:
            broker.background.every(LOOK_S, Neighbours(stores.metadata, broker.registry).look)
        stack.enter_context(LoopWatch(broker.turns))
        sockets.listen_on_shared()
        accepting = [Acceptor(sock, broker.new_session, descriptors_end) for sock in sockets.binary[:1]]
        route = None
        if place is not None and place.has_one_port:
            one_port = OnePort(Path(config.data_dir), sockets.ports["pulsar"], accepting[0].attach)
            stack.callback(one_port.close)
            route = one_port.route
        accepting += [
            Acceptor(sock, broker.new_session, descriptors_end, is_ours=route) for sock in sockets.binary[1:]
        ]
        for acceptor in accepting:
            stack.callback(acceptor.close)
        for sock in sockets.binary_tls:
            stack.callback(Acceptor(sock, broker.new_session, descriptors_end, certificates).close)
        if certificates is not None:
            broker.background.every(max(1, config.tls_cert_refresh_check_duration_sec), certificates.look)
        # First of all that is done at the end: other brokers still reach this one meanwhile.
        stack.push_async_callback(_draining(broker, place))
        log.info(
            "serving %s from %s",
            told.service_url,
            config.data_dir or config.log_url,
            extra={"service_url": told.service_url, "data_dir": config.data_dir or config.log_url},
        )
        yield broker


def _last_hour(config: BrokerConfig, place: ClusterPlace | None) -> Path | None:
    """The file in which the page's last hour survives a restart; None for a broker that has no place of its own."""
    if place is not None and not place.brokers:
        return None
    return data_folder.last_hour(Path(config.data_dir), 0 if place is None else place.index)


def _draining(broker: Broker, place: ClusterPlace | None) -> Callable[[], Awaitable[None]]:
    async def drain() -> None:
        if place is not None and not place.all_stop.is_set():
            await broker.drain()

    return drain


def _closing(broker: Broker, place: ClusterPlace | None) -> Callable[[], Awaitable[None]]:
    async def close() -> None:
        await broker.close(others_stay=place is None or not place.all_stop.is_set())

    return close


async def serve(
    config: BrokerConfig,
    opening: AbstractAsyncContextManager[Stores],
    sockets: ServedSockets,
    stop: asyncio.Event,
    on_serving: Callable[[Broker], None],
    place: ClusterPlace | None = None,
    *,
    writes_tables: bool = False,
) -> None:
    """Serves a broker and its REST until `stop`; `on_serving` is called once both answer. StartError if it cannot go
    on. If it `writes_tables`, and the configuration wants tables, a table writer runs beside it."""
    has_tls = config.broker_service_port_tls or config.web_service_port_tls
    certificates = Certificates(config) if has_tls else None
    async with serving(config, opening, sockets, certificates, place) as broker:
        # Imported in a thread: see the module's docstring. Clients are served meanwhile.
        rest = await asyncio.to_thread(importlib.import_module, "anabranch.broker.rest")
        listening: list[tuple[socket.socket, Certificates | None]] = [(sock, None) for sock in sockets.web]
        listening += [(sock, certificates) for sock in sockets.web_tls]
        async with rest.serve_rest(broker.admin_services(), broker.page, listening):
            on_serving(broker)
            broker.failed.add_done_callback(lambda _: stop.set())
            async with _table_writer(broker) if writes_tables else contextlib.nullcontext():
                await stop.wait()
            if broker.failed.done():
                raise StartError(f"the log has ended, start again to recover: {broker.failed.result()}")
    log.info("stopped")


@contextlib.asynccontextmanager
async def _table_writer(broker: Broker) -> AsyncIterator[None]:
    if not broker.config.tables_url:
        yield
        return
    # Imported only if needed.
    from anabranch.broker.runtime.table_process import TableProcess

    writer = TableProcess(broker.config, broker.service_url, broker.http_url)
    writer.start()
    try:
        yield
    finally:
        await writer.close()


def _telling(config: BrokerConfig, where: str) -> Callable[[Broker], None]:
    def tell(broker: Broker) -> None:
        all_loaded()
        logs.tell(
            config,
            logging.INFO,
            f"{broker.service_url} and {broker.http_url} (page: {broker.http_url}/ui), {where}",
            service_url=broker.service_url,
            http_url=broker.http_url,
        )

    return tell


async def _serve_alone(config: BrokerConfig) -> None:
    stop = asyncio.Event()
    on_signals(stop)
    with sole_sockets(config) as sockets:
        tell = _telling(config, f"data in {config.data_dir}")
        await serve(config, sole_stores(config), sockets, stop, tell, writes_tables=True)


async def _serve_member(config: BrokerConfig, *, is_named: bool) -> None:
    from anabranch.broker import cluster_stores

    cluster_stores.shared_log(config.log_url)  # A mistake is found before anything is opened.
    stop = asyncio.Event()
    on_signals(stop)
    with sole_sockets(config) as sockets:
        async with cluster_stores.metadata_of(config) as metadata:
            config = await cluster_stores.member_settings(metadata, config, is_named=is_named)
            tell = _telling(config, f"metadata in {config.metadata_store_url}, log in {config.log_url}")
            opening = cluster_stores.member_stores(metadata, config)
            await serve(config, opening, sockets, stop, tell, ClusterPlace(looks_after_others=True))


def run_member(config: BrokerConfig, warnings: Sequence[str] = (), *, is_named: bool = True) -> int:
    """As `run_standalone`, for a broker of a cluster. Unless it `is_named`, it takes the name of the cluster from the
    metadata."""
    logs.configure(config)
    for warning in warnings:
        logs.tell(config, logging.WARNING, warning)
    return run_to_end(_serve_member(config, is_named=is_named), config)


def run_standalone(config: BrokerConfig, warnings: Sequence[str] = ()) -> int:
    """Serves until SIGINT or SIGTERM; returns the process's exit code. Prints errors and warnings, a line each."""
    logs.configure(config)
    for warning in warnings:
        logs.tell(config, logging.WARNING, warning)
    return run_to_end(_serve_alone(config), config)
