"""Adds to a 404 answer the missing name and the existing names that are similar.

Only names that the caller may list are suggested. If the list cannot be read, the answer stays as it is.
"""

from __future__ import annotations

import argparse
import difflib
from typing import Any, Final

from anabranch.cli.admin.rest import RestRefused, call
from anabranch.cli.admin.topic_names import names_in
from anabranch.errors import AnabranchError
from anabranch.model.names import NamespaceName, TopicName

# Brokers say it in Pulsar's words, which its admin clients compare.
NO_NAMESPACE: Final = "Namespace does not exist"
LIKE: Final = 0.75
NEAR_MAX: Final = 2


def with_near_names(error: Exception, arguments: argparse.Namespace) -> Exception:
    """The error for a user whose command was answered that something does not exist."""
    try:
        told = _told(str(error), arguments)
    except AnabranchError:
        told = None
    return error if told is None else RestRefused(404, told)


def _told(text: str, arguments: argparse.Namespace) -> str | None:
    url, given = arguments.admin_url, str(getattr(arguments, "topic", None) or "")
    topic = TopicName.parse(given) if given else None
    if text == NO_NAMESPACE:
        found = topic.namespace if topic is not None else getattr(arguments, "namespace", None)
        if found is None:
            return None
        namespace = found if isinstance(found, NamespaceName) else NamespaceName.parse(found)
        # Compared without the tenant, which all have in common.
        near = _near(namespace.namespace, _namespaces(url, namespace.tenant), f"{namespace.tenant}/")
        return f"there is no namespace {namespace}{near}"
    if topic is None:
        return None
    here = names_in(url, topic.namespace)
    # Something else is missing where the topic is there.
    if topic.local in here or topic.base.local in here:
        return None
    # As the user writes names: short ones in public/default, full ones elsewhere.
    before = "" if "/" not in given or "://" in given else f"{topic.namespace}/"
    near = _near(topic.local, here, before)
    return f"{text}{near}" if near else None


def _namespaces(url: str, tenant: str) -> list[str]:
    """Without their tenant."""
    found: Any = call(url, "GET", f"/admin/v2/namespaces/{tenant}")
    return [one.partition("/")[2] for one in found if isinstance(one, str)] if isinstance(found, list) else []


def _near(word: str, known: list[str], before: str = "") -> str:
    near = difflib.get_close_matches(word, known, n=NEAR_MAX, cutoff=LIKE)
    return f"; did you mean {' or '.join(before + one for one in near)}?" if near else ""
