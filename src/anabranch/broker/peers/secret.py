"""The secret that the brokers of one cluster share. It is in the metadata store, which only brokers can read.

The first broker that needs it makes it. It is created and never changed, so all brokers agree on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from anabranch.errors import AnabranchError
from anabranch.metadata.errors import AlreadyExists
from anabranch.metadata.port import MetadataStore

PATH: Final = "/loadbalance/peer-secret"
SECRET_BYTES: Final = 32


class BadSecret(AnabranchError):
    """The stored secret cannot be used."""


async def cluster_secret(metadata: MetadataStore, random_bytes: Callable[[int], bytes]) -> bytes:
    """The secret of this cluster; made if there is none yet."""
    while True:
        found = await metadata.get(PATH, fresh=True)
        if found is not None:
            if len(found.value) < SECRET_BYTES:
                raise BadSecret(
                    f"{PATH} holds {len(found.value)} bytes and is no secret: delete it, restart brokers"
                )
            return found.value
        try:
            return (await metadata.create(PATH, random_bytes(SECRET_BYTES))).value
        except AlreadyExists:
            continue  # Another broker was faster, and its secret counts.
