"""Calls of the REST that are redirected: a token goes to brokers, and never from TLS into clear text."""

from __future__ import annotations

import http.server
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from anabranch.cli.admin import rest as cli_rest
from anabranch.client.security import Security
from anabranch.client.transport import keep_alive, rest
from harness.secured import Authority


@dataclass
class Site:
    """One server: where it redirects to, if anywhere, and the tokens that it was sent."""

    url: str
    target: str = ""
    tokens: list[str | None] = field(default_factory=list)


Sites = Callable[[bool], Site]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def sites(authority: Authority) -> Iterator[Sites]:
    servers: list[tuple[http.server.ThreadingHTTPServer, threading.Thread]] = []

    def made(with_tls: bool) -> Site:
        site = Site("")

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.tokens.append(self.headers.get("Authorization"))
                self.send_response(307 if site.target else 200)
                if site.target:
                    self.send_header("Location", site.target + self.path)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"[]")

            do_PUT = do_GET

            def log_message(self, *args: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        if with_tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*authority.certificate(f"site-{len(servers)}"))
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        site.url = f"http{'s' if with_tls else ''}://127.0.0.1:{server.server_address[1]}"
        return site

    yield made
    keep_alive.close()
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def security(authority: Authority) -> Iterator[Security]:
    made = Security(token="secret", tls_trust_certs_file=authority.file, tls_check_host_name=False)
    cli_rest.ask_as(made)
    yield made
    cli_rest.ask_as(None)


@pytest.mark.parametrize("method", ["GET", "PUT"])
@pytest.mark.parametrize("tls", [(True, True), (False, False), (False, True)])
def test_a_redirect_to_another_broker_is_followed_with_the_token(
    sites: Sites, security: Security, method: str, tls: tuple[bool, bool]
) -> None:
    first, second = sites(tls[0]), sites(tls[1])
    first.target = second.url
    assert rest.call(method, f"{first.url}/x", security=security).status == 200
    assert second.tokens == ["Bearer secret"]
    assert cli_rest.call(first.url, method, "/x") == []
    assert second.tokens == ["Bearer secret"] * 2


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_redirect_out_of_tls_is_refused_and_no_token_is_sent(
    sites: Sites, security: Security, method: str
) -> None:
    first, second = sites(True), sites(False)
    first.target = second.url
    answer = rest.call(method, f"{first.url}/x", security=security)
    assert answer.status == 307
    assert "without TLS" in answer.reason
    with pytest.raises(cli_rest.RestRefused, match="without TLS"):
        cli_rest.call(first.url, method, "/x")
    assert second.tokens == []
