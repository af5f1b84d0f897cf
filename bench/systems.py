"""The brokers under test: how each is started on empty data, reached and stopped.

Pulsar and Kafka are started by the scripts of a peers folder that is not part of this repository; ours by its own
command. Each start measures the time from the process's birth to its first confirmed publish.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from bench import usage, wire
from bench.javaclient import JavaClient

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS_MAX = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_gone(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        if not usage.is_running(pid):
            return True
        time.sleep(0.05)
    return False


def end(pid: int, seconds: float) -> None:
    """Asks the process to stop, and insists after `seconds`. Zero means it was never started."""
    if not pid:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        if not wait_gone(pid, seconds):
            os.kill(pid, signal.SIGKILL)
            wait_gone(pid, 10)


@dataclass(frozen=True, slots=True)
class Settings:
    peers: Path
    """The folder with pulsar/start.sh and kafka/broker.sh."""

    scratch: Path
    """Where our broker and Pulsar keep data; emptied at every start and stop."""


class System(ABC):
    """One broker. After `start`, `pid`, `url`, `port` and `first_publish_seconds` are set."""

    name: str
    title: str
    syncs: str
    client = "pulsar"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pid = 0
        self.port = self.web_port = 0
        self.first_publish_seconds = 0.0

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    @abstractmethod
    def data(self) -> Path:
        """The folder whose size is what this broker has on disk."""

    @abstractmethod
    def start(self, java: JavaClient) -> None: ...

    @abstractmethod
    def stop(self) -> None:
        """Ends the broker if it runs and removes its data; also after a start that failed."""

    @classmethod
    def missing(cls, settings: Settings) -> str | None:
        """Why this system cannot be started here, or None."""
        return None


class Anabranch(System):
    name = "anabranch"
    title = "Anabranch"
    syncs = "yes"
    # As Pulsar is shipped: consumed messages are not kept, and a run does not fill half of the disk.
    extra_arguments: tuple[str, ...] = ("--set", "defaultRetentionTimeInMinutes=0")

    @property
    def data(self) -> Path:
        return self.settings.scratch / self.name

    @classmethod
    def missing(cls, settings: Settings) -> str | None:
        return None if _command().exists() else f"{_command()} is not there: run make setup"

    def start(self, java: JavaClient) -> None:
        shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir(parents=True)
        self.launch()
        self.first_publish_seconds = (
            wire.first_publish(self.port, "persistent://public/default/first", START_SECONDS_MAX) - self._born
        )

    def launch(self) -> None:
        """Starts the process on whatever data there is, without waiting for it."""
        self.port = free_port()
        self.web_port = free_port()
        ports = ["--port", str(self.port), "--http-port", str(self.web_port)]
        log = open(self.settings.scratch / "anabranch.log", "wb")  # noqa: SIM115  the child keeps it
        command = [str(_command()), "standalone", "--data-dir", str(self.data), *ports, *self.extra_arguments]
        self._born = time.clock_gettime(time.CLOCK_BOOTTIME)
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        log.close()
        self.pid = child.pid

    def stop(self) -> None:
        end(self.pid, 30)
        self.pid = 0
        shutil.rmtree(self.data, ignore_errors=True)


def _command() -> Path:
    return Path(sys.executable).parent / "anabranch"


class Pulsar(System):
    name = "pulsar"
    title = "Pulsar 5.0.0-M1"
    syncs = "no (its stock setting)"
    journal_sync = "false"

    @property
    def data(self) -> Path:
        return self.settings.scratch / self.name

    @classmethod
    def missing(cls, settings: Settings) -> str | None:
        script = settings.peers / "pulsar" / "start.sh"
        return None if script.exists() else f"{script} is not there: set PEERS_DIR"

    def _environment(self) -> dict[str, str]:
        return os.environ | {
            "PULSAR_DATA": str(self.data),
            "BROKER_PORT": str(self.port),
            "WEB_PORT": str(self.web_port),
            "JOURNAL_SYNC": self.journal_sync,
            "WIPE": "1",
            "LOG_LEVEL": "WARN",
        }

    def start(self, java: JavaClient) -> None:
        shutil.rmtree(self.data, ignore_errors=True)
        self.port, self.web_port = free_port(), free_port()
        starter = subprocess.Popen(
            [str(self.settings.peers / "pulsar" / "start.sh")],
            env=self._environment(),
            stdout=subprocess.DEVNULL,
        )
        confirmed = wire.first_publish(self.port, "persistent://public/default/first", START_SECONDS_MAX)
        self.pid = int((self.data / "pid").read_text())
        self.first_publish_seconds = confirmed - usage.started_at(self.pid)
        if starter.wait(timeout=START_SECONDS_MAX) != 0:
            raise RuntimeError("pulsar/start.sh failed")

    def stop(self) -> None:
        subprocess.run(
            [str(self.settings.peers / "pulsar" / "stop.sh")],
            env=self._environment(),
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self.pid = 0
        shutil.rmtree(self.data, ignore_errors=True)


class PulsarSynced(Pulsar):
    name = "pulsar-synced"
    title = "Pulsar 5.0.0-M1, synced"
    syncs = "yes (journalSyncData=true)"
    journal_sync = "true"


class Kafka(System):
    name = "kafka"
    title = "Kafka 4.1.2"
    syncs = "no (its stock setting)"
    client = "kafka"

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def _home(self) -> Path:
        # The scripts keep jars and data together, so the folder is theirs, not the scratch folder.
        return Path(os.environ.get("ANCHORS_DATA", Path(tempfile.gettempdir()) / "anchors")) / "kafka"

    @property
    def data(self) -> Path:
        return self._home / "logs"

    @classmethod
    def missing(cls, settings: Settings) -> str | None:
        script = settings.peers / "kafka" / "broker.sh"
        return None if script.exists() else f"{script} is not there: set PEERS_DIR"

    def start(self, java: JavaClient) -> None:
        if not (self._home / "libs").exists():
            subprocess.run([str(self.settings.peers / "kafka" / "fetch.sh")], check=True)
        self.port = free_port()
        pidfile = self._home / "broker.pid"
        pidfile.unlink(missing_ok=True)
        environment = os.environ | {"KAFKA_PORT": str(self.port), "KAFKA_CPORT": str(free_port())}
        with java.first_publish(self.client, self.url) as poller:
            starter = subprocess.Popen(
                [str(self.settings.peers / "kafka" / "broker.sh"), "start"],
                env=environment,
                stdout=subprocess.DEVNULL,
            )
            # The script formats the storage first, with a process of its own; the broker's time starts with its own
            # process.
            while not pidfile.exists() or not pidfile.read_text().strip():
                time.sleep(0.01)
            self.pid = int(pidfile.read_text())
            confirmed = poller.wait(START_SECONDS_MAX)
        self.first_publish_seconds = confirmed - usage.started_at(self.pid)
        starter.wait(timeout=START_SECONDS_MAX)

    def stop(self) -> None:
        end(self.pid, 30)
        self.pid = 0
        shutil.rmtree(self.data, ignore_errors=True)
        shutil.rmtree(self._home / "meta", ignore_errors=True)


SYSTEMS: dict[str, type[System]] = {s.name: s for s in (Anabranch, Pulsar, PulsarSynced, Kafka)}
