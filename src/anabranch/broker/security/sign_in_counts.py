"""Counts accepted and refused credentials for the metrics, under Pulsar's labels.

Labels come from this module and from `AuthenticationFailed.reason`, never from a client, which could invent any number
of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from anabranch.broker.security.authentication import AuthenticationFailed, Identity
from anabranch.model.histogram import Histogram

_PROVIDERS: Final = {
    "token": "AuthenticationProviderToken",
    "basic": "AuthenticationProviderBasic",
    "tls": "AuthenticationProviderTls",
}
_DAY: Final = 24 * 60
# The remaining lifetime of accepted tokens, in minutes.
LIFETIMES: Final = (5, 10, 60, 240, *(_DAY * days for days in (1, 7, 14, 30, 90, 180, 270, 365)))


class SignInCounts:
    def __init__(self) -> None:
        self._good: Counter[str] = Counter()
        self._bad: Counter[tuple[str, str]] = Counter()
        self.expired = 0
        self.lifetimes = Histogram(LIFETIMES)

    def succeeded(self, method: str, identity: Identity, now_s: float) -> None:
        self._good[_known(method)] += 1
        if identity.expires_s is not None:
            self.lifetimes.observe((identity.expires_s - now_s) / 60)

    def failed(self, method: str, error: AuthenticationFailed) -> None:
        self._bad[_known(method), error.reason] += 1
        self.expired += error.has_expired

    def successes(self) -> Iterator[tuple[str, int]]:
        """Labels and counts."""
        for method, count in sorted(self._good.items()):
            yield _labels(method), count

    def failures(self) -> Iterator[tuple[str, int]]:
        for (method, reason), count in sorted(self._bad.items()):
            yield f'{_labels(method)},reason="{reason}"', count


def _known(method: str) -> str:
    return method if method in _PROVIDERS else "none" if method in ("", "none") else "unknown"


def _labels(method: str) -> str:
    provider = _PROVIDERS.get(method, "AuthenticationService")
    return f'provider_name="{provider}",auth_method="{method}"'
