"""Brokers of a cluster, `anabranch broker`, each a process of its own, with their metadata on real ZooKeeper servers.

Each broker reaches ZooKeeper through a relay of its own, so that one can be cut off alone.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from soak.link import Refused, owner_port

from harness.broker_process import BrokerProcess
from harness.zookeeper import TcpRelay, ZooKeeperServer

# Short, so that a broker that dies is missed soon; a busy machine may be slower than that without harm.
SESSION_MS = 4_000


class MemberProcess(BrokerProcess):
    """One broker of a cluster. It has no supervisor: one that ends stays away until it is started again."""

    def __init__(
        self,
        folder: Path,
        relays: list[TcpRelay],
        chroot: str,
        log_url: str,
        settings: Mapping[str, object],
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder, settings, brokers=1)
        self.relays = relays
        self.stores = [
            *("--metadata", f"zk://{','.join(f'127.0.0.1:{relay.port}' for relay in relays)}{chroot}"),
            *("--log", log_url),
        ]

    @property
    def command(self) -> list[str]:
        command = [sys.executable, "-m", "anabranch.cli", "broker", *self.stores]
        command += ["--port", str(self.port), "--http-port", str(self.http_port)]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
        return command


class ZooKeeperCluster:
    """Several brokers on one log, by default files in one folder. A context manager."""

    # That of a test that stops it.
    server: ZooKeeperServer

    def __init__(
        self,
        folder: Path,
        ports: list[int],
        *,
        brokers: int = 3,
        chroot: str = "/cluster",
        settings: Mapping[str, object] | None = None,
        log_url: str = "",
    ) -> None:
        self.folder = folder
        self.log_url = log_url or f"file://{folder}/shared"
        self.settings = {
            "metadataStoreSessionTimeoutMillis": SESSION_MS,
            "logTrimSeconds": 0,
            **(settings or {}),
        }
        self.brokers = [
            MemberProcess(
                folder / f"broker-{number}",
                [TcpRelay(port) for port in ports],
                chroot,
                self.log_url,
                self.settings,
            )
            for number in range(brokers)
        ]

    def cluster(self, action: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`anabranch cluster` with the stores of this one."""
        command = [sys.executable, "-m", "anabranch.cli", "cluster", action, *self.brokers[0].stores]
        return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=False)

    def start(self) -> Self:
        made = self.cluster("init", "--cluster", "river")
        assert made.returncode == 0, made.stderr
        for broker in self.brokers:
            broker.start()
        return self

    @property
    def url(self) -> str:
        """All that run: a client tries them one after the other."""
        ports = [broker.port for broker in self.brokers if broker.is_running]
        return "pulsar://" + ",".join(f"127.0.0.1:{port}" for port in ports)

    def owner(self, topic: str, asked: MemberProcess) -> MemberProcess | None:
        """The broker that has the topic, as that one says; None if it does not know."""
        try:
            port = owner_port(asked.port, topic)
        except (Refused, OSError):
            return None
        return next((one for one in self.brokers if one.port == port), None)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for broker in self.brokers:
            if error is not None:
                error.add_note(f"{broker.url}: {broker.log[-1500:] if broker.folder.exists() else ''}")
            broker.kill()
            for relay in broker.relays:
                relay.close()
