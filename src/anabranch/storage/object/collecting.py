"""Deletes what is proved to be garbage in the logs of an object store, for who looks after a store by hand.

Brokers delete what they know to be unneeded. What is left when they are killed at the wrong moment, or when a writer
comes too late, is collected here, and nothing else:

* of a log that is gone, everything but the mark that says so and its fences;
* of any other log, rewritten objects for a map that was made without them: they can never be named any more.

A fence is never deleted, and nor is an object of the log that cannot be told from one. What a survey calls garbage is
deleted only if a second survey, after a delay, says the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.model.position import Incarnation
from anabranch.storage.object.checking import LogSurvey
from anabranch.storage.object.core.maps import is_proved_garbage
from anabranch.storage.object.core.objects import LogKeys, decode_table, number_of, rewritten_of, table_bytes
from anabranch.storage.object.medium import MediumMissingError, ObjectMedium
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.object.requests import asked


@dataclass(slots=True)
class Collected:
    deleted: list[tuple[str, int]] = field(default_factory=list)
    # Garbage by a look at it, which is not proved, or which another look did not confirm.
    kept: list[tuple[str, int]] = field(default_factory=list)


class LogCollector:
    def __init__(self, medium: ObjectMedium, policy: ObjectLogPolicy | None = None) -> None:
        self._medium = medium
        self._policy = policy or ObjectLogPolicy()

    async def collect(self, before: Sequence[LogSurvey], after: Sequence[LogSurvey]) -> Collected:
        """Deletes what both surveys prove; the second began after the delay."""
        found = Collected()
        earlier: Mapping[Incarnation, LogSurvey] = {one.incarnation: one for one in before}
        for survey in after:
            was = earlier.get(survey.incarnation)
            proved: list[tuple[str, int]] = []
            for one in survey.garbage:
                is_confirmed = was is not None and one in was.garbage and await self._is_proved(one[0], was)
                (proved if is_confirmed and await self._is_proved(one[0], survey) else found.kept).append(one)
            # Of the answers the first one last: as long as it is there, who looks finds that there are answers.
            for key, size in sorted(proved, reverse=True):
                await self._medium.delete([key])
                found.deleted.append((key, size))
        return found

    async def _is_proved(self, key: str, survey: LogSurvey) -> bool:
        keys = LogKeys(survey.incarnation)
        if survey.errors or key == keys.gone:
            return False
        folder = key.removeprefix(f"{keys.folder}/").partition("/")[0]
        if survey.state == "gone":
            return folder in ("state", "map", "taken", "rewritten") or (
                folder == "log" and await self._is_commit(key)
            )
        return folder == "rewritten" and is_proved_garbage(rewritten_of(key), survey.map_number)

    async def _is_commit(self, key: str) -> bool:
        """Whether it is a commit for certain. A damaged fence is not."""
        try:
            data = memoryview(await asked(lambda: self._medium.get(key), self._policy))
        except MediumMissingError:
            return False
        return decode_table(data[: table_bytes(data)], number_of(key)) is not None
