"""Which objects of a log are worth rewriting. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# So many small rewritten objects of a namespace are made one.
_CROWD = 8
# The header and the table of an object that holds little: rewriting would not change that.
_FRAME_BYTES = 256


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    number: int
    size: int
    # Bytes of it that are wanted: more than none.
    live: int
    # The namespace of a rewritten object; "" for a commit.
    namespace: str = ""

    @property
    def waste(self) -> int:
        return self.size - self.live


@dataclass(frozen=True, slots=True)
class RewritePolicy:
    # Objects that waste less stay as they are: reading one costs more than keeping it for a year.
    object_waste_min: int = 16 << 10
    # What mostly dead objects must waste together before they are rewritten, unless asked to be thorough.
    waste_bytes: int = 64 << 20
    # The most of one job: wanted bytes, which are kept in memory, and objects that are read.
    live_bytes_max: int = 32 << 20
    sources_max: int = 1024
    # A rewritten object has so many bytes at most, but for a run that is longer.
    object_bytes: int = 16 << 20


def choose(
    objects: Sequence[ObjectFacts], policy: RewritePolicy, *, is_thorough: bool = False
) -> list[ObjectFacts]:
    """The objects of the next job; none if there is nothing worth one. Lowest numbers first: the oldest."""
    dead = [
        one
        for one in objects
        if 2 * one.live < one.size and one.waste >= max(policy.object_waste_min, _FRAME_BYTES)
    ]
    if not is_thorough and sum(one.waste for one in dead) < policy.waste_bytes:
        dead = []
    if dead:
        return _fitting(dead, policy)
    small: dict[str, list[ObjectFacts]] = {}
    for one in objects:
        if one.namespace and one.size < policy.object_bytes // _CROWD:
            small.setdefault(one.namespace, []).append(one)
    for _, crowd in sorted(small.items()):
        # A crowd by itself: part of one, among others, would become as many small objects as it was.
        if len(crowd) >= _CROWD and len(job := _fitting(crowd, policy)) > 1:
            return job
    return []


def _fitting(objects: Sequence[ObjectFacts], policy: RewritePolicy) -> list[ObjectFacts]:
    """As many of the first as one job may have."""
    job: list[ObjectFacts] = []
    live = 0
    for one in sorted(objects, key=lambda one: one.number):
        if job and (live + one.live > policy.live_bytes_max or len(job) >= policy.sources_max):
            break
        job.append(one)
        live += one.live
    return job
