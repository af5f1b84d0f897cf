"""Bodies of requests: what is read of them, and that a large one delays nobody."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import MutableMapping
from typing import Any, cast

import pytest

from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.request import HttpRequest, body, body_of
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.admin.topics.schemas import Posted
from anabranch.broker.admin.topics.writes import ATTEMPTS_BYTES_MAX, DecideRequest, Dropped
from anabranch.broker.policy.namespace import Retention
from unit.broker.admin.conftest import Rest

# Of the processor: most of these took seconds.
SOON_S = 0.25


def sent(data: bytes) -> HttpRequest:
    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": data}

    scope = {"method": "PUT", "path": "/", "query_string": b"", "headers": []}
    return HttpRequest(scope, receive, cast(AdminServices, None))


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (DecideRequest, b"{" + b",".join(b'"%d":{}' % n for n in range(700_000)) + b"}"),
        (DecideRequest, b"[" + b"[]," * 2_700_000 + b"[]]"),
        (DecideRequest, b'{"topics":[' + b'"a",' * 2_000_000 + b'"a"]}'),
        (Dropped, b'{"attempts":[' + b"[]," * 2_700_000 + b"[]]}"),
        (Dropped, b'{"target":null,"attempts":[' + b"[]," * 2_700_000 + b"[]]}"),
    ],
    ids=["unknown fields", "no object", "short names", "lists", "nulls and lists"],
)
async def test_a_body_of_very_many_values_is_refused_at_once(kind: type, data: bytes) -> None:
    request = sent(data[:ATTEMPTS_BYTES_MAX])
    began = time.process_time()
    with pytest.raises(RestError) as refused:
        await body_of(request, kind, bytes_max=ATTEMPTS_BYTES_MAX)
    assert refused.value.status == 400
    assert time.process_time() - began < SOON_S


async def test_as_many_attempts_as_a_body_holds_are_read() -> None:
    attempts = [f"{n:032x}" for n in range(200_000)]
    assert (
        await body(sent(json.dumps({"attempts": attempts}).encode()), Dropped, bytes_max=ATTEMPTS_BYTES_MAX)
    ).attempts == attempts


async def test_what_is_not_set_may_be_sent_as_null() -> None:
    retention = await body(
        sent(b'{"retentionTimeInMinutes": null, "retentionSizeInMB": "5", "other": null}'), Retention
    )
    assert (retention.minutes, retention.megabytes) == (0, 5)
    assert await body(sent(b'{"a": "b", "c": null}'), dict[str, str]) == {"a": "b"}
    large = json.dumps({"type": "JSON", "schema": "x" * 200_000, "properties": None}).encode()
    assert (await body(sent(large), Posted)).properties is None


async def test_a_decision_that_names_very_many_topics_lets_others_in_between(rest: Rest) -> None:
    topics = [f"persistent://public/default/t{n % 1000}-partition-{n}" for n in range(5_000)]
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    answer = await rest.http.put("/admin/v2/anabranch/writes/w/0", json={"topics": topics, "winners": []})
    counting.cancel()
    assert answer.status_code == 200
    assert turns > 4
