"""Follows the health of the metadata store (`balance.core.health`): whether bundles may be moved and repaired."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from anabranch.balance.core.health import StoreHealth
from anabranch.broker.catalog.registry import BrokerRegistry
from anabranch.metadata.port import MetadataSession, SessionState

log = logging.getLogger(__name__)

# Brokers that vanish within this time of each other vanish at once: sessions of a store that is sick end one by one.
AT_ONCE_S: Final = 6.0


class SafeMode:
    def __init__(
        self,
        session: MetadataSession,
        registry: BrokerRegistry,
        time_s: Callable[[], float],
        stable_s: Callable[[], float],
    ) -> None:
        """`stable_s`: for how long the store must have been well before anything is moved again."""
        self._session = session
        self._registry = registry
        self._time_s = time_s
        self._stable_s = stable_s
        self._health = StoreHealth()
        # The brokers that are to stay, and when others went that were to stay too.
        self._brokers: set[str] = set()
        self._vanished: dict[str, float] = {}
        self._stops: list[Callable[[], None]] = []

    def start(self) -> None:
        """The registry must have been started before."""
        self._stops = [
            self._session.on_change(self._session_changed),
            self._registry.on_change(self._brokers_changed),
        ]
        self._brokers = self._staying()
        self._session_changed(self._session.state)

    def close(self) -> None:
        for stop in self._stops:
            stop()

    def why(self) -> str | None:
        """Why nothing may be moved or repaired now; None in normal mode."""
        return self._health.why_safe_mode(self._time_s(), self._stable_s())

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._health = self._health.connected(self._time_s())
        else:
            self._health = self._health.in_doubt(f"the session of the metadata store is {state.value}")
            log.warning("no bundle is moved or repaired: %s", self._health.reason)

    def _staying(self) -> set[str]:
        return {broker for broker, found in self._registry.living().items() if not found.is_draining}

    def _brokers_changed(self) -> None:
        """A broker that has said that it is about to end does not vanish."""
        now_s, now = self._time_s(), self._staying()
        for broker in self._brokers - set(self._registry.living()):
            self._vanished[broker] = now_s
        self._vanished = {
            broker: then_s
            for broker, then_s in self._vanished.items()
            if broker not in now and now_s - then_s <= AT_ONCE_S
        }
        self._brokers = now
        after = self._health.brokers_seen(now | self._vanished.keys(), now, now_s)
        if after is not self._health:
            self._health = after
            log.warning("no bundle is moved or repaired for %s s: %s", self._stable_s(), after.reason)
