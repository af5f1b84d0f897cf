"""Serves one broker, on given stores and sockets, until it is stopped. `run_standalone` is a whole one in one process.

The binary port opens first and the REST, which takes a tenth of a second to import, right after it: clients can publish
before the page is up. `/admin/v2/brokers/health` answers once both are.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from anabranch.broker.broker import Broker
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.config import listeners
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.config.listeners import Addresses
from anabranch.broker.connection.accepting import Acceptor, descriptors_for_connections
from anabranch.broker.policy.namespace import ClusterRecord
from anabranch.broker.runtime import logs
from anabranch.broker.runtime.listening import ServedSockets, StartError, listen, port_of, sole_sockets
from anabranch.broker.runtime.loop_watch import LoopWatch
from anabranch.broker.security.authentication import Authentication
from anabranch.broker.security.stored_rights import StoredRights
from anabranch.broker.security.tls import Certificates
from anabranch.broker.stores import Stores, now_ms, sole_stores
from anabranch.errors import AnabranchError

log = logging.getLogger(__name__)

# A finished sync must not wait long for a busy loop to release the interpreter: 5 ms, the default, would be most of a
# publish's latency.
SWITCH_INTERVAL_S = 0.0001
# With fewer descriptors there is hardly room for a connection beside the broker's own files.
CONNECTIONS_LEAST = 96
# The collector scans every 50,000 new objects (1 ms), at every tenth scan the survivors of those (at most 500,000
# objects, 15 ms), and very rarely everything.
GC_THRESHOLDS = (50_000, 10, 1_000)


def _advertised(config: BrokerConfig) -> str:
    """The advertised address, as it is written in a URL."""
    host = config.advertised_address
    if not host:
        host = socket.gethostname() if config.bind_address in ("0.0.0.0", "::", "") else config.bind_address
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def own_addresses(config: BrokerConfig, sockets: ServedSockets) -> Addresses:
    """The broker's addresses on the ports that are its own."""
    host = _advertised(config)

    def url(scheme: str, found: Sequence[socket.socket], port: int = 0) -> str:
        port = port_of(found[0]) if found else port
        return f"{scheme}://{host}:{port}" if port else ""

    return Addresses(
        url("pulsar", sockets.binary),
        url("pulsar+ssl", sockets.binary_tls),
        url("http", sockets.web, config.web_service_port),
        url("https", sockets.web_tls),
    )


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
) -> AsyncIterator[Broker]:
    """A broker on these stores that serves the binary ones of these sockets. Leaving the context ends it cleanly."""
    descriptors_end = descriptors_for_connections()
    if descriptors_end < CONNECTIONS_LEAST:
        raise StartError("too few open files are allowed here: raise `ulimit -n` to some thousands")
    authentication = _authentication(config)
    async with contextlib.AsyncExitStack() as stack:
        stores = await stack.enter_async_context(opening)
        own = own_addresses(config, sockets)
        named = listeners.read(config.advertised_listeners, config.internal_listener_name)
        told = listeners.default(named, own)
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
                service_url=told.http_url,
                service_url_tls=told.http_url_tls,
                broker_service_url=told.service_url,
                broker_service_url_tls=told.service_url_tls,
            )
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
        )
        await broker.start()
        stack.push_async_callback(broker.close)
        stack.enter_context(LoopWatch(broker.turns))
        sockets.listen()
        for sock in sockets.binary:
            stack.callback(Acceptor(sock, broker.new_session, descriptors_end).close)
        for sock in sockets.binary_tls:
            stack.callback(Acceptor(sock, broker.new_session, descriptors_end, certificates).close)
        if certificates is not None:
            broker.background.every(max(1, config.tls_cert_refresh_check_duration_sec), certificates.look)
        log.info(
            "serving %s from %s",
            told.service_url,
            config.data_dir,
            extra={"service_url": told.service_url, "data_dir": config.data_dir},
        )
        yield broker


def on_signals(stop: asyncio.Event) -> None:
    """The first SIGINT or SIGTERM requests a clean end, the second ends at once, which loses nothing acknowledged."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def asked(number: int) -> None:
        log.info("stopping", extra={"signal": signal.Signals(number).name})
        stop.set()
        for other in numbers:
            loop.remove_signal_handler(other)
            signal.signal(other, signal.SIG_DFL)

    for number in numbers:
        loop.add_signal_handler(number, asked, number)


async def serve(
    config: BrokerConfig,
    opening: AbstractAsyncContextManager[Stores],
    sockets: ServedSockets,
    stop: asyncio.Event,
    on_serving: Callable[[Broker], None],
) -> None:
    """Serves a broker and its REST until `stop`; `on_serving` is called once both answer. StartError if it cannot go
    on."""
    has_tls = config.broker_service_port_tls or config.web_service_port_tls
    certificates = Certificates(config) if has_tls else None
    async with serving(config, opening, sockets, certificates) as broker:
        # Imported in a thread: see the module's docstring. Clients are served meanwhile.
        rest = await asyncio.to_thread(importlib.import_module, "anabranch.broker.rest")
        listening: list[tuple[socket.socket, Certificates | None]] = [(sock, None) for sock in sockets.web]
        listening += [(sock, certificates) for sock in sockets.web_tls]
        async with rest.serve_rest(broker.admin_services(), broker.page, listening):
            on_serving(broker)
            broker.failed.add_done_callback(lambda _: stop.set())
            await stop.wait()
            if broker.failed.done():
                raise StartError(f"the log has ended, start again to recover: {broker.failed.result()}")
    log.info("stopped")


async def _serve_alone(config: BrokerConfig) -> None:
    stop = asyncio.Event()
    on_signals(stop)

    def tell(broker: Broker) -> None:
        logs.tell(
            config,
            logging.INFO,
            f"{broker.service_url} and {broker.http_url}, data in {config.data_dir}",
            service_url=broker.service_url,
            http_url=broker.http_url,
        )

    with sole_sockets(config) as sockets:
        await serve(config, sole_stores(config), sockets, stop, tell)


def run_standalone(config: BrokerConfig, warnings: Sequence[str] = ()) -> int:
    """Serves until SIGINT or SIGTERM; returns the process's exit code. Prints errors and warnings, a line each."""
    logs.configure(config)
    for warning in warnings:
        logs.tell(config, logging.WARNING, warning)
    return run_to_end(_serve_alone(config), config)


def run_to_end(work: Coroutine[Any, Any, None], config: BrokerConfig) -> int:
    """Runs the work of a broker's process; returns the exit code. An error that a person can act on is one line."""
    import uvloop

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # Hardly anything on the data path is part of a cycle: the collector runs rarely, and never scans what was loaded.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work)
    except AnabranchError as error:
        logs.tell(config, logging.ERROR, str(error))
        return 1
    return 0
