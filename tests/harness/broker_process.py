"""A broker in a process of its own: started, stopped, killed, paused and restarted on the same ports."""

from __future__ import annotations

import atexit
import http
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from soak.ports import free_port

# It takes a third of a second on an idle machine.
START_MAX_S = 60.0
STOP_MAX_S = 60.0
REDIRECTS_MAX = 5
METADATA = "metadata"
_CHILD = b"anabranch.supervisor.child"


class RestFailed(AssertionError):
    """The broker answered a REST request with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


def until(met: Callable[[], Any], within_s: float = 60.0, every_s: float = 0.02) -> Any:
    """Polls until `met` returns something true, which is returned; fails loudly after `within_s`."""
    deadline = time.monotonic() + within_s
    while True:
        found = met()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not met within {within_s} s: {met}")
        time.sleep(every_s)


class BrokerProcess:
    """`anabranch standalone` in `folder`. A context manager: nothing of it outlives the test.

    `settings` are the broker's own (`brokerDeduplicationEnabled=True`). Ports stay the same over restarts. With
    `BROKERS=3` in the environment it is that many brokers, unless the test gives a number itself.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object] | None = None,
        *,
        token: str | None = None,
        brokers: int | None = None,
    ) -> None:
        self.folder = folder
        self.token = token  # For its REST.
        self.port = free_port()
        self.http_port = free_port()
        self.settings = dict(settings or {})
        self._log_path = folder / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._has_served = False
        self._unhealthy = "nothing was asked"  # Why it did not count as started when it was last asked.
        self.brokers = int(os.environ.get("BROKERS", 1)) if brokers is None else brokers
        if brokers is None and self.brokers > 1:
            # Several brokers trim less often than one. A test that waits for a trim has settings for one.
            self.settings = {"logTrimSeconds": 0, **self.settings}
        self._log_start = 0  # Of the last start's lines.
        self._counted: dict[str, int] = {}
        atexit.register(self.kill)

    @property
    def command(self) -> list[str]:
        command = [sys.executable, "-m", "anabranch.cli", "standalone"]
        command += ["--data-dir", str(self.folder / "data")]
        command += ["--port", str(self.port), "--http-port", str(self.http_port)]
        settings = dict(self.settings)
        if self.brokers > 1:
            command += ["--brokers", str(self.brokers)]
            free = (
                "brokersFirstPort",
                "brokersFirstWebPort",
                "brokersFirstPortTls",
                "brokersFirstWebPortTls",
            )
            settings = {**dict.fromkeys(free, 0), **settings}
        for name, value in settings.items():
            command += ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
        return command

    # -- life

    def start(self) -> Self:
        """Returns once clients can connect to either port."""
        assert self._process is None, "already started"
        while True:
            self._spawn()
            try:
                until(self._is_healthy, within_s=START_MAX_S)
            except BaseException as error:
                self.kill()
                if self._has_served or "is in use by another program" not in str(error):
                    error.add_note(f"health: {self._unhealthy}\nlog: {self.log_since_start[-4000:]}")
                    raise
                # Another process took the port. Ours are not known to clients yet, so choose others.
                self.port, self.http_port = free_port(), free_port()
                continue
            self._has_served = True
            return self

    def _spawn(self) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ANABRANCH_")}
        self._counted = {}
        with self._log_path.open("ab") as output:
            self._log_start = output.tell()
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ
            )

    def _is_healthy(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(
                f"the broker ended with code {self._process.returncode}:\n{self.log[-4000:]}"
            )
        if self.brokers > 1 and "brokers, data in" not in self.log_since_start:
            self._unhealthy = "not asked before all brokers are told of"
            return False
        try:
            return bool(self.get("brokers/health") == "ok")
        except RestFailed as refused:
            # A full disk is no reason not to have started.
            self._unhealthy = str(refused)
            return "disk is full" in str(refused)
        except (OSError, http.client.HTTPException) as error:
            self._unhealthy = repr(error)
            return False

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        process = self._taken()
        process.terminate()
        try:
            return process.wait(STOP_MAX_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"SIGTERM did not end the broker:\n{self.log[-4000:]}") from None

    def wait(self) -> int:
        """Waits until it ends, for whatever reason; returns the exit code."""
        return self._taken().wait(STOP_MAX_S)

    def kill(self) -> None:
        """SIGKILL; does nothing if it is not running."""
        if self._process is not None:
            process = self._taken()
            process.kill()
            process.wait()

    def restart(self) -> None:
        """SIGKILL, then start on the same ports and data."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Pauses the broker, or all of several; their supervisor and metadata go on."""
        for pid in self._broker_pids():
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self._broker_pids():
            os.kill(pid, signal.SIGCONT)

    def _broker_pids(self) -> list[int]:
        if self.brokers == 1:
            return [self.pid]
        return [pid for name, pid in self.pids.items() if name != METADATA]

    def _taken(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not running"
        process, self._process = self._process, None
        return process

    def __enter__(self) -> Self:
        return self.start() if self._process is None else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        atexit.unregister(self.kill)

    # -- looking at it

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not running"
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    @property
    def log_since_start(self) -> str:
        return self._log_path.read_bytes()[self._log_start :].decode(errors="replace")

    @property
    def pids(self) -> dict[str, int]:
        """The living processes of several brokers by name: `metadata`, `broker-0`, `broker-1`, …"""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if _CHILD in words and _parent(folder) == self.pid:
                    found[words[words.index(_CHILD) + 1].decode()] = int(folder.name)
        return found

    @property
    def own_urls(self) -> dict[str, str]:
        """The URL of each of several brokers on its own port, as it last logged it."""
        return dict(re.findall(r"(broker-\d+) \S+ serving (pulsar\S+) from", self.log_since_start))

    @property
    def memory_bytes(self) -> int:
        """Resident memory of all its processes."""
        return sum(_resident(pid) for pid in (self.pid, *self.pids.values()))

    # -- admin REST

    def rest(self, method: str, path: str, body: object = None) -> Any:
        """The JSON answer (or text) of a path below /admin/v2/."""
        return rest_call(self.http_port, method, path, body, token=self.token)

    def get(self, path: str) -> Any:
        return self.rest("GET", path)

    def put(self, path: str, body: object = None) -> Any:
        return self.rest("PUT", path, body)

    def post(self, path: str, body: object = None) -> Any:
        return self.rest("POST", path, body)

    def port_for(self, topic: str) -> int:
        """The binary port at which a classic topic is served; all of them are at the same one but for `BROKERS=3`."""
        if self.brokers == 1:
            return self.port
        found = rest_call(
            self.http_port, "GET", f"lookup/v2/topic/{rest_path(topic)}", root="/", token=self.token
        )
        return urlsplit(found["brokerUrl"]).port or 0

    def metrics(self) -> list[str]:
        """The page of metrics of each broker."""
        webs = [f"127.0.0.1:{self.http_port}"] if self.brokers == 1 else self.get("brokers")
        pages = []
        for web in webs:
            with urllib.request.urlopen(f"http://{web}/metrics", timeout=15) as answer:
                pages.append(answer.read().decode())
        return pages

    def stats(self, topic: str) -> Any:
        """The stats of a topic, named as clients name it."""
        return self.get(f"{rest_path(topic)}/stats")


def _parent(folder: Path) -> int:
    return int((folder / "stat").read_text().rpartition(") ")[2].split()[1])


def _resident(pid: int) -> int:
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        line = next((line for line in status.splitlines() if line.startswith("VmRSS")), "x 0")
        return int(line.split()[1]) * 1024
    return 0


def rest_path(topic: str) -> str:
    """`persistent/tenant/namespace/name` of a topic in any of its spellings."""
    domain, found, name = topic.rpartition("://")
    return (domain if found else "persistent") + "/" + (name if "/" in name else f"public/default/{name}")


def rest_call(
    port: int,
    method: str,
    path: str,
    body: object = None,
    *,
    token: str | None = None,
    root: str = "/admin/v2/",
) -> Any:
    """The JSON answer (or text) of a path below `root`, at whichever broker the first one redirects to."""
    text = None if body is None else json.dumps(body)
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    host, target = f"127.0.0.1:{port}", f"{root}{path}"
    for _ in range(REDIRECTS_MAX):
        connection = http.client.HTTPConnection(host, timeout=15)
        try:
            connection.request(method, target, text, headers)
            answer = connection.getresponse()
            content = answer.read().decode()
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.TEMPORARY_REDIRECT:
            break
        there = urlsplit(answer.headers["Location"])
        host, target = there.netloc, there._replace(scheme="", netloc="").geturl()
    if answer.status >= 300:
        raise RestFailed(answer.status, content)
    try:
        return json.loads(content) if content else None
    except ValueError:
        return content
