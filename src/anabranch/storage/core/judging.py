"""Which ledgers of a shared log are dead, as the topics' records say. Pure: the time and the answers are given.

A ledger is in its record before anything is written to it, and never comes back to a record that has dropped it. So a
ledger that its writer has closed, and that its record does not name, is dead. One read is not enough: a change of the
record may be on its way that a process sent before it was killed, and which names the ledger (what compaction wrote).
So a ledger is dead if two reads, a grace period apart, both leave it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anabranch.storage.port import LiveLedger


@dataclass(frozen=True, slots=True)
class Verdict:
    dead: tuple[int, ...]
    live: tuple[LiveLedger, ...]


class Judge:
    def __init__(self, *, ask_ms: int, grace_ms: int) -> None:
        # How often a record is read again, and how long a ledger must be out of its record.
        self._ask_ms = ask_ms
        self._grace_ms = grace_ms
        self._asked: dict[str, int] = {}
        # Since when each ledger is known to be out of its record.
        self._unnamed: dict[int, int] = {}

    @property
    def has_doubts(self) -> bool:
        """Some ledgers were out of their records at the last read, and wait for the second one."""
        return bool(self._unnamed)

    def due(self, questions: Mapping[int, str], now_ms: int, *, is_thorough: bool) -> list[str]:
        """Which records to read now. `questions` has the record's path of each ledger that its writer has closed."""
        self._unnamed = {one: since for one, since in self._unnamed.items() if one in questions}
        paths = dict.fromkeys(questions.values())
        self._asked = {path: at for path, at in self._asked.items() if path in paths}
        if is_thorough:
            return list(paths)
        doubtful = {
            questions[one] for one, since in self._unnamed.items() if now_ms - since >= self._grace_ms
        }
        return [
            path
            for path in paths
            if path in doubtful or path not in self._asked or now_ms - self._asked[path] >= self._ask_ms
        ]

    def judge(
        self, questions: Mapping[int, str], answers: Mapping[str, Sequence[LiveLedger]], now_ms: int
    ) -> Verdict:
        """`now_ms` is when the records began to be read; records without an answer leave their ledgers as they are."""
        for path in answers:
            self._asked[path] = now_ms
        named = {(path, int(one.ledger)): one for path, found in answers.items() for one in found}
        dead, live = [], []
        for ledger, path in questions.items():
            if path not in answers:
                continue
            if (found := named.get((path, ledger))) is not None:
                live.append(found)
                self._unnamed.pop(ledger, None)
            elif now_ms - self._unnamed.setdefault(ledger, now_ms) >= self._grace_ms:
                dead.append(ledger)
                del self._unnamed[ledger]
        return Verdict(tuple(dead), tuple(live))
