"""Whether there is a broker at all: clients of scalable topics try for ever, a command gives up with a line."""

from __future__ import annotations

from anabranch.client.connection import ClientConnection


async def check_reachable(service_url: str) -> None:
    """ConnectionLost, with the reason, if nothing answers at the first of those brokers."""
    connection = await ClientConnection.open(service_url.partition(",")[0])
    await connection.close()
