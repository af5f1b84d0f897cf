"""Registers an ephemeral at a metadata process, says so, and waits to be killed."""

from __future__ import annotations

import asyncio
import sys

from anabranch.metadata.remote import RemoteMetadata


async def main(socket_path: str, path: str) -> None:
    store = await RemoteMetadata.connect(socket_path)
    await store.create(path, b"here", ephemeral=True)
    print(store.session.id, flush=True)
    await asyncio.Event().wait()


asyncio.run(main(sys.argv[1], sys.argv[2]))
