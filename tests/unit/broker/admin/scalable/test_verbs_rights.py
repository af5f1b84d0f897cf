"""Who may do to a scalable topic what classic topics have long had: a broker that requires tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from harness.guarded import Guarded, guarded

NS = "/admin/v2/namespaces/acme/news/permissions"
SUB = "/subscription/s"

CONSUMERS = (
    ("GET", "/lastMessageId"),
    ("GET", "/messageid/0"),
    ("GET", "/examinemessage"),
    ("GET", "/ledger/0/entry/0"),
    ("GET", "/subscriptions"),
    ("GET", f"{SUB}/position/1"),
    ("POST", f"{SUB}/skip/1"),
    ("POST", f"{SUB}/skip_all"),
    ("POST", f"{SUB}/expireMessages/1"),
    ("POST", f"{SUB}/resetcursor/0"),
    ("POST", f"{SUB}/analyzeBacklog"),
    ("POST", "/all_subscription/expireMessages/1"),
)
ADMINS = (
    ("GET", "/retention"),
    ("POST", "/retention"),
    ("DELETE", "/retention"),
    ("GET", "/backlogQuotaMap"),
    ("POST", "/backlogQuota"),
    ("DELETE", "/backlogQuota"),
    ("DELETE", "/policies"),
    ("GET", "/s/dispatchRate"),
    ("DELETE", "/truncate"),
    ("POST", "/terminate"),
)


@pytest.fixture
async def news() -> AsyncIterator[Guarded]:
    async with guarded() as made:
        await made.rest("boss", "PUT", "/admin/v2/scalable/acme/news/t", 204)
        await made.rest("boss", "PUT", "/admin/v2/scalable/acme/news/t/subscriptions/s", 204)
        for role, right in (("reader", "consume"), ("writer", "produce")):
            await made.rest("boss", "POST", f"{NS}/{role}", 204, json=[right])
        yield made


@pytest.mark.parametrize("prefix", ["/admin/v2/scalable/acme/news/t", "/admin/v2/topic/acme/news/t"])
async def test_every_verb_asks_for_its_right(news: Guarded, prefix: str) -> None:
    for method, path in (*CONSUMERS, *ADMINS):
        assert (await news.rest(None, method, prefix + path)).status_code == 401, path
        for role in ("writer", "stranger"):
            answer = await news.rest(role, method, prefix + path)
            assert answer.status_code in (401, 403), f"{role} {method} {path}: {answer.status_code}"
    for method, path in ADMINS:
        answer = await news.rest("reader", method, prefix + path)
        assert answer.status_code in (401, 403), f"reader {method} {path}: {answer.status_code}"
    for method, path in (*CONSUMERS, *ADMINS):
        role = "reader" if (method, path) in CONSUMERS else "boss"
        answer = await news.rest(role, method, prefix + path)
        assert answer.status_code not in (401, 403, 405, 500), f"{role} {method} {path}: {answer.text}"
