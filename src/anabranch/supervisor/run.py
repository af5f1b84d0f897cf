"""Performs what `core` decides: makes the ports, starts, signals and awaits the processes, tells what happens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

import anabranch
from anabranch.broker.config import listeners
from anabranch.broker.config.config import BrokerConfig, ConfigError
from anabranch.broker.runtime import logs
from anabranch.broker.stores import lock_folder
from anabranch.errors import AnabranchError
from anabranch.supervisor.channel import Note, NoteLink, Orders, encode_orders
from anabranch.supervisor.core.processes import ProcessKind, broker_name, new_cluster
from anabranch.supervisor.core.step import (
    AnnounceCluster,
    Began,
    DrainProcess,
    Effect,
    Ended,
    EndSession,
    Event,
    Finish,
    KillProcess,
    Say,
    Served,
    StartProcess,
    StopAsked,
    TimePassed,
    step,
    wake_s,
)
from anabranch.supervisor.ports import ClusterPorts, own_settings

if TYPE_CHECKING:
    from anabranch.broker.runtime.table_process import TableProcess

log = logging.getLogger(__name__)

METADATA_SOCKET: Final = "metadata.sock"
# Processes must import this very package, however the supervisor found it.
_PATH: Final = os.pathsep.join(
    filter(None, (str(Path(anabranch.__file__).resolve().parents[1]), os.environ.get("PYTHONPATH")))
)
_LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class _Running:
    """A process that lives, and the channel to it."""

    def __init__(self, process: asyncio.subprocess.Process, link: NoteLink) -> None:
        self.process = process
        self.link = link
        self.has_served = False


class Supervisor:
    """The shell: one event at a time goes to the core, and its effects are performed before the next one."""

    def __init__(self, config: BrokerConfig, brokers: int, ports: ClusterPorts, lock: int) -> None:
        self._config = config
        self._ports = ports
        self._lock = lock
        self._state = new_cluster(brokers)
        self._brokers = brokers
        self._indexes = {broker_name(index): index for index in range(brokers)}
        self._running: dict[str, _Running] = {}
        # The metadata session of each broker, as it last said, also of one that is dead.
        self._sessions: dict[str, str] = {}
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._waiting: set[asyncio.Task[None]] = set()
        self._code: int | None = None
        self._tables: TableProcess | None = None

    async def run(self) -> int:
        """Returns the exit code once every process is gone."""
        loop = asyncio.get_running_loop()
        # A terminal that is closed sends SIGHUP; under `nohup` it is ignored, and stays so.
        is_hung_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        for number in (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if is_hung_up else [])):
            loop.add_signal_handler(number, self._events.put_nowait, StopAsked(number))
        self._events.put_nowait(Began())
        while self._code is None:
            event = await self._next_event()
            self._state, effects = step(self._state, event, loop.time())
            for effect in effects:
                await self._perform(effect)
        return self._code

    async def _next_event(self) -> Event:
        due_s = wake_s(self._state)
        try:
            async with asyncio.timeout_at(due_s):
                return await self._events.get()
        except TimeoutError:
            return TimePassed()

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case StartProcess(name):
                await self._start(name)
            case DrainProcess(name):
                self._drain(name)
            case KillProcess(name):
                self._signal(name, signal.SIGKILL)
            case EndSession(name):
                self._end_session(name)
            case AnnounceCluster():
                self._announce()
                self._write_tables()
            case Say(level, text):
                log.log(_LEVELS[level], "%s", text)
            case Finish(code):
                self._code = code

    # -- processes

    async def _start(self, name: str) -> None:
        """A process that cannot be started has ended: the core decides when to try again."""
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as stack:
            index = self._indexes.get(name)
            try:
                sockets = {} if index is None else stack.enter_context(self._ports.sockets(index))
                orders = self._orders(name, index, sockets)
                inherited = [one.fileno() for found in sockets.values() for one in found]
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "anabranch.supervisor.child", name, str(theirs.fileno())),
                    stdin=subprocess.DEVNULL,
                    # The folder stays locked until the last process is gone.
                    pass_fds=(theirs.fileno(), self._lock, *inherited),
                    # A terminal sends Ctrl-C to the supervisor alone, which stops its processes in their order.
                    process_group=0,
                    env={**os.environ, "PYTHONPATH": _PATH},
                )
            except (OSError, AnabranchError) as error:
                log.error("%s cannot be started: %s", name, error)
                ours.close()
                self._events.put_nowait(Ended(name, 1))
                return
        with contextlib.suppress(OSError):  # It has ended already, which is heard of below.
            ours.sendall(encode_orders(orders))
        link = NoteLink(ours, lambda note: self._heard(name, note), lambda: None)
        self._running[name] = _Running(process, link)
        # Held in `_waiting`; it ends with the process.
        task = asyncio.create_task(self._await_end(name, process))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    def _orders(self, name: str, index: int | None, sockets: dict[str, list[socket.socket]]) -> Orders:
        config = self._config
        path = str(Path(config.data_dir) / METADATA_SOCKET)
        if index is None:
            return Orders(
                kind=ProcessKind.METADATA,
                name=name,
                brokers=self._brokers,
                config=config,
                metadata_path=path,
                is_first=not self._state.metadata.has_served,
            )
        own = self._ports.own_ports(index)
        own_config = msgspec.structs.replace(
            own_settings(config),
            broker_service_port=own["pulsar"],
            broker_service_port_tls=own.get("pulsar+ssl", 0),
            web_service_port=own["http"],
            web_service_port_tls=own.get("https", 0),
        )
        return Orders(
            kind=ProcessKind.BROKER,
            name=name,
            brokers=self._brokers,
            config=own_config,
            metadata_path=path,
            index=index,
            shared=self._ports.shared,
            sockets={scheme: tuple(one.fileno() for one in found) for scheme, found in sockets.items()},
        )

    async def _await_end(self, name: str, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        running = self._running.pop(name)
        running.link.close()
        self._events.put_nowait(Ended(name, code))

    def _heard(self, name: str, note: Note) -> None:
        if note.session:
            self._sessions[name] = note.session
        if note.is_serving:
            self._running[name].has_served = True
            self._events.put_nowait(Served(name))

    def _drain(self, name: str) -> None:
        if (running := self._running.get(name)) is not None:
            running.link.send(Note(is_stopping=True))
            if not running.has_served:
                # It has nothing to close yet, and may be far from reading notes.
                self._signal(name, signal.SIGTERM)

    def _signal(self, name: str, number: signal.Signals) -> None:
        if (running := self._running.get(name)) is not None:
            with contextlib.suppress(ProcessLookupError):
                running.process.send_signal(number)

    def _end_session(self, name: str) -> None:
        session = self._sessions.pop(name, "")
        metadata = self._running.get(ProcessKind.METADATA.value)
        # Without the metadata process nothing is to be done: the session has only its time of grace to come back.
        if session and metadata is not None:
            metadata.link.send(Note(ended_session=session))

    def _announce(self) -> None:
        shared = self._ports.shared
        logs.tell(
            self._config,
            logging.INFO,
            f"{shared.service_url} and {shared.http_url} (page: {shared.http_url}/ui), "
            f"{self._brokers} brokers, data in {self._config.data_dir}",
            service_url=shared.service_url,
            http_url=shared.http_url,
            brokers=self._brokers,
        )

    def _write_tables(self) -> None:
        """Starts a table writer beside the brokers, where the configuration wants tables."""
        if self._config.tables_url and self._tables is None:
            # Imported only if needed.
            from anabranch.broker.runtime.table_process import TableProcess

            shared = self._ports.shared
            self._tables = TableProcess(self._config, shared.service_url, shared.http_url)
            self._tables.start()

    async def close(self) -> None:
        """Kills whatever still lives; only an error of the supervisor itself leaves anything."""
        if self._tables is not None:
            await self._tables.close()
        for running in list(self._running.values()):
            with contextlib.suppress(ProcessLookupError):
                running.process.kill()
        if self._waiting:
            await asyncio.wait(self._waiting)


def _check_settings(config: BrokerConfig) -> None:
    """Raises what every broker would refuse, so that it is said once."""
    if config.authentication_enabled:
        from anabranch.broker.security import tokens

        tokens.authentication(config)
    if config.broker_service_port_tls or config.web_service_port_tls:
        from anabranch.broker.security.tls import server_context

        server_context(config)
    if config.broker_client_tls_enabled:
        _check_links(config)
    if not config.brokers_one_port:
        try:
            listeners.check_distinct(config.advertised_listeners)
        except ValueError as error:
            raise ConfigError(f"advertisedListeners: {error}") from None


def _check_links(config: BrokerConfig) -> None:
    """Brokers that cannot read these files would serve, and never reach each other."""
    from anabranch.client.errors import AccessFailed
    from anabranch.client.security import Security

    try:
        Security(
            tls_trust_certs_file=config.broker_client_trust_certs_file_path or None,
            tls_certificate_file=config.broker_client_certificate_file_path or None,
            tls_key_file=config.broker_client_key_file_path or None,
        ).tls()
    except AccessFailed as error:
        raise ConfigError(
            "brokerClientTlsEnabled: brokers cannot reach each other with brokerClientTrustCertsFilePath, "
            f"brokerClientCertificateFilePath and brokerClientKeyFilePath as they are: {error}"
        ) from None


@contextlib.asynccontextmanager
async def _supervisor(config: BrokerConfig, brokers: int) -> AsyncIterator[Supervisor]:
    _check_settings(config)
    data = Path(config.data_dir)
    with contextlib.closing(ClusterPorts(config, brokers)) as ports:
        lock = await lock_folder(data)
        try:
            supervisor = Supervisor(config, brokers, ports, lock)
            try:
                yield supervisor
            finally:
                await supervisor.close()
                with contextlib.suppress(FileNotFoundError):
                    (data / METADATA_SOCKET).unlink()
        finally:
            os.close(lock)


async def _supervise(config: BrokerConfig, brokers: int) -> int:
    async with _supervisor(config, brokers) as supervisor:
        code = await supervisor.run()
    log.info("stopped")
    return code


def run_cluster(config: BrokerConfig, brokers: int, warnings: Sequence[str] = ()) -> int:
    """Runs so many brokers until SIGINT or SIGTERM; returns the exit code. Prints errors and warnings, a line each."""
    logs.configure(config, process="supervisor")
    for warning in warnings:
        logs.tell(config, logging.WARNING, warning)
    try:
        with asyncio.Runner() as runner:
            return runner.run(_supervise(config, brokers))
    except AnabranchError as error:
        logs.tell(config, logging.ERROR, str(error))
        return 1
