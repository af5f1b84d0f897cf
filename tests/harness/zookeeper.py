"""Real ZooKeeper servers for tests, and relays before them that can be cut, that delay, and that count requests.

The servers are those of Debian's package `zookeeper`, run from its jars; no service is started. They keep their data in
a temporary folder and end with the process of the tests, however that ends.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import functools
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from kazoo.client import KazooClient

T = TypeVar("T")

JAVA_FOLDER: Final = Path("/usr/share/java")
# What a server loads; those that a release lacks are left out.
JARS: Final = (
    *("zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple", "logback-core", "logback-classic"),
    *("netty-all", "netty-buffer", "netty-codec", "netty-common", "netty-handler", "netty-resolver"),
    *("netty-transport", "netty-transport-native-unix-common", "netty-transport-native-epoll"),
    *("snappy-java", "metrics-core", "jackson-annotations", "jackson-databind", "jackson-core"),
    *("commons-cli", "commons-io", "audience-annotations"),
)
START_WAIT_S: Final = 60.0
HOST: Final = "127.0.0.1"


def missing() -> str | None:
    """Why no server can be started here; None if one can."""
    if shutil.which("java") is None:
        return "ZooKeeper needs a Java runtime, and none is on the path"
    if not (JAVA_FOLDER / "zookeeper.jar").exists():
        return f"{JAVA_FOLDER}/zookeeper.jar is missing: install Debian's package `zookeeper`"
    return None


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        number: int = sock.getsockname()[1]
        return number


def _die_with_parent() -> None:
    """With the thread that started it, that is: servers are started by the main one."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class ZooKeeperServer:
    """One server. May be started again after it has ended, on the same port and data."""

    def __init__(self, folder: Path, lines: tuple[str, ...] = (), number: int = 1) -> None:
        self.folder = folder
        self.number = number
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "data").mkdir(parents=True, exist_ok=True)
        (folder / "data" / "myid").write_text(f"{number}\n")
        self.configure(lines)

    def configure(self, lines: tuple[str, ...]) -> None:
        always = (
            "tickTime=200",
            "initLimit=100",
            "syncLimit=50",
            "minSessionTimeout=400",
            "maxSessionTimeout=120000",
            "maxClientCnxns=0",
            "admin.enableServer=false",
            "4lw.commands.whitelist=*",
            f"dataDir={self.folder}/data",
            f"clientPort={self.port}",
            f"clientPortAddress={HOST}",
        )
        (self.folder / "zoo.cfg").write_text("\n".join((*always, *lines)) + "\n")

    def begin(self) -> None:
        """Starts the process; `wait_until_serving` says when it is ready."""
        jars = [str(JAVA_FOLDER / f"{name}.jar") for name in JARS if (JAVA_FOLDER / f"{name}.jar").exists()]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                    # Nobody cuts the power here.
                    "-Dzookeeper.forceSync=no",
                    "-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory"
                    if "secureClientPort" in (self.folder / "zoo.cfg").read_text()
                    else "-Dunused",
                    *("-cp", ":".join(jars), "org.apache.zookeeper.server.quorum.QuorumPeerMain"),
                    str(self.folder / "zoo.cfg"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
            )

    def start(self) -> None:
        self.begin()
        self.wait_until_serving()

    def wait_until_serving(self) -> None:
        ends = time.monotonic() + START_WAIT_S
        while not self.mode():
            assert self._process is not None
            assert self._process.poll() is None, f"ZooKeeper ended: see {self.folder}/log"
            assert time.monotonic() < ends, f"ZooKeeper does not serve: see {self.folder}/log"
            time.sleep(0.05)

    def mode(self) -> str:
        """`standalone`, `leader`, `follower`; empty while it does not serve."""
        found = [line for line in self.command("srvr").splitlines() if line.startswith("Mode: ")]
        return found[0].removeprefix("Mode: ") if found else ""

    def command(self, word: str) -> str:
        """The answer to one of ZooKeeper's four-letter words; empty if nobody answers."""
        try:
            with socket.create_connection((HOST, self.port), timeout=5) as sock:
                sock.sendall(word.encode())
                parts = []
                while part := sock.recv(65_536):
                    parts.append(part)
                return b"".join(parts).decode()
        except OSError:
            return ""

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class ZooKeepers(Protocol):
    """One server, or several that are one."""

    def ports(self) -> list[int]:
        """Where clients connect, one after the other."""
        ...

    def restart(self) -> None: ...

    def stop(self) -> None: ...


class SingleServer:
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="anabranch-zookeeper-")
        self.server = ZooKeeperServer(Path(self._folder.name))
        self.server.start()

    def ports(self) -> list[int]:
        return [self.server.port]

    def restart(self) -> None:
        self.server.kill()
        self.server.start()

    def stop(self) -> None:
        self.server.kill()
        self._folder.cleanup()


class Ensemble:
    """Three servers. What the first is told by its leader comes late, so that it is behind the others."""

    def __init__(self, lag_s: float = 0.0) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="anabranch-zookeepers-")
        self.servers = [ZooKeeperServer(Path(self._folder.name) / f"{n}", number=n) for n in (1, 2, 3)]
        quorum, election = [free_port() for _ in range(3)], [free_port() for _ in range(3)]
        self._relays = [TcpRelay(port, back_s=lag_s) for port in quorum] if lag_s else []
        for server in self.servers:
            lines = []
            for n in (1, 2, 3):
                is_late = self._relays and server.number == 1 and n != 1
                port = self._relays[n - 1].port if is_late else quorum[n - 1]
                lines.append(f"server.{n}={HOST}:{port}:{election[n - 1]}")
            server.configure(tuple(lines))
        self._start()

    def _start(self) -> None:
        # With a majority of the two others, the first one never leads from the start.
        for server in self.servers[1:]:
            server.begin()
        for server in self.servers[1:]:
            server.wait_until_serving()
        self.servers[0].start()

    @property
    def leader(self) -> ZooKeeperServer:
        return next(server for server in self.servers if server.mode() == "leader")

    def ports(self) -> list[int]:
        """The leader's, and that of the one that is behind."""
        return [self.leader.port, self.servers[0].port]

    def restart(self) -> None:
        for server in self.servers:
            server.kill()
        self._start()

    def stop(self) -> None:
        for server in self.servers:
            server.kill()
        for relay in self._relays:
            relay.close()
        self._folder.cleanup()


@functools.cache
def shared_server() -> SingleServer:
    """One server for all tests that do it no harm; each has a chroot of its own."""
    made = SingleServer()
    atexit.register(made.stop)
    return made


@functools.cache
def shared_ensemble() -> Ensemble:
    made = Ensemble(lag_s=0.03)
    atexit.register(made.stop)
    return made


def end_session(relay: TcpRelay, session: str) -> None:
    """Ends that session at the server, as its time-out would, whether its client is connected or not."""
    number = struct.unpack("!q", int(session, 16).to_bytes(8, "big"))[0]
    client = KazooClient(f"{HOST}:{relay.to_port}", timeout=60, client_id=(number, relay.passwords[number]))
    client.start(timeout=60)
    client.stop()
    client.close()


# -- relays


@functools.cache
def _relay_loop() -> asyncio.AbstractEventLoop:
    """A loop of their own: servers and brokers use relays between tests, and while a test blocks."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="relays", daemon=True).start()
    return loop


def _on_relay_loop(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(work, _relay_loop()).result(30)


_OPCODES: Final = {
    -11: "close",
    1: "create",
    2: "delete",
    3: "exists",
    4: "get",
    5: "set",
    8: "children",
    9: "sync",
    11: "ping",
    15: "create",
    18: "remove watch",
    22: "read many",
    106: "add watch",
}


class TcpRelay:
    """Passes bytes between clients and one server. Thread-safe.

    `back_s` delays what the server sends. Of a client of ZooKeeper it counts the requests, and knows the sessions.
    """

    def __init__(self, to_port: int, back_s: float = 0.0) -> None:
        self.to_port = to_port
        self.port = free_port()
        self.counts: Counter[str] = Counter()
        self.events = 0
        # The password of each session, by its id: whoever has it can end the session.
        self.passwords: dict[int, bytes] = {}
        self._back_s = back_s
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        # Requests with these opcodes are passed on, and the connection is cut before their answers.
        self.cut_after: set[int] = set()
        self._doomed: set[bytes] = set()
        self.open()

    def open(self) -> None:
        _on_relay_loop(self._open())

    async def _open(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._pass, HOST, self.port)

    def cut(self) -> None:
        """Breaks the connections, and refuses new ones until `open`."""

        async def cut() -> None:
            if self._server is not None:
                self._server.close()
                self._server = None
            self._abort()

        _on_relay_loop(cut())

    def break_connections(self) -> None:
        """Breaks the connections; new ones are accepted."""

        async def abort() -> None:
            self._abort()

        _on_relay_loop(abort())

    def close(self) -> None:
        self.cut()

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        back = None
        try:
            there, back = await asyncio.open_connection(HOST, self.to_port)
            self._writers.add(back)
            if self._server is None:
                return
            await asyncio.gather(self._forward(reader, back), self._backward(there, writer))
        except OSError:
            pass
        finally:
            for one in (writer, back):
                if one is not None:
                    self._writers.discard(one)
                    one.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_first, buffer = True, bytearray()
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if not self._back_s:
                    buffer += data
                    for frame in _frames(buffer):
                        if is_first:
                            is_first = False
                            continue
                        self._count(frame)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    def _count(self, frame: bytes) -> None:
        if len(frame) < 8:
            return
        (opcode,) = struct.unpack_from("!i", frame, 4)
        if opcode in self.cut_after:
            self.cut_after.clear()
            self._doomed.add(frame[:4])
        self.counts[_OPCODES.get(opcode, str(opcode))] += 1

    async def _backward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._back_s:
            await self._backward_late(reader, writer)
            return
        is_first, buffer = True, bytearray()
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                buffer += data
                for frame in _frames(buffer):
                    if is_first:
                        is_first = False
                        session_id, size = struct.unpack_from("!qi", frame, 8)
                        self.passwords[session_id] = frame[20 : 20 + size]
                    elif frame[:4] == b"\xff\xff\xff\xff":
                        self.events += 1
                    elif frame[:4] in self._doomed:
                        # The answer to a request that was carried out: nobody hears of it.
                        self._doomed.clear()
                        self._abort()
                        return
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    async def _backward_late(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def pass_on() -> None:
            while True:
                due, data = await late.get()
                await asyncio.sleep(due - loop.time())
                writer.write(data)

        passing = loop.create_task(pass_on())
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(65_536):
                    late.put_nowait((loop.time() + self._back_s, data))
        finally:
            passing.cancel()
            writer.transport.abort()


def _frames(buffer: bytearray) -> list[bytes]:
    """The whole packets at the start of the buffer, which it loses."""
    found = []
    while len(buffer) >= 4:
        size = int.from_bytes(buffer[:4], "big")
        if len(buffer) < 4 + size:
            break
        found.append(bytes(buffer[4 : 4 + size]))
        del buffer[: 4 + size]
    return found
