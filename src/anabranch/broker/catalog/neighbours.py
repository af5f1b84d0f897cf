"""Notices that another broker has died before its session ends: its port refuses connections.

ZooKeeper waits some seconds for a silent session, since silence may be a pause or a slow network. A refused connection
is not silence: the other machine answers that no process listens there. Each broker looks at the next one in the order
of ids, so that the cost does not grow with their number, and deletes the registration of one that has died. This is
suspicion and no safeguard: the log's fence decides who writes. A broker whose registration was deleted by mistake
registers again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from anabranch.broker.catalog.registry import BROKERS, BadRegistration, BrokerRegistration, BrokerRegistry
from anabranch.metadata.errors import MetadataError, VersionConflict
from anabranch.metadata.port import MetadataStore, SessionState

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
# A process that is being replaced may refuse for a moment.
AGAIN_S: Final = 0.1
CONNECT_MAX_S: Final = 1.0


def neighbour(me: str, living: Iterable[str]) -> str | None:
    """The broker after this one, in the ring of all ids; None if there is no other."""
    others = sorted(one for one in living if one != me)
    return next((one for one in others if one > me), others[0] if others else None)


class Neighbours:
    def __init__(self, metadata: MetadataStore, registry: BrokerRegistry) -> None:
        self._metadata = metadata
        self._registry = registry
        # The run that has accepted a connection of this broker. One that never has may be behind an address that
        # refuses for reasons of its own.
        self._reached = ""

    async def look(self) -> None:
        """Called again and again. A store that cannot be reached is no reason to do anything."""
        if self._metadata.session.state is not SessionState.CONNECTED:
            return
        with contextlib.suppress(MetadataError):
            if not self._registry.is_registered:
                await self._registry.register()
            living = self._registry.living()
            name = neighbour(self._registry.me.id, living)
            if name is not None and not living[name].is_draining:
                await self._look_at(living[name])

    async def _look_at(self, one: BrokerRegistration) -> None:
        if not await self._refuses(one):
            return
        await asyncio.sleep(AGAIN_S)
        if not await self._refuses(one):
            return
        path = f"{BROKERS}/{one.id}"
        found = await self._metadata.get(path, fresh=True)
        if found is None or _run_of(found.value) != one.run_id:
            return
        # If this run registers again, it lives behind a port that refuses: it is suspected no more until it accepts.
        self._reached = ""
        with contextlib.suppress(VersionConflict):
            await self._metadata.delete(path, if_version=found.version)
            log.warning("broker %s refuses connections: it has died, and its topics go to others", one.id)

    async def _refuses(self, one: BrokerRegistration) -> bool:
        """Whether its port, which was open to this broker before, refuses a connection."""
        at = urlsplit(one.address.service_url or one.address.service_url_tls)
        try:
            async with asyncio.timeout(CONNECT_MAX_S):
                _, writer = await asyncio.open_connection(at.hostname, at.port)
        except ConnectionRefusedError:
            return one.run_id == self._reached
        except (OSError, TimeoutError):
            return False  # It may be slow, or paused, or far away: its session tells.
        writer.transport.abort()
        if self._reached != one.run_id:
            self._reached = one.run_id
            log.info("looking after broker %s", one.id)
        return False


def _run_of(stored: bytes) -> str | None:
    with contextlib.suppress(BadRegistration):
        return BrokerRegistration.decode(stored).run_id
    return None
