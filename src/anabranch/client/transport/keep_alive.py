"""GET over persistent connections: a task that asks for hundreds of read plans opens one connection, not hundreds.

Each thread has its own connections, by scheme and host. A server closes a connection that has been idle for some
seconds, which only the next request on it notices: that request is sent again on a new connection. So this is for
requests that may be repeated.
"""

from __future__ import annotations

import http.client
import os
import ssl
import threading
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from anabranch.client.security import Security

_Key = tuple[int, str, str, Security]


class _Connections(dict[_Key, http.client.HTTPConnection]):
    def close(self) -> None:
        for connection in self.values():
            connection.close()
        self.clear()

    def __del__(self) -> None:
        # The thread of these connections has ended.
        self.close()


class _Kept(threading.local):
    def __init__(self) -> None:
        self.by_key = _Connections()


_kept = _Kept()


def close() -> None:
    """Closes the connections of this thread."""
    _kept.by_key.close()


def get(
    url: str,
    headers: Mapping[str, str],
    security: Security,
    tls: Callable[[], ssl.SSLContext],
    timeout_s: float,
) -> tuple[http.client.HTTPResponse, bytes]:
    """The response and its body. Raises OSError or HTTPException if none came."""
    parts = urlsplit(url)
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    # A forked process must not use its parent's connections.
    key = (os.getpid(), parts.scheme, parts.netloc, security)
    # Only a connection that has delivered a whole answer is put back.
    connection = _kept.by_key.pop(key, None)
    if connection is not None:
        try:
            return _ask(connection, target, headers, timeout_s, key)
        except ConnectionError:
            pass
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(parts.netloc, timeout=timeout_s, context=tls())
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=timeout_s)
    return _ask(connection, target, headers, timeout_s, key)


def _ask(
    connection: http.client.HTTPConnection,
    target: str,
    headers: Mapping[str, str],
    timeout_s: float,
    key: _Key,
) -> tuple[http.client.HTTPResponse, bytes]:
    if connection.sock is not None:
        connection.sock.settimeout(timeout_s)
    try:
        connection.request("GET", target, headers=dict(headers))
        response = connection.getresponse()
        body = response.read()
    except BaseException:
        connection.close()
        raise
    if response.will_close:
        connection.close()
    else:
        _kept.by_key[key] = connection
    return response, body
