"""Finds the topics that a selection matches now, by asking a broker before Spark is started."""

from __future__ import annotations

import asyncio
import random

from anabranch.client.errors import ConnectionLost, TimedOut, TopicDeleted
from anabranch.client.transport.attachment import Backoff
from anabranch.client.transport.layout_watch import LayoutWatch
from anabranch.client.transport.namespace_watch import NamespaceWatch, watch_backoff
from anabranch.client.transport.pool import Connections
from anabranch.spark.options.source import Options


def topic_names(options: Options) -> list[str]:
    """The names, sorted. ConnectionLost if no broker answers, TopicDeleted if the only named topic does not exist."""
    return asyncio.run(_names(options))


async def _names(options: Options) -> list[str]:
    connections = Connections(options.service_url, options.security)
    try:
        async with asyncio.timeout(options.timeout_s):
            await _reach(connections, options.service_url)
            if options.choice.is_named:
                if len(options.choice.names) == 1:
                    await _find(connections, options.choice.names[0])
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
            f"no answer about {options.choice} within {options.timeout_s:g} s; is the broker overloaded?"
        ) from None
    finally:
        await connections.close()


async def _find(connections: Connections, topic: str) -> None:
    """Raises TopicDeleted if there is no such topic. Of several topics, some may have ended since the job was begun."""
    watch = LayoutWatch(connections, topic, Backoff(random.Random()))
    try:
        await watch.open(create=False)
    except TopicDeleted:
        raise TopicDeleted(
            f"{topic}: there is no such topic; `anabranch topics list` shows those there are"
        ) from None
    finally:
        await watch.close()


async def _reach(connections: Connections, service_url: str) -> None:
    """Tries each broker of the URL."""
    for left in reversed(range(service_url.count(",") + 1)):
        try:
            await connections.service()
            return
        except ConnectionLost as lost:
            if not left:
                raise ConnectionLost(
                    f"{lost}; is a broker running there? `anabranch standalone` starts one, --service-url names another"
                ) from None
