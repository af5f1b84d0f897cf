"""How many connections there may be, in all and from one address. Pure. Connections without an address have no limit
of their own."""

from __future__ import annotations

from collections import Counter

from anabranch.broker.errors import NotAllowedError


class ConnectionLimits:
    """0 is no limit. A refused connection counts until it is closed, so that refusing is bounded by these limits
    too."""

    def __init__(self, total_max: int = 0, per_host_max: int = 0) -> None:
        self._total_max = total_max
        self._per_host_max = per_host_max
        self._hosts: Counter[str] = Counter()
        self._total = 0

    def opened(self, host: str) -> None:
        """Counts a connection. NotAllowedError if it is one too many."""
        self._total += 1
        self._hosts[host] += 1
        if 0 < self._total_max < self._total:
            raise NotAllowedError(
                f"the broker has its maximum of {self._total_max} connections (brokerMaxConnections): try again later"
            )
        if host and 0 < self._per_host_max < self._hosts[host]:
            raise NotAllowedError(
                f"{host} has its maximum of {self._per_host_max} connections (brokerMaxConnectionsPerIp): close some"
            )

    def closed(self, host: str) -> None:
        self._total -= 1
        self._hosts[host] -= 1
        if not self._hosts[host]:
            del self._hosts[host]
