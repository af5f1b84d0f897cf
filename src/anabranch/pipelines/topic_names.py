"""Which topics a choice stands for now, asked of a broker; and whether one answers at all, before Spark is started."""

from __future__ import annotations

import asyncio
import random

from anabranch.client.connections import Connections
from anabranch.client.errors import ConnectionLost, TimedOut
from anabranch.client.namespace_watch import NamespaceWatch, watch_backoff
from anabranch.spark.options import Options


def topic_names(options: Options) -> list[str]:
    """Sorted. ConnectionLost if no broker answers."""
    return asyncio.run(_names(options))


async def _names(options: Options) -> list[str]:
    connections = Connections(options.service_url, options.security)
    try:
        async with asyncio.timeout(options.timeout_s):
            await _reach(connections, options.service_url)
            if options.choice.is_named:
                return sorted(options.choice.names)
            watch = NamespaceWatch(
                connections,
                options.choice.namespace,
                dict(options.choice.filters),
                changed=lambda _: None,
                ended=lambda _: None,
                backoff=watch_backoff(random.Random()),
            )
            try:
                return sorted(options.choice.of_those(await watch.start()))
            finally:
                await watch.close()
    except TimeoutError:
        raise TimedOut(
            f"no answer about {options.choice} within {options.timeout_s:g} s; is the broker in trouble?"
        ) from None
    finally:
        await connections.close()


async def _reach(connections: Connections, service_url: str) -> None:
    """Each broker of the URL has its chance."""
    for left in reversed(range(service_url.count(",") + 1)):
        try:
            await connections.service()
            return
        except ConnectionLost as lost:
            if not left:
                raise ConnectionLost(
                    f"{lost}; is a broker running there? `anabranch standalone` starts one, --service-url names another"
                ) from None
