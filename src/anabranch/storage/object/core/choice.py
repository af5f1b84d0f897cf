"""Which objects of a log are worth rewriting. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest

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


class RewriteCandidates:
    """The objects among which a job is chosen, added one by one. Of very many, those with the lowest numbers are kept:
    the oldest."""

    def __init__(self, policy: RewritePolicy) -> None:
        self._policy = policy
        self._kept_max = max(policy.sources_max, _CROWD)
        self._dead: list[ObjectFacts] = []
        # What all of those waste, kept or not.
        self._waste = 0
        # Small rewritten objects, by namespace.
        self._small: dict[str, list[ObjectFacts]] = {}

    def add(self, one: ObjectFacts) -> None:
        if 2 * one.live < one.size and one.waste >= max(self._policy.object_waste_min, _FRAME_BYTES):
            self._waste += one.waste
            self._keep(self._dead, one)
        if one.namespace and one.size < self._policy.object_bytes // _CROWD:
            self._keep(self._small.setdefault(one.namespace, []), one)

    def _keep(self, some: list[ObjectFacts], one: ObjectFacts) -> None:
        some.append(one)
        if len(some) >= 2 * self._kept_max:
            some[:] = nsmallest(self._kept_max, some, key=_number)

    def job(self, *, is_thorough: bool = False) -> list[ObjectFacts]:
        """The objects of the next job; none if there is nothing worth one. Lowest numbers first."""
        if self._dead and (is_thorough or self._waste >= self._policy.waste_bytes):
            return self._fitting(self._dead)
        for _, crowd in sorted(self._small.items()):
            # A crowd by itself: part of one, among others, would become as many small objects as it was.
            if len(crowd) >= _CROWD and len(job := self._fitting(crowd)) > 1:
                return job
        return []

    def _fitting(self, objects: Sequence[ObjectFacts]) -> list[ObjectFacts]:
        """As many of the first as one job may have."""
        policy = self._policy
        job: list[ObjectFacts] = []
        live = 0
        for one in sorted(objects, key=_number):
            if job and (live + one.live > policy.live_bytes_max or len(job) >= policy.sources_max):
                break
            job.append(one)
            live += one.live
        return job


def _number(one: ObjectFacts) -> int:
    return one.number
