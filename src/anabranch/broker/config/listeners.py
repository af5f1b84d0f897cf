"""Addresses of this broker for clients of different networks: `advertisedListeners`. Pure.

    advertisedListeners=inside:pulsar://10.0.0.7:6650,outside:pulsar+ssl://river.example.com:6651

A client that names a listener is sent there by lookups. A client that names none is sent to the one of
`internalListenerName`, or to the first; addresses missing there are made of `advertisedAddress` and the ports. A
listener opens no port by itself. Of several brokers that share their settings each has an address of its own: `{port}`
stands for its own port of that protocol, `{index}` for its number from 0.
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


PORT: Final = "{port}"
INDEX: Final = "{index}"


def filled(entries: Sequence[str], index: int, ports: Mapping[str, int]) -> tuple[str, ...]:
    """The listeners of the broker with that number, which has these ports by the scheme of their URLs."""

    def one(entry: str) -> str:
        scheme = entry.partition(":")[2].partition(":")[0]
        # A protocol without a port of its own here may be that of a proxy: any number stands for it.
        return entry.replace(PORT, str(ports.get(scheme) or 1)).replace(INDEX, str(index))

    return tuple(map(one, entries))


def check_distinct(entries: Sequence[str]) -> None:
    """ValueError if several brokers with these settings would have the same address."""
    for entry in entries:
        if PORT not in entry and INDEX not in entry:
            raise ValueError(f"{entry!r} would be every broker's: write {PORT} or {INDEX} into it")


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
