"""Where a topic's table is. A broker tells where all tables are; below that, a table has its topic's name and id.

A topic that was made again under its name has another id, and so another table.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.client.errors import ConnectionLost
from anabranch.client.security import Security
from anabranch.client.transport import rest
from anabranch.client.transport.layout_watch import LayoutWatch
from anabranch.client.transport.pool import Connections
from anabranch.errors import AnabranchError
from anabranch.tables.core.names import NoTable, table_url
from anabranch.tables.core.place import parse_place

PATH = "/admin/v2/anabranch/tables"
NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class FoundTable:
    url: str
    storage_options: Mapping[str, str]
    is_kept: bool  # Whether the topic is to have a table, whether or not there is one yet.


async def table_of(
    connections: Connections, watch: LayoutWatch, admin_url: str | None = None, timeout_s: float = 30.0
) -> FoundTable:
    """Raises NoTable if the brokers write no tables."""
    if admin_url is None:
        admin_url = (await connections.service()).http_url
    topic = watch.shown_topic
    if not admin_url:
        raise NoTable(
            f"{topic}: no broker has announced where it answers admin requests, so none tells where the topic's table "
            "is: give its URL"
        )
    told = await asyncio.to_thread(_told, admin_url, topic, connections.security, timeout_s)
    if not told.get("tablesUrl"):
        raise NoTable(
            f"{topic} has no table: its brokers have no place for tables (tablesUrl). If there is a table, give its URL"
        )
    place = parse_place(told["tablesUrl"])
    url = table_url(place.base, topic, watch.layout.topic_id)
    return FoundTable(url, place.options, told["mode"] != "off")


def _told(admin_url: str, topic: str, security: Security, timeout_s: float) -> dict[str, str]:
    url = f"{admin_url.rstrip('/')}{PATH}/{rest.topic_path(topic)}"
    try:
        answer = rest.call("GET", url, security=security, timeout_s=timeout_s)
    except rest.NotAnswered as error:
        raise ConnectionLost(f"{topic}: no broker told where its table is: {error}") from None
    if answer.status == NOT_FOUND:
        raise NoTable(
            f"{topic}: its brokers are of a release without tables. If there is a table, give its URL"
        )
    if answer.status >= 300:
        raise AnabranchError(f"{topic}: its broker did not tell where its table is: {answer.reason}")
    found: dict[str, str] = json.loads(answer.body)
    return found
