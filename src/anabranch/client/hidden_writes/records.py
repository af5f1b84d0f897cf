"""Decides hidden writes, over the brokers' admin REST. The calls block: a deciding program has nothing else to do.

    records = WriteRecordsClient(lambda: "http://localhost:8080")
    record = records.decide("nightly-report", 0, winners, topics)      # Takes effect once, however often it is called.
    records.reveal("nightly-report", 0, record.topics)

A write has one record in the brokers' store, and it is decided once. After that, any client may reveal the write any
number of times, and it has to be revealed on every topic with entries of the write. All calls wait for brokers that
restart, and for topics that move.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import quote, urlencode
from uuid import UUID

from anabranch.client.errors import ConnectionLost, TimedOut
from anabranch.client.hidden_writes.write import check_write
from anabranch.client.security import NOBODY, Security
from anabranch.client.transport.rest import NotAnswered, call, topic_path
from anabranch.errors import AnabranchError
from anabranch.model.hidden_writes import Claim

PATH: Final = "/admin/v2/anabranch"
PAUSE_MIN_S, PAUSE_MAX_S = 0.05, 1.0
_NO_IDS: Final[Mapping[str, str]] = {}
# How many topics are revealed at once.
REVEALS_MAX: Final = 8


class WriteRefused(AnabranchError):
    """The broker refuses that for this write; asking again changes nothing."""


class WinnersGone(WriteRefused):
    """The topic that winners wrote to does not exist any more, and their data is gone with it."""


class WinnerDropped(WriteRefused):
    """One of the attempts that were to win was given up before: run the whole write again."""


class Contents(NamedTuple):
    """The contents of a write: the number of rows, and a text that is the same for the same rows in any order."""

    rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class KnownWrite:
    """What is known of a write. `winners` is None until the write is decided; `topics` are those that may have entries.

    `contents` is None if the deciding client did not give it."""

    winners: frozenset[UUID] | None
    topics: tuple[str, ...]
    dropped: frozenset[UUID]
    contents: Contents | None = None
    claim: Claim | None = None

    @classmethod
    def of(cls, body: bytes) -> KnownWrite:
        found = json.loads(body)
        winners, rows, claim = found.get("winners"), found.get("rows"), found.get("claim")
        return cls(
            None if winners is None else frozenset(map(UUID, winners)),
            tuple(found.get("topics") or ()),
            frozenset(map(UUID, found.get("dropped") or ())),
            None if rows is None else Contents(rows, found.get("digest", "")),
            None if claim is None else Claim(claim["run"], claim["by"]),
        )


class _NotNow(Exception):
    """The request failed for the moment; asking again may help."""


class _Answered(Exception):
    """The broker's answer is an error."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status


@dataclass(frozen=True, slots=True)
class WriteRecordsClient:
    # Returns the address of a broker that is up; called for every attempt. Raises ConnectionLost if there is none now.
    admin_url: Callable[[], str]
    security: Security = NOBODY
    # The topic that is written to: a role that may produce there may decide a write that has written nothing.
    target: str = ""
    timeout_s: float = 30.0
    # How long one call keeps asking while no answer comes.
    retry_s: float = 60.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def get(self, write: str, batch: int) -> KnownWrite | None:
        """The write's record; None if the write is unknown."""
        try:
            return KnownWrite.of(self._ask("GET", _path(write, batch)))
        except _Answered as answer:
            if answer.status == 404:
                return None
            raise WriteRefused(f"write {write}/{batch}: {answer}") from None

    def decide(
        self,
        write: str,
        batch: int,
        winners: Collection[UUID],
        topics: Collection[str],
        *,
        contents: Contents | None = None,
        claim: Claim | None = None,
    ) -> KnownWrite:
        """Returns the record as it is from now on: with these winners, or with those of an earlier decision.

        `contents` describes what the winners have written; it is stored with them."""
        body: dict[str, object] = {
            "winners": sorted(one.hex for one in winners),
            "topics": sorted(topics),
            **self._target(),
            **({} if contents is None else contents._asdict()),
            **_claimed(claim),
        }
        try:
            return KnownWrite.of(self._ask("PUT", _path(write, batch), body))
        except _Answered as answer:
            if answer.status == 409:
                raise WinnerDropped(
                    f"write {write}/{batch} cannot be decided ({answer}): run it again"
                ) from None
            if answer.status == 404:
                raise WriteRefused("the broker does not know hidden writes: it is too old") from None
            raise WriteRefused(f"write {write}/{batch}: {answer}") from None

    def claim(self, write: str, batch: int, claim: Claim) -> KnownWrite | None:
        """Claims a decided write and returns its record. None if the write is unknown."""
        try:
            body = {"winners": None, "topics": [], **_claimed(claim)}
            return KnownWrite.of(self._ask("PUT", _path(write, batch), body))
        except _Answered as answer:
            if answer.status == 404:
                return None
            raise WriteRefused(f"write {write}/{batch}: {answer}") from None

    def drop(self, write: str, batch: int, attempts: Iterable[UUID]) -> KnownWrite:
        """Gives up attempts. Winners of a decided write stay winners."""
        body = {"attempts": sorted(one.hex for one in attempts), **self._target()}
        try:
            return KnownWrite.of(self._ask("POST", f"{_path(write, batch)}/drop", body))
        except _Answered as answer:
            raise WriteRefused(f"write {write}/{batch}: {answer}") from None

    def reveal(
        self,
        write: str,
        batch: int,
        topics: Collection[str],
        *,
        have_winners: bool = True,
        topic_ids: Mapping[str, str] = _NO_IDS,
    ) -> None:
        """Makes the owners of these topics show the winners' entries and drop the others. The write must be decided.

        Raises WinnersGone if one of the topics does not exist any more, or is not the topic that was written to,
        according to `topic_ids` (`Producer.topic_id`). With `have_winners` false, topics may be gone; a segment of an
        existing topic may be gone in any case, since it is kept until it has shown the winners."""

        def one(topic: str) -> None:
            known = {"topicId": topic_ids[topic]} if topic_ids.get(topic) else {}
            query = urlencode({"write": write, "batch": batch, **known})
            try:
                self._ask("POST", f"{PATH}/reveal/{topic_path(topic)}?{query}")
            except _Answered as answer:
                is_gone = answer.status in (404, 410)
                if not is_gone:
                    raise WriteRefused(f"write {write}/{batch} on {topic}: {answer}") from None
                is_collected = answer.status == 404 and topic.startswith("segment://")
                if have_winners and not is_collected:
                    raise WinnersGone(
                        f"write {write}/{batch} was decided, but {topic} was deleted before it revealed the winners. "
                        f"Write the rows again under another name; or, if you do not miss them, create {topic} and "
                        "run this again"
                    ) from None

        if len(topics) == 1:
            one(next(iter(topics)))
            return
        with ThreadPoolExecutor(REVEALS_MAX) as pool:
            for _ in pool.map(one, sorted(topics)):
                pass

    # -- asking

    def _target(self) -> dict[str, str]:
        return {"target": self.target} if self.target else {}

    def _ask(self, method: str, path: str, body: object = None) -> bytes:
        deadline, pause = self.clock() + self.retry_s, PAUSE_MIN_S
        while True:
            try:
                return self._answer(method, self.admin_url().rstrip("/") + path, body)
            except (_NotNow, ConnectionLost) as error:
                if self.clock() + pause > deadline:
                    raise TimedOut(
                        f"{method} {path} was not answered within {self.retry_s:g} s ({error}); are the brokers up?"
                    ) from None
            self.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_S)

    def _answer(self, method: str, url: str, body: object) -> bytes:
        try:
            answer = call(method, url, body, security=self.security, timeout_s=self.timeout_s)
        except NotAnswered as error:
            raise _NotNow(str(error)) from None
        if answer.status < 300:
            return answer.body
        if answer.status >= 500 or answer.status in (408, 429):
            raise _NotNow(f"{answer.status}: {answer.reason}")
        raise _Answered(answer.status, answer.reason)


def _claimed(claim: Claim | None) -> dict[str, object]:
    return {} if claim is None else {"claim": claim._asdict()}


def _path(write: str, batch: int) -> str:
    check_write(write, batch)
    return f"{PATH}/writes/{quote(write, safe='')}/{batch}"
