"""HTTP connections of those who only pretend to talk, and requests that browsers and proxies twist."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from anabranch.broker.rest import serve_rest
from anabranch.broker.runtime.listening import listen
from harness.guarded import ANSWER_MAX_S, Guarded, guarded, token

ASK = b"GET /status.html HTTP/1.1\r\nHost: broker\r\n\r\n"
TENANT = "/admin/v2/tenants/new"


@contextlib.asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[int]:
    """The port of a broker's REST."""
    async with guarded(**settings) as made:
        with listen("127.0.0.1", 0) as sock:
            port: int = sock.getsockname()[1]
            async with serve_rest(made.broker.admin_services(), made.broker.page, [(sock, None)]):
                yield port


async def said(port: int, *sent: bytes) -> bytes:
    """All that comes until the broker closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = b""
    try:
        writer.write(b"".join(sent))
        async with asyncio.timeout(ANSWER_MAX_S):
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(1 << 16):
                    found += data
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return found


async def test_a_request_that_never_ends_is_cut_off() -> None:
    async with serving(http_server_idle_timeout=200) as port:
        # Each of them ends at all.
        await asyncio.gather(
            said(port),
            said(port, b"GET /status.html HTTP/1.1\r\nHost: broker\r\nX: "),
            said(port, b"POST /admin/v2/tenants/a HTTP/1.1\r\nHost: broker\r\nContent-Length: 400\r\n\r\n{"),
            said(port, b"GET /metrics HTTP/1.1\r\nHost: broker\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n"),
        )


async def test_bytes_that_trickle_in_do_not_hold_a_connection() -> None:
    async with serving(http_server_idle_timeout=200) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        ended = asyncio.create_task(reader.read())
        loop = asyncio.get_running_loop()
        timers: list[asyncio.Handle] = []

        def trickle() -> None:
            writer.write(b"X")
            timers[:] = [loop.call_later(0.02, trickle)]

        trickle()
        try:
            async with asyncio.timeout(ANSWER_MAX_S):
                with contextlib.suppress(ConnectionError):
                    await ended
        finally:
            timers[0].cancel()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def test_one_address_may_have_so_many_connections() -> None:
    async with serving(broker_max_connections_per_ip=1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ASK)
        async with asyncio.timeout(ANSWER_MAX_S):
            assert b"200 OK" in await reader.readuntil(b"OK")
            refusal = await said(port)
            assert refusal.startswith(b"HTTP/1.1 503 ")
            assert b"brokerMaxConnectionsPerIp" in refusal
            writer.close()
            await writer.wait_closed()
            while not (
                await said(port, ASK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            ).startswith(b"HTTP/1.1 200"):
                pass


async def test_what_two_servers_could_read_in_two_ways_is_refused() -> None:
    smuggled = b"GET /status.html HTTP/1.1\r\nHost: broker\r\n\r\n"
    async with serving() as port:
        answer = await said(
            port,
            b"POST /status.html HTTP/1.1\r\nHost: broker\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"0\r\n\r\n",
            smuggled,
        )
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1 ") == 1


async def test_a_head_without_an_end_is_refused(acme: Guarded) -> None:
    for path, headers in (("/status.html", {"X": "x" * 9000}), ("/" + "x" * 9000, {})):
        answer = await acme.http.get(path, headers=headers)
        assert answer.status_code == 431, answer.text
        assert "httpMaxRequestHeaderSize" in answer.json()["reason"]
    assert (await acme.http.get("/status.html", headers={"X": "x" * 7000})).status_code == 200


# -- browsers


@pytest.fixture
async def acme() -> AsyncIterator[Guarded]:
    async with guarded() as made:
        yield made


async def test_a_page_of_another_site_changes_nothing(acme: Guarded) -> None:
    for page in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://elsewhere.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:8081"},
    ):
        headers = {"Authorization": f"Bearer {token('root')}", **page}
        for method in ("PUT", "POST", "DELETE"):
            answer = await acme.http.request(method, TENANT, headers=headers, json={})
            assert answer.status_code == 403, answer.text
    await acme.rest("root", "GET", TENANT, 404)


async def test_our_own_page_and_programs_do(acme: Guarded) -> None:
    pages: list[dict[str, str]] = [
        {},
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost:8080"},
        {"Origin": "http://localhost:8080"},
    ]
    for number, page in enumerate(pages):
        headers = {"Authorization": f"Bearer {token('root')}", **page}
        assert (
            await acme.http.put(
                f"{TENANT}{number}", headers=headers, json={"allowedClusters": ["standalone"]}
            )
        ).status_code == 204


async def test_no_answer_lets_another_site_read_it(acme: Guarded) -> None:
    headers = {"Authorization": f"Bearer {token('root')}", "Origin": "http://elsewhere.example"}
    for method, path in (("GET", "/admin/v2/tenants"), ("OPTIONS", "/admin/v2/tenants"), ("GET", "/metrics")):
        answer = await acme.http.request(method, path, headers=headers)
        assert not [name for name in answer.headers if name.startswith("access-control-")]


async def test_a_body_without_a_length_ends_the_connection_with_the_answer_to_its_request() -> None:
    async with serving() as port:
        # As Node sends it, whose next request would follow the brackets.
        answer = await said(port, ASK.replace(b"GET", b"DELETE"), b"{}")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer.lower()


async def test_the_rest_of_a_request_that_was_answered_before_may_be_garbage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /nowhere HTTP/1.1\r\nHost: broker\r\nTransfer-Encoding: chunked\r\n\r\n")
        async with asyncio.timeout(ANSWER_MAX_S):
            answer = await reader.readuntil(b"}")
            writer.write(b"no chunk\r\n")
            assert await reader.read() == b""
        writer.close()
    assert answer.startswith(b"HTTP/1.1 401")
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
async def test_an_offer_of_another_protocol_is_declined_in_silence(
    caplog: pytest.LogCaptureFixture, protocol: bytes
) -> None:
    offer = b"Connection: Upgrade, close\r\nUpgrade: " + protocol
    async with serving() as port:
        answer = await said(port, b"GET /status.html HTTP/1.1\r\nHost: broker\r\n", offer, b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert not caplog.records


@pytest.mark.parametrize("name", ["Authorization", "X-Original-Principal"])
async def test_who_asks_is_said_once(acme: Guarded, name: str) -> None:
    admin = ("Authorization", f"Bearer {token('admin')}")
    answer = await acme.http.get("/admin/v2/tenants", headers=[admin, (name, "a"), (name, "b")])
    assert (answer.status_code, name.lower() in answer.text) == (400, True)
