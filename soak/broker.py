"""A real `anabranch standalone` process for fault injection: it can be killed, stopped and started again."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from soak.ports import free_port

START_SECONDS_MAX = 60.0
# What a request may fail with while the broker is killed and started again.
REST_ERRORS = (urllib.error.URLError, http.client.HTTPException, OSError, TimeoutError)


class _ToOwner(urllib.request.HTTPRedirectHandler):
    """Follows redirects to a topic's owner with the same method and body, as Pulsar's admin clients do."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if code != HTTPStatus.TEMPORARY_REDIRECT:
            return super().redirect_request(req, fp, code, msg, headers, newurl)
        return urllib.request.Request(
            newurl, data=req.data, method=req.get_method(), headers=dict(req.header_items())
        )


_OPENER = urllib.request.build_opener(_ToOwner)


def command() -> str:
    """The broker's command, beside the interpreter that runs this."""
    return str(Path(sys.executable).parent / "anabranch")


class BrokerProcess:
    """One data folder and one pair of ports; at most one process at a time serves them."""

    def __init__(self, data: Path, settings: Mapping[str, object] | None = None) -> None:
        self.data = data
        self.port = free_port()
        self.http_port = free_port()
        self.log = data.parent / f"{data.name}.log"
        # The settings go through the environment, as an operator's would.
        self.settings = {f"ANABRANCH_{name}": str(value) for name, value in (settings or {}).items()}
        self.arguments: tuple[str, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker was never started"
        return self._process.pid

    # -- life

    def spawn(self) -> float:
        """Starts the process without waiting for it; returns the monotonic time of that moment."""
        assert not self.is_running, "the broker is running already"
        with self.log.open("ab") as log:
            began = time.monotonic()
            self._process = subprocess.Popen(
                [
                    *(command(), "standalone", "--data-dir", str(self.data)),
                    *("--port", str(self.port), "--http-port", str(self.http_port), *self.arguments),
                ],
                env={**os.environ, **self.settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return began

    def start(self) -> float:
        """Starts the process and waits until clients can connect; returns the seconds that took."""
        began = self.spawn()
        self.wait_ready()
        return time.monotonic() - began

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            if not self.is_running:
                raise RuntimeError(f"the broker ended by itself:\n{self.log_tail()}")
            with contextlib.suppress(OSError, urllib.error.URLError):
                try:
                    if self.rest("GET", "brokers/health", timeout=5) == "ok":
                        return
                except urllib.error.HTTPError as refused:
                    if b"disk is full" in refused.read():
                        return  # A broker with a full disk serves consumers, which make room.
            time.sleep(0.01)
        raise TimeoutError(f"the broker was not ready in {START_SECONDS_MAX:.0f} s:\n{self.log_tail()}")

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """kill -9: no shutdown, nothing flushed."""
        self._signal(signal.SIGKILL)
        self.wait()

    def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        self._signal(signal.SIGTERM)
        return self.wait()

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def wait(self, seconds: float = 30.0) -> int:
        assert self._process is not None
        return self._process.wait(timeout=seconds)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)

    # -- looking at it

    def rest(self, method: str, path: str, body: object = None, *, timeout: float = 30.0) -> Any:
        """A call of the admin interface below /admin/v2; its JSON, or its text."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.http_port}/admin/v2/{path}",
            data=data,
            method=method,
            headers={"Content-Type": "application/json"},
        )
        with _OPENER.open(request, timeout=timeout) as response:
            text = response.read().decode()
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics by its name with labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/metrics", timeout=30) as response:
            lines = response.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def rss_bytes(self) -> int:
        """Resident memory of the process and of any it started."""
        return sum(_rss(pid) for pid in [self.pid, *_children(self.pid)])

    def rss_peak_bytes(self) -> int:
        """The most the process itself ever had resident."""
        return _status(self.pid, "VmHWM")

    def cpu_seconds(self) -> float:
        """CPU seconds of the process so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def log_tail(self, lines: int = 20) -> str:
        return "\n".join(self.log_text().splitlines()[-lines:])


def _status(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def _rss(pid: int) -> int:
    try:
        return _status(pid, "VmRSS")
    except FileNotFoundError:
        return 0


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except FileNotFoundError:
        return []
    return [int(one) for one in text.split()]


@contextlib.contextmanager
def running(data: Path, settings: Mapping[str, object] | None = None) -> Iterator[BrokerProcess]:
    """A started broker, which is ended with the block in any case."""
    broker = BrokerProcess(data, settings)
    try:
        broker.start()
        yield broker
    finally:
        if broker.is_running:
            broker.resume()
            broker.kill()
