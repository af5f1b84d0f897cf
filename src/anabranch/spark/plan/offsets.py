"""Offsets of a streaming query: the text that Spark stores. Pure.

Spark compares offsets as text, so equal offsets must have equal text: keys sorted, cuts in their normal form. Until a
start at the latest messages, or at a time, is resolved, the offset is that wish itself: Spark asks for the initial
offset several times, and again after a crash in the first batch, and each answer must be the same. A wish is for all
existing topics, or for single ones. Topics that an offset does not name are read from their beginning.

    {"start": "latest", "version": 1}
    {"start": 1777000000000, "version": 1}
    {"start": {"topic://public/default/orders": "latest"}, "topics": {"topic://public/default/sales": …}, "version": 1}
    {"topics": {"topic://public/default/orders": {"places": […], "version": 1}}, "version": 1}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from anabranch.client.consuming.core.checkpoint import Begin
from anabranch.model.cut import BadCheckpoint, Cut
from anabranch.spark.plan.selection import Choice

VERSION: Final = 1

Json = dict[str, Any]
Wish = Literal["latest"] | int


@dataclass(frozen=True, slots=True)
class Offset:
    cuts: Mapping[str, Cut] = field(default_factory=dict)
    wishes: Mapping[str, Wish] = field(default_factory=dict)
    wish: Wish | None = None  # For all existing topics; excludes the other fields.

    @property
    def is_resolved(self) -> bool:
        return self.wish is None and not self.wishes

    def begin_of(self, topic: str) -> Begin:
        """Where to read that topic from, if it exists when the offset is resolved."""
        if topic in self.cuts:
            return self.cuts[topic]
        return self.wishes.get(topic, Cut() if self.wish is None else self.wish)

    # -- text

    def encode(self) -> Json:
        value: Json = {}
        if not self.is_resolved:
            value["start"] = dict(sorted(self.wishes.items())) if self.wish is None else self.wish
        if self.wish is None and (self.cuts or not self.wishes):
            value["topics"] = {name: json.loads(cut.encode()) for name, cut in sorted(self.cuts.items())}
        return {**value, "version": VERSION}

    @staticmethod
    def decode(offset: Mapping[str, Any]) -> Offset:
        """Parses an offset. Raises BadCheckpoint for anything that `encode` could not have written."""
        version = offset.get("version")
        if version != VERSION:
            raise BadCheckpoint(
                f"an offset of version {version!r}, and this release reads {VERSION}: the query's checkpoint was made "
                "by another release, or by another source"
            )
        start, topics = offset.get("start"), offset.get("topics", {})
        wishes = start if isinstance(start, dict) else {}
        is_good = isinstance(topics, dict) and all(map(_is_wish, wishes.values()))
        if not is_good or not (wishes or _is_wish(start) or (start is None and "topics" in offset)):
            raise BadCheckpoint(
                "not an offset of this source: it has neither a start nor topics. Give the query another "
                "checkpointLocation"
            )
        if _is_wish(start):
            return Offset(wish=start)
        return Offset({name: Cut.decode(json.dumps(cut)) for name, cut in topics.items()}, wishes)


def _is_wish(start: object) -> bool:
    return start == "latest" or (isinstance(start, int) and not isinstance(start, bool) and start >= 0)


def initial(choice: Choice, start: Begin | Mapping[str, Begin]) -> Offset:
    """The first offset of a new query."""
    if not isinstance(start, Mapping | Cut):
        return Offset(wish=start)
    by_topic = start if isinstance(start, Mapping) else dict.fromkeys(choice.names, start)
    cuts = {name: begin for name, begin in by_topic.items() if isinstance(begin, Cut)}
    wishes = {name: begin for name, begin in by_topic.items() if not isinstance(begin, Cut)}
    return Offset({name: Cut() for name in choice.names if name not in wishes} | cuts, wishes)


def check_is_of(choice: Choice, offset: Offset) -> None:
    """Raises BadCheckpoint for the offset of another query. Some of its topics may be new to it, or gone, but not
    all."""
    known = {*offset.cuts, *offset.wishes}
    if choice.is_named and known and known.isdisjoint(choice.names):
        raise BadCheckpoint(
            f"the query's checkpoint is of {', '.join(sorted(known))}, and the query reads {choice}: give it another "
            "checkpointLocation"
        )
