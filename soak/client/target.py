"""The broker of a run: our own, in a process started for it, or one that runs already, which may be a real Pulsar."""

from __future__ import annotations

import asyncio
import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from soak.broker import BrokerProcess
from soak.client.relay import Address

REST_ERRORS = (urllib.error.URLError, http.client.HTTPException, OSError, TimeoutError)
REST_MAX_S = 60.0
# The broker's own address, and the advertised one: any other address of this host.
OWN_HOST = "127.0.0.1"
ADVERTISED_HOST = "127.0.0.2"
GRACE_S = 2.0
MESSAGE_BYTES_MAX = 256 << 10
SETTINGS = {
    "advertisedAddress": ADVERTISED_HOST,
    "scalableTopicConsumerSessionGracePeriodSeconds": int(GRACE_S),
    "retentionCheckIntervalInSeconds": 1,
    "logFileBytes": 8 << 20,
    "defaultRetentionTimeInMinutes": 0,
    "logLingerSeconds": 0,
    # Small, so that a large message is one of some hundred KB; larger than a batch.
    "maxMessageSize": MESSAGE_BYTES_MAX,
}


@dataclass(frozen=True, slots=True)
class Target:
    """Clients connect to `url`. With `behind`, a relay listens there and forwards to that address of the broker."""

    url: str
    admin: str
    behind: Address | None = None
    # How long a disconnected consumer keeps its segments.
    grace_s: float = 60.0
    message_bytes_max: int = 5 << 20
    # Only our own broker can be killed.
    process: BrokerProcess | None = None

    @property
    def address(self) -> Address:
        url = urlsplit(self.url)
        assert url.hostname is not None, f"{self.url} names no host"
        return Address(url.hostname, url.port or 6650)

    async def rest(self, method: str, path: str, body: object = None) -> Any:
        """The answer of a path below /admin/v2/: JSON or text."""
        return await asyncio.to_thread(self._rest, method, path, body)

    def _rest(self, method: str, path: str, body: object) -> Any:
        request = urllib.request.Request(
            f"{self.admin}/admin/v2/{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=REST_MAX_S) as response:
            text = response.read().decode()
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text


def own(folder: Path) -> Target:
    """Our own broker, not started yet, which advertises the relay's address."""
    process = BrokerProcess(folder / "data", SETTINGS)
    return Target(
        url=f"pulsar://{ADVERTISED_HOST}:{process.port}",
        admin=f"http://{OWN_HOST}:{process.http_port}",
        behind=Address(OWN_HOST, process.port),
        grace_s=GRACE_S,
        message_bytes_max=MESSAGE_BYTES_MAX,
        process=process,
    )
