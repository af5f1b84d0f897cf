"""The demo's broker, or several of them: real processes in a temporary folder, on ports that were free a moment ago."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from anabranch.cli.admin.rest import RestRefused, call
from anabranch.cli.demo.listed import listed

START_MAX_S = 60.0
STOP_MAX_S = 15.0
OWN_PORTS: Final = ("brokersFirstPort", "brokersFirstWebPort")  # 0 takes any that are free.
CHILD: Final = "anabranch.supervisor.child"  # The program of each process that a supervisor starts.


class BrokerProcess:
    """`start` starts it, also again after `kill`; `discard` ends it in any state and removes its folder.

    `{folder}` in a setting is that folder. Several brokers are started by a supervisor, whose pid is `pid`; `kill_one`
    ends one of them, which the supervisor starts again.
    """

    def __init__(self, settings: Mapping[str, str] | None = None, brokers: int = 1) -> None:
        self.brokers = brokers
        # The brokers' own log is read here, so it is text whatever the environment says.
        given = {"logFormat": "text", "logLevel": "info", **(settings or {})}
        if brokers > 1:
            given |= dict.fromkeys(OWN_PORTS, "0")
        self.folder = Path(tempfile.mkdtemp(prefix="anabranch-demo-"))
        self._settings = [
            f"{name}={value.replace('{folder}', str(self.folder))}" for name, value in given.items()
        ]
        self._port, self._http_port = _free_ports(2)
        self.service_url = f"pulsar://127.0.0.1:{self._port}"
        self.admin_url = f"http://127.0.0.1:{self._http_port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._log = self.folder / "broker.out"
        self._output = self._log.open("ab")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Starts the broker; returns the seconds until clients can connect and the admin REST answers, at every broker
        of several."""
        started = time.monotonic()
        options = ["--data-dir", str(self.folder / "data"), "--port", str(self._port)]
        options += ["--http-port", str(self._http_port), "--brokers", str(self.brokers)]
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "anabranch.cli", "standalone", *options),
                *(part for setting in self._settings for part in ("--set", setting)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            # The broker must not get Ctrl-C: its parent process stops it, in its own order.
            process_group=0,
        )
        while time.monotonic() - started < START_MAX_S:
            if self._process.poll() is not None:
                raise RuntimeError(
                    f"the broker ended with code {self._process.returncode}: {self._last_words()}"
                )
            if self._is_ready():
                return time.monotonic() - started
            time.sleep(0.02)
        raise RuntimeError(f"the broker did not start within {START_MAX_S:.0f} s: {self._last_words()}")

    def _is_ready(self) -> bool:
        if self.brokers > 1 and len(self.addresses()) < self.brokers:
            return False
        with suppress(RestRefused):
            return bool(self.rest("GET", "/admin/v2/brokers/health") == "ok")
        return False

    def rest(self, method: str, path: str, body: Any = None) -> Any:
        return call(self.admin_url, method, path, body, timeout=10)

    def kill(self) -> None:
        """SIGKILL: the broker gets no chance to write anything."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Sends SIGTERM; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOP_MAX_S)

    def discard(self, *, keep: bool = False) -> None:
        """Ends the broker and removes its folder, unless `keep`."""
        if self._process is not None and self._process.poll() is None:
            others = set(self._children().values())
            self.kill()
            _end(others)  # They end with their supervisor, but a moment later: until then they write.
        self._output.close()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    # -- one of several

    def addresses(self) -> dict[str, str]:
        """The name (`broker-0`) of each broker that has served so far, by its address (`host:port`)."""
        found = re.findall(r" (broker-\d+) \S+ serving pulsar://(\S+) from ", self._said())
        return {address: name for name, address in found}

    def kill_one(self, name: str) -> None:
        """SIGKILL for one broker; the others and the supervisor go on."""
        os.kill(self._children()[name], signal.SIGKILL)

    def serves_again(self, name: str) -> bool:
        """Whether the supervisor has started this broker again, and clients are answered."""
        return f" {name} serves again" in self._said()

    def _children(self) -> dict[str, int]:
        """The processes of the supervisor by their names."""
        return {
            one.words[one.words.index(CHILD) + 1]: one.pid
            for one in listed()
            if one.parent == self.pid and CHILD in one.words
        }

    def _said(self) -> str:
        return self._log.read_text(errors="replace")

    def _last_words(self) -> str:
        lines = self._said().strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def _end(processes: set[int]) -> None:
    deadline = time.monotonic() + STOP_MAX_S
    while processes and time.monotonic() < deadline:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        processes = processes & {one.pid for one in listed() if not one.has_ended}


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
