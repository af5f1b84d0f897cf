"""Names of topics that begin with some text, for shells: short ones in public/default, full ones elsewhere.

Errors give no names: a shell that completes a word has no place for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote

from anabranch.cli.admin.rest import RestRefused, call
from anabranch.model.names import PUBLIC_DEFAULT, Domain, InvalidName, NamespaceName, TopicName

ANSWER_MAX_S: Final = 2.0
NAMES_MAX: Final = 1000


def beginning_with(text: str, url: str) -> list[str]:
    scheme, colon, rest = text.rpartition("://")
    parts = rest.split("/")
    if colon and len(parts) == 1:
        found: Iterable[str] = (f"{scheme}://{one}/" for one in _asked(url, "/admin/v2/tenants"))
    elif len(parts) == 2:
        tenant = quote(parts[0], safe="")
        namespaces = _asked(url, f"/admin/v2/namespaces/{tenant}")
        found = (f"{scheme}{colon}{one}/" for one in namespaces)
    else:
        found = _topics(url, scheme, parts)
    return sorted({name for name in found if name.startswith(text)})[:NAMES_MAX]


def names_in(url: str, namespace: NamespaceName) -> list[str]:
    """Local names of all topics of a namespace, of either kind."""
    found = _topics(url, "", [namespace.tenant, namespace.namespace, ""])
    return sorted({name.removeprefix(f"{namespace}/") for name in found})[:NAMES_MAX]


def _topics(url: str, scheme: str, parts: list[str]) -> Iterable[str]:
    try:
        namespace = NamespaceName(*parts[:2]) if len(parts) > 2 else PUBLIC_DEFAULT
    except InvalidName:
        return
    # Partitions are left out: what is usually meant is their topic.
    for kind, listing in (
        (Domain.TOPIC, f"/admin/v2/scalable/{namespace}"),
        (Domain.PERSISTENT, f"/admin/v2/persistent/{namespace}"),
        (Domain.PERSISTENT, f"/admin/v2/persistent/{namespace}/partitioned"),
    ):
        if scheme and scheme != kind.value:
            continue
        for one in _asked(url, listing):
            name = TopicName.parse(one)
            if name.domain is not kind or name.is_partition or name.is_system:
                continue
            if scheme:
                yield str(name)
            elif len(parts) > 2:
                yield f"{namespace}/{name.local}"
            else:
                yield name.local


def _asked(url: str, path: str) -> list[str]:
    try:
        found: Any = call(url, "GET", path, timeout=ANSWER_MAX_S)
    except RestRefused:
        return []
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
