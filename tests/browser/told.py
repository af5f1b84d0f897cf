"""A web server that serves the page's own files and answers its questions with what it was told to.

For what a broker takes an hour to show, and for what it never should: 64 segments with an hour behind them, refusals.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from anabranch.broker.ui import api

Answer = tuple[int, Any]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # A browser that is closed resets its connections.


class Told:
    """`answers` maps the path of a question to a function that is called each time with the query."""

    def __init__(self, answers: dict[str, Callable[[str], Answer]]) -> None:
        self.answers = answers
        told = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                if path.startswith("/ui/api/"):
                    status, value = told.answers[path.removeprefix("/ui/api/")](query)
                    self._send(status, "application/json", json.dumps(value).encode())
                    return
                name = path.removeprefix("/ui").strip("/") or "index.html"
                found = api.static_file(name)
                if found is None:
                    self._send(404, "text/plain", b"")
                else:
                    self._send(200, api.TYPES[name.rpartition(".")[2]], found[0])

            def _send(self, status: int, kind: str, data: bytes) -> None:
                self.send_response(status)
                for header, value in {
                    **api.HEADERS,
                    "Content-Type": kind,
                    "Content-Length": str(len(data)),
                }.items():
                    self.send_header(header, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/ui"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def live(answer: Any) -> Callable[[str], Answer]:
    """The recorded answer as a broker would give it: all of it once, then the time and one more sample a second."""
    newest = {number: samples[-1] for number, samples in answer["samples"].items()}
    active = [str(s["id"]) for s in answer["layout"]["segments"] if not s["sealed"]]

    def respond(query: str) -> Answer:
        now = int(time.time() * 1000)
        if "since=0&" in query:
            return 200, {**answer, "now": now}
        more = {number: [[now, *newest[number][1:]]] for number in active if number in newest}
        return 200, {**answer, "now": now, "layout": None, "samples": more, "totals": []}

    return respond
