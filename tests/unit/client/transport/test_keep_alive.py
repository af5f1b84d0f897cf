"""Requests over kept connections, to a real HTTP server that keeps, closes or forgets them."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from anabranch.client.transport import keep_alive, rest
from anabranch.client.transport.rest import NotAnswered


@dataclass
class Site:
    """What it was asked, by connection, and how it treats them."""

    url: str = ""
    asked: list[tuple[int, str]] = field(default_factory=list)
    closes_after_each: bool = False
    hangs_up_on: str = ""
    sockets: list[socket.socket] = field(default_factory=list)

    @property
    def connections(self) -> int:
        return len({connection for connection, _ in self.asked})


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            site.sockets.append(self.request)

        def do_GET(self) -> None:
            site.asked.append((id(self.request), self.path))
            if self.path == site.hangs_up_on:
                self.close_connection = True
                return
            body = f"{self.path} {self.headers.get('X-Name')}".encode()
            self.send_response(404 if "absent" in self.path else 200)
            self.send_header("Content-Length", str(len(body)))
            if site.closes_after_each:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_GET

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield site
    keep_alive.close()
    server.shutdown()
    server.server_close()


def get(site: Site, path: str, **options: Any) -> rest.RestAnswer:
    return rest.call("GET", f"{site.url}{path}", **options)


def test_many_requests_take_one_connection(site: Site) -> None:
    answers = [get(site, f"/plan?start={number}") for number in range(20)]
    assert [answer.body for answer in answers] == [
        f"/plan?start={number} None".encode() for number in range(20)
    ]
    assert site.connections == 1


def test_errors_are_answers_and_keep_the_connection(site: Site) -> None:
    assert get(site, "/absent").status == 404
    assert get(site, "/there").status == 200
    assert site.connections == 1


def test_a_server_that_closes_after_each_answer(site: Site) -> None:
    site.closes_after_each = True
    assert [get(site, "/a").status for _ in range(3)] == [200, 200, 200]
    assert site.connections == 3


def test_what_the_server_closed_while_it_was_idle_is_opened_again(site: Site) -> None:
    get(site, "/before")
    site.sockets[0].shutdown(socket.SHUT_RDWR)
    assert get(site, "/after").status == 200
    assert site.connections == 2
    assert len(site.sockets) == 2


def test_a_new_connection_that_ends_without_an_answer_is_an_error_and_not_repeated(site: Site) -> None:
    site.hangs_up_on = "/never"
    with pytest.raises(NotAnswered, match="/never"):
        get(site, "/never")
    assert [path for _, path in site.asked] == ["/never"]


def test_a_kept_one_is_tried_once_more_and_no_oftener(site: Site) -> None:
    site.hangs_up_on = "/never"
    get(site, "/fine")
    with pytest.raises(NotAnswered):
        get(site, "/never")
    assert [path for _, path in site.asked] == ["/fine", "/never", "/never"]


def test_a_wait_that_is_over_is_not_begun_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(NotAnswered, match="timed out"):
        rest.call("GET", f"http://127.0.0.1:{silent.getsockname()[1]}/x", timeout_s=0.05)


def test_requests_that_change_something_are_sent_once(site: Site) -> None:
    site.hangs_up_on = "/changed"
    get(site, "/fine")
    with pytest.raises(NotAnswered):
        rest.call("PUT", f"{site.url}/changed")
    assert [path for _, path in site.asked] == ["/fine", "/changed"]


def test_each_thread_has_its_own(site: Site) -> None:
    threads = [threading.Thread(target=get, args=(site, "/a")) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert site.connections == len(site.sockets) == 3


def test_a_proxy_is_asked_where_one_is_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", site.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    rest._opener.cache_clear()
    assert rest.call("GET", "http://somewhere.invalid/x").body == b"http://somewhere.invalid/x None"
    assert get(site, "/here").body == b"/here None"
    rest._opener.cache_clear()
