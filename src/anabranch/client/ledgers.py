"""Asks a topic's owner how many entries each of its ledgers has, over its admin REST. Blocking."""

from __future__ import annotations

import http.client
import json
import urllib.request
from typing import Final
from urllib.parse import quote

from anabranch.client.errors import ConnectionLost
from anabranch.client.security import NOBODY, Security
from anabranch.model.names import TopicName

PATH: Final = "/admin/v2/anabranch/ledgers"


def ledgers_of(
    admin_url: str, topic: str, security: Security = NOBODY, timeout_s: float = 30.0
) -> list[tuple[int, int]]:
    """Each with one past its last entry. Of a persistent topic, a partition, or a segment.

    ConnectionLost if nobody tells: brokers that are not ours do not.
    """
    name = TopicName.parse(topic)
    # Behind the namespace all is one name to the broker, slashes included.
    local = str(name).partition(f"{name.namespace}/")[2]
    url = f"{admin_url.rstrip('/')}{PATH}/{name.domain.value}/{name.namespace}/{quote(local, safe='')}"
    request = urllib.request.Request(url, headers=security.headers())
    context = security.tls() if url.startswith("https:") else None
    try:
        with urllib.request.urlopen(request, timeout=timeout_s, context=context) as answer:
            return [(int(ledger), int(end)) for ledger, end in json.loads(answer.read())]
    except (OSError, http.client.HTTPException, ValueError, TypeError) as error:
        raise ConnectionLost(f"the ledgers of {topic} were not told at {admin_url}: {error}") from None
