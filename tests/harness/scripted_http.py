"""An HTTP server that gives scripted answers, then always the same one, and remembers the requests."""

from __future__ import annotations

import http.server
import json
import threading
from typing import Any, NamedTuple, Self


class Asked(NamedTuple):
    method: str
    path: str
    body: Any  # From JSON; None without a body.


class ScriptedHttp:
    def __init__(self, usual: bytes) -> None:
        self._usual = usual
        self.asked: list[Asked] = []
        # The `Range` of each request that had one.
        self.ranges: list[str] = []
        self._answers: list[tuple[int, bytes, dict[str, str]]] = []
        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Scripts the next answer that is not scripted yet."""
        self._answers.append((status, body, headers))

    def refuse(self, status: int, reason: str = "because", **headers: str) -> None:
        self.answer(status, json.dumps({"reason": reason}).encode(), **headers)

    def take(self, asked: Asked) -> tuple[int, bytes, dict[str, str]]:
        self.asked.append(asked)
        return self._answers.pop(0) if self._answers else (200, self._usual, {})

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        server = self

        class Answers(http.server.BaseHTTPRequestHandler):
            def _answer(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(size)) if size else None
                if part := self.headers.get("Range"):
                    server.ranges.append(part)
                status, data, headers = server.take(Asked(self.command, self.path, body))
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = _answer

            def log_message(self, *args: object) -> None:
                pass

        return Answers
