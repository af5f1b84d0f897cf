"""The demo's broker: a real process in a temporary folder, on ports that were free a moment ago."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anabranch.cli.admin.rest import RestRefused, call

START_MAX_S = 30.0
STOP_MAX_S = 15.0


class BrokerProcess:
    """`start` starts it, also again after `kill`; `discard` ends it in any state and removes its folder."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self._settings = [f"{name}={value}" for name, value in (settings or {}).items()]
        self.folder = Path(tempfile.mkdtemp(prefix="anabranch-demo-"))
        self._port, self._http_port = _free_ports(2)
        self.service_url = f"pulsar://127.0.0.1:{self._port}"
        self.admin_url = f"http://127.0.0.1:{self._http_port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._output = (self.folder / "broker.out").open("ab")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Starts the broker; returns the seconds until clients can connect and the admin REST answers."""
        started = time.monotonic()
        options = ["--data-dir", str(self.folder / "data"), "--port", str(self._port)]
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "anabranch.cli",
                "standalone",
                *options,
                "--http-port",
                str(self._http_port),
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
            try:
                if self.rest("GET", "/admin/v2/brokers/health") == "ok":
                    return time.monotonic() - started
            except RestRefused:
                time.sleep(0.02)
        raise RuntimeError(f"the broker did not start within {START_MAX_S:.0f} s: {self._last_words()}")

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
            self._process.kill()
            self._process.wait()
        self._output.close()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _last_words(self) -> str:
        lines = (self.folder / "broker.out").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
