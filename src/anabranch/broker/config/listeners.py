"""Addresses of this broker for clients of different networks: `advertisedListeners`. Pure.

    advertisedListeners=inside:pulsar://10.0.0.7:6650,outside:pulsar+ssl://river.example.com:6651

A client that names a listener is sent there by lookups. A client that names none is sent to the one of
`internalListenerName`, or to the first; addresses missing there are made of `advertisedAddress` and the ports. A
listener opens no port by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_SCHEMES: Final = {
    "pulsar": "service_url",
    "pulsar+ssl": "service_url_tls",
    "http": "http_url",
    "https": "http_url_tls",
}


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of one listener. Empty: none."""

    service_url: str = ""
    service_url_tls: str = ""
    http_url: str = ""
    http_url_tls: str = ""

    def over(self, other: Addresses) -> Addresses:
        """These addresses, and the other's where these are empty."""
        return Addresses(
            self.service_url or other.service_url,
            self.service_url_tls or other.service_url_tls,
            self.http_url or other.http_url,
            self.http_url_tls or other.http_url_tls,
        )


def read(entries: Sequence[str], internal: str = "") -> dict[str, Addresses]:
    """Addresses by listener name, the internal one first. ValueError names the mistake and the expected form."""
    found: dict[str, Addresses] = {}
    for entry in entries:
        name, _, url = entry.partition(":")
        parts = urlsplit(url)
        field = _SCHEMES.get(parts.scheme)
        if not _NAME.fullmatch(name) or field is None or not parts.hostname or not _port(url):
            raise ValueError(
                f"{entry!r} is no listener: expected one like outside:pulsar://river.example.com:6650"
            )
        addresses = found.get(name, Addresses())
        if getattr(addresses, field):
            raise ValueError(f"listener {name} has two addresses for {parts.scheme}://")
        found[name] = replace(addresses, **{field: url})
    if internal and internal not in found:
        raise ValueError(f"internalListenerName={internal} is none of {', '.join(found) or 'no listeners'}")
    return {internal: found[internal], **found} if internal else found


def default(listeners: Mapping[str, Addresses], own: Addresses) -> Addresses:
    """The addresses for clients that name no listener."""
    return next(iter(listeners.values()), Addresses()).over(own)


def _port(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError:
        return None
