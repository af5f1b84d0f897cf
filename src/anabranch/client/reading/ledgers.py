"""Asks a topic's owner for its ledgers, over its admin REST. Blocking, for code that waits anyway."""

from __future__ import annotations

import json

from anabranch.client.errors import ConnectionLost
from anabranch.client.security import NOBODY, Security
from anabranch.client.transport.rest import NotAnswered, call, topic_path

PATH = "/admin/v2/anabranch/ledgers"


def ledgers_of(
    admin_url: str, topic: str, security: Security = NOBODY, timeout_s: float = 30.0
) -> list[tuple[int, int]]:
    """The ledgers of a persistent topic, a partition, or a segment, each with one past its last entry.

    Raises ConnectionLost if no broker answers: brokers that are not ours do not.
    """
    url = f"{admin_url.rstrip('/')}{PATH}/{topic_path(topic)}"
    try:
        answer = call("GET", url, security=security, timeout_s=timeout_s)
        if answer.status >= 300:
            raise NotAnswered(answer.reason or str(answer.status))
        return [(int(ledger), int(end)) for ledger, end in json.loads(answer.body)]
    except (NotAnswered, ValueError, TypeError) as error:
        raise ConnectionLost(f"asking for the ledgers of {topic} at {admin_url} failed: {error}") from None
