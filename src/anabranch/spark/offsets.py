"""Offsets of a streaming query: the text that Spark keeps. Pure.

Spark compares offsets as text, so equal ones must have equal text: keys sorted, cuts in their normal form. Until a
start at the latest messages, or at a time, is resolved, the offset is that wish itself: Spark asks for the initial
offset several times, and again after a crash in the first batch, and each answer must be the same.

    {"start": "latest", "version": 1}
    {"start": 1777000000000, "version": 1}
    {"topics": {"topic://public/default/orders": {"places": […], "version": 1}}, "version": 1}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from anabranch.client.checkpoint import Begin
from anabranch.model.cut import BadCheckpoint, Cut

VERSION: Final = 1

Json = dict[str, Any]


def encode(begin: Begin, topic: str) -> Json:
    if isinstance(begin, Cut):
        return {"topics": {topic: json.loads(begin.encode())}, "version": VERSION}
    return {"start": begin, "version": VERSION}


def decode(offset: Mapping[str, Any], topic: str) -> Begin:
    """BadCheckpoint for anything that `encode` could not have written for this topic."""
    version = offset.get("version")
    if version != VERSION:
        raise BadCheckpoint(
            f"an offset of version {version!r}, and this release reads {VERSION}: the query's checkpoint was made by "
            "another release, or by another source"
        )
    start = offset.get("start")
    if start == "latest" or (isinstance(start, int) and not isinstance(start, bool) and start >= 0):
        return start
    topics = offset.get("topics")
    if not isinstance(topics, dict) or set(topics) != {topic}:
        known = sorted(topics) if isinstance(topics, dict) else topics
        raise BadCheckpoint(
            f"the query's checkpoint is of {known}, and the query reads {topic}: give it another checkpointLocation"
        )
    return Cut.decode(json.dumps(topics[topic]))
