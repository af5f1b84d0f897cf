"""A whole broker in one process: opens the stores, listens, serves until it is stopped.

The binary port opens first and the REST, which takes a tenth of a second to import, right after it: clients can publish
before the page is up. `/admin/v2/brokers/health` answers once both are.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import importlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from anabranch.broker.broker import Broker
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.config import listeners
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.config.listeners import Addresses
from anabranch.broker.connection.accepting import Acceptor, descriptors_for_connections
from anabranch.broker.policy.namespace import ClusterRecord
from anabranch.broker.runtime import data_folder, logs
from anabranch.broker.runtime.loop_watch import LoopWatch
from anabranch.broker.security.authentication import Authentication
from anabranch.broker.security.stored_rights import StoredRights
from anabranch.broker.security.tls import Certificates
from anabranch.errors import AnabranchError
from anabranch.metadata.errors import StoreInUse
from anabranch.metadata.sqlite import SqliteMetadata
from anabranch.storage.on_disk.file_store import FileLogStore

log = logging.getLogger(__name__)

# A finished sync must not wait long for a busy loop to release the interpreter: 5 ms, the default, would be most of a
# publish's latency.
SWITCH_INTERVAL_S = 0.0001
BACKLOG = 1024
# With fewer descriptors there is hardly room for a connection beside the broker's own files.
CONNECTIONS_LEAST = 96
# The collector scans every 50,000 new objects (1 ms), at every tenth scan the survivors of those (at most 500,000
# objects, 15 ms), and very rarely everything.
GC_THRESHOLDS = (50_000, 10, 1_000)


class StartError(AnabranchError):
    """The broker cannot start or continue; the message is one line for a person."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, created early so that a port in use is found before anything is opened."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise StartError(f"port {port} on {host} is in use by another program") from None
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    sock.listen(BACKLOG)
    sock.setblocking(False)
    return sock


def _advertised(config: BrokerConfig) -> str:
    """The advertised address, as it is written in a URL."""
    host = config.advertised_address
    if not host:
        host = socket.gethostname() if config.bind_address in ("0.0.0.0", "::", "") else config.bind_address
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _make_folder(data: Path) -> None:
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "it is a file; name a folder" if data.is_file() else error.strerror or error
        raise StartError(f"cannot use {data}: {reason}") from None
    if not os.access(data, os.R_OK | os.W_OK | os.X_OK):
        raise StartError(f"cannot write to {data}: is the disk read-only, or the folder another user's?")


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
async def running(
    config: BrokerConfig, web_port: int | None = None, certificates: Certificates | None = None
) -> AsyncIterator[Broker]:
    """A broker that serves its binary port. Leaving the context ends it cleanly.

    `web_port` is the actual port of the admin REST, if the settings leave it to the system.
    """
    descriptors_end = descriptors_for_connections()
    if descriptors_end < CONNECTIONS_LEAST:
        raise StartError("too few open files are allowed here: raise `ulimit -n` to some thousands")
    authentication = _authentication(config)
    data = Path(config.data_dir)
    async with contextlib.AsyncExitStack() as stack:
        binary = listen(config.bind_address, config.broker_service_port)
        stack.callback(binary.close)
        has_tls = certificates is not None and config.broker_service_port_tls
        secured = listen(config.bind_address, config.broker_service_port_tls) if has_tls else None
        if secured is not None:
            stack.callback(secured.close)
        _make_folder(data)
        data_folder.check_metadata(data)
        try:
            service = await SqliteMetadata.open(data / data_folder.METADATA, clock_ms=now_ms)
        except StoreInUse:
            raise StartError(
                f"another broker serves {data} already: stop it, or name another folder with --data-dir"
            ) from None
        stack.push_async_callback(service.close)
        metadata = await service.connect()
        await data_folder.check_log(metadata, data)
        host = _advertised(config)
        own = Addresses(
            f"pulsar://{host}:{binary.getsockname()[1]}",
            f"pulsar+ssl://{host}:{secured.getsockname()[1]}" if secured else "",
            f"http://{host}:{web_port or config.web_service_port}",
            f"https://{host}:{config.web_service_port_tls}" if config.web_service_port_tls else "",
        )
        named = listeners.read(config.advertised_listeners, config.internal_listener_name)
        told = listeners.default(named, own)
        resources = Resources(
            metadata,
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
        store = FileLogStore(
            data / data_folder.LOG,
            clock_ms=now_ms,
            file_bytes=config.log_file_bytes,
            cache_bytes=config.log_cache_bytes,
            disk_reserve_bytes=config.log_disk_reserve_bytes,
            disk_bytes_max=config.log_disk_bytes_max or None,
        )
        await store.start()
        broker = Broker(
            config,
            metadata,
            store,
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
        stack.callback(Acceptor(binary, broker.new_session, descriptors_end).close)
        if secured is not None:
            stack.callback(Acceptor(secured, broker.new_session, descriptors_end, certificates).close)
        if certificates is not None:
            broker.background.every(max(1, config.tls_cert_refresh_check_duration_sec), certificates.look)
        log.info(
            "serving %s from %s",
            told.service_url,
            data,
            extra={"service_url": told.service_url, "data_dir": str(data)},
        )
        yield broker


def _on_signals(stop: asyncio.Event) -> None:
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


async def _serve(config: BrokerConfig) -> None:
    stop = asyncio.Event()
    _on_signals(stop)
    has_tls = config.broker_service_port_tls or config.web_service_port_tls
    certificates = Certificates(config) if has_tls else None
    async with contextlib.AsyncExitStack() as stack:
        web = stack.enter_context(listen(config.bind_address, config.web_service_port))
        listening: list[tuple[socket.socket, Certificates | None]] = [(web, None)]
        if config.web_service_port_tls:
            secured = stack.enter_context(listen(config.bind_address, config.web_service_port_tls))
            listening.append((secured, certificates))
        async with running(config, web.getsockname()[1], certificates) as broker:
            # Imported in a thread: see the module's docstring. Clients are served meanwhile.
            rest = await asyncio.to_thread(importlib.import_module, "anabranch.broker.rest")
            async with rest.serve_rest(broker.admin_services(), broker.page, listening):
                logs.tell(
                    config,
                    logging.INFO,
                    f"{broker.service_url} and {broker.http_url}, data in {config.data_dir}",
                    service_url=broker.service_url,
                    http_url=broker.http_url,
                )
                broker.failed.add_done_callback(lambda _: stop.set())
                await stop.wait()
                if broker.failed.done():
                    raise StartError(f"the log has ended, start again to recover: {broker.failed.result()}")
        log.info("stopped")


def run_standalone(config: BrokerConfig, warnings: Sequence[str] = ()) -> int:
    """Serves until SIGINT or SIGTERM; returns the process's exit code. Prints errors and warnings, a line each."""
    import uvloop

    logs.configure(config)
    for warning in warnings:
        logs.tell(config, logging.WARNING, warning)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # Hardly anything on the data path is part of a cycle: the collector runs rarely, and never scans what was loaded.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config))
    except AnabranchError as error:
        logs.tell(config, logging.ERROR, str(error))
        return 1
    return 0
