"""Reads scalable topics over REST: whether one exists, their names, and their figures."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from anabranch.cli.admin.rest import RestRefused, call
from anabranch.model.names import NamespaceName, TopicName

# Scalable topics are off, or the broker does not know them.
ABSENT = frozenset({404, 405})


def rest_path(topic: TopicName) -> str:
    return f"/admin/v2/scalable/{topic.namespace}/{quote(topic.local, safe='')}"


def stats(url: str, topic: TopicName, *, timeout: float = 60.0) -> dict[str, Any]:
    found: dict[str, Any] = call(url, "GET", f"{rest_path(topic)}/stats", timeout=timeout)
    return found


def exists(url: str, topic: TopicName) -> bool:
    try:
        call(url, "GET", rest_path(topic))
    except RestRefused as refused:
        if refused.status in ABSENT:
            return False
        raise
    return True


def listed(url: str, namespace: NamespaceName, properties: dict[str, str]) -> list[str]:
    query = urlencode([("property", f"{name}={value}") for name, value in properties.items()])
    try:
        found: list[str] = call(url, "GET", f"/admin/v2/scalable/{namespace}{'?' if query else ''}{query}")
    except RestRefused as refused:
        # Without a filter the list of classic topics has reported a missing namespace already.
        if refused.status in ABSENT and not properties:
            return []
        raise
    return found
