"""A way to the broker's REST that a test can close: between a sink's driver and the broker, at one step of a commit."""

from __future__ import annotations

import http
import http.client
import http.server
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from harness.broker_process import REDIRECTS_MAX, BrokerProcess


class Gate:
    """Hands requests on. Those whose path has a word of `closed` in it get 503. What `events` has for a word is called
    when the first request comes with it, which gets 503 too."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.closed: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        self.events: dict[str, Callable[[], object]] = {}
        made: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        made.gate = self
        self._server = made
        self.url = f"http://127.0.0.1:{made.server_port}"
        self._thread = threading.Thread(target=made.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def counted(self, method: str, word: str) -> int:
        return sum(1 for verb, path in self.asked if verb == method and word in path)


class _Handler(http.server.BaseHTTPRequestHandler):
    def _pass(self) -> None:
        server: Any = self.server
        gate: Gate = server.gate
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        gate.asked.append((self.command, self.path))
        event = next((word for word in gate.events if word in self.path), None)
        if event is not None:
            gate.events.pop(event)()
            self._answer(503, b'{"reason": "something happened"}')
        elif any(word in self.path for word in gate.closed):
            self._answer(503, b'{"reason": "the gate is closed"}')
        else:
            self._answer(*self._handed_on(gate, body))

    def _handed_on(self, gate: Gate, body: bytes) -> tuple[int, bytes]:
        host, path = f"127.0.0.1:{gate.broker.http_port}", self.path
        for _ in range(REDIRECTS_MAX):
            connection = http.client.HTTPConnection(host, timeout=30)
            try:
                connection.request(self.command, path, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                read = answer.read()
            except OSError:
                return 503, b'{"reason": "the broker is away"}'
            finally:
                connection.close()
            if answer.status != http.HTTPStatus.TEMPORARY_REDIRECT:
                break
            # To the broker of several that has the topic.
            there = urlsplit(answer.headers["Location"])
            host, path = there.netloc, there._replace(scheme="", netloc="").geturl()
        return answer.status, read

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if status != 204:
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = _pass

    def log_message(self, *args: object) -> None:
        pass
