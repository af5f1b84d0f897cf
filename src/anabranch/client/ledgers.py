"""Asks a topic's owner which ledgers it has, over its admin REST. Blocking, for code that waits anyway."""

from __future__ import annotations

import json

from anabranch.client.errors import ConnectionLost
from anabranch.client.rest import NotAnswered, call, topic_path
from anabranch.client.security import NOBODY, Security

PATH = "/admin/v2/anabranch/ledgers"


def ledgers_of(
    admin_url: str, topic: str, security: Security = NOBODY, timeout_s: float = 30.0
) -> list[tuple[int, int]]:
    """Each with one past its last entry. Of a persistent topic, a partition, or a segment.

    ConnectionLost if nobody tells: brokers that are not ours do not.
    """
    url = f"{admin_url.rstrip('/')}{PATH}/{topic_path(topic)}"
    try:
        answer = call("GET", url, security=security, timeout_s=timeout_s)
        if answer.status >= 300:
            raise NotAnswered(answer.reason or str(answer.status))
        return [(int(ledger), int(end)) for ledger, end in json.loads(answer.body)]
    except (NotAnswered, ValueError, TypeError) as error:
        raise ConnectionLost(f"the ledgers of {topic} were not told at {admin_url}: {error}") from None
