"""Where a caller of the REST may be redirected to. Pure.

Brokers redirect requests to the broker that can answer them, which has another host or port, and the caller sends its
credentials along, as Pulsar's admin client does. The reason to trust that broker is the word of the one that was asked:
it has the credentials already. Over TLS the other broker also shows a certificate that the caller checks. So one thing
must not happen: that the request leaves TLS, where anybody on the way could read the credentials and make up the
answer. Over plain HTTP there is nothing left to protect.
"""

from __future__ import annotations

from urllib.parse import urljoin, urlsplit


class UnsafeRedirect(Exception):
    """The redirect must not be followed; the message says why."""


def redirected(url: str, location: str) -> str:
    """The URL to ask next. UnsafeRedirect if it leaves TLS, or is no address of a broker at all."""
    try:
        target = urljoin(url, location)
        before, after = urlsplit(url), urlsplit(target)
        is_address = after.scheme in ("http", "https") and bool(after.hostname) and (after.port or 1) > 0
    except ValueError:
        is_address = False
    if not is_address:
        raise UnsafeRedirect(f"{url} redirects to {location!r}, which is no address of a broker")
    if before.scheme == "https" and after.scheme != "https":
        raise UnsafeRedirect(
            f"{url} redirects to {target} without TLS: credentials would be sent in clear text"
        )
    return target
