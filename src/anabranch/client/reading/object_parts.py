"""Reads the parts of objects that a plan names, in their order, and those that come next meanwhile. Blocking.

Runs that lie close together in an object are one request; a long one is several. Some requests are under way at a time,
in threads, so that a store with slow answers is read at the speed of its network. What is read ahead is bounded, and
little of it at first: many readers want no more than the beginning.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from anabranch.client.reading.failures import DirectReadError, FilesUnreachableError, PlanOutdatedError
from anabranch.client.transport.rest import NotAnswered, fetched
from anabranch.storage.core.read_plan import PlannedRun, TopicPlan
from anabranch.storage.object.medium import MediumRefusedError
from anabranch.storage.object.obstore_medium import open_for_readers
from anabranch.storage.port import LogMissingError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# The most bytes of a request, and how much of others' records is read along rather than asked around.
PART_BYTES: Final = 4 << 20
GAP_BYTES: Final = 64 << 10
# How many requests are under way at most: with what is being decoded, 36 MB.
AHEAD_MAX: Final = 8
# How often a request is made that had no answer, or that the store was too busy for.
_TRIES: Final = 5
_PAUSE_S: Final = 0.1
_TIMEOUT_S: Final = 30.0
# The same until a store has answered for the first time: it may be out of reach from here, and brokers can be asked.
_FIRST_TRIES: Final = 2
_FIRST_TIMEOUT_S: Final = 10.0
# For how long a store that did not answer is taken to be out of reach by all readers of this process.
_SILENT_S: Final = 300.0


class ObjectPart(NamedTuple):
    """Bytes of an object that are asked for at once."""

    file: int
    start: int
    stop: int


def parts_of(
    runs: Iterable[PlannedRun], *, part_bytes: int = PART_BYTES, gap_bytes: int = GAP_BYTES
) -> list[ObjectPart]:
    """The parts in which the bytes of all runs are found, run by run from each one's beginning to its end."""
    found: list[ObjectPart] = []
    for run in runs:
        start, stop = run.offset, run.offset + run.length
        if found:
            last = found[-1]
            is_near = last.file == run.file and last.start <= start <= last.stop + gap_bytes
            if is_near and max(stop, last.stop) - last.start <= part_bytes:
                found[-1] = last._replace(stop=max(stop, last.stop))
                continue
        found += [
            ObjectPart(run.file, at, min(stop, at + part_bytes)) for at in range(start, stop, part_bytes)
        ]
    return found


def stretches_of(runs: Iterable[PlannedRun]) -> list[list[PlannedRun]]:
    """The runs, those together that are parts of the same bytes: only entries that are in no plan lie between them."""
    return [list(some) for _, some in groupby(runs, _place)]


def _place(run: PlannedRun) -> tuple[int, int, int, int]:
    return run.ledger, run.file, run.offset, run.length


class ObjectSource(Protocol):
    def read(self, part: ObjectPart) -> memoryview:
        """All bytes of the part; from any thread. PlanOutdatedError if there is no such object, FilesUnreachableError
        if it cannot be read from here, LogMissingError if it is shorter."""


class StoreSource:
    """Reads with the credentials of this process, or in a folder of this machine."""

    def __init__(self, plan: TopicPlan, url: str) -> None:
        import obstore
        from obstore.exceptions import BaseError

        self._get = obstore.get_range
        self._failed = (BaseError, OSError)
        self._plan = plan
        self._url = url
        try:
            self._store = _store(url, os.getpid())
        except MediumRefusedError as error:
            raise FilesUnreachableError(
                f"the objects of {plan.topic} cannot be read from here: {error}"
            ) from error

    def read(self, part: ObjectPart) -> memoryview:
        key = self._plan.files[part.file]
        try:
            data = memoryview(self._get(self._store, key, start=part.start, end=part.stop))
        except FileNotFoundError:
            raise PlanOutdatedError(_named(self._url, key)) from None
        except self._failed as error:
            why = str(error).partition("\n\n")[0].strip()
            raise FilesUnreachableError(f"cannot read {_named(self._url, key)}: {why}") from error
        return _whole(data, part, _named(self._url, key))


class SilentStores:
    """The stores that did not answer a moment ago, so that not every reader waits for each of them."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def add(self, host: str, now: float) -> None:
        self._until = {one: until for one, until in self._until.items() if until > now}
        self._until[host] = now + _SILENT_S

    def has(self, host: str, now: float) -> bool:
        return self._until.get(host, 0.0) > now


_SILENT: Final = SilentStores()


class SignedSource:
    """Reads by URLs that the broker has signed: no credentials are needed."""

    def __init__(
        self,
        plan: TopicPlan,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        silent: SilentStores = _SILENT,
    ) -> None:
        self._plan = plan
        self._silent = silent
        self._clock = clock
        self._sleep = sleep
        self._expires = clock() + plan.expires_in_ms / 1000
        self._has_read = False

    def read(self, part: ObjectPart) -> memoryview:
        name = _named(self._plan.root, self._plan.files[part.file])
        url = self._plan.urls[part.file]
        headers = {"Range": f"bytes={part.start}-{part.stop - 1}"}
        # The URL itself is in no error: it is as good as a password.
        host = urlsplit(url).netloc.rpartition("@")[2]
        is_known = self._has_read
        if not is_known and self._silent.has(host, self._clock()):
            raise FilesUnreachableError(f"cannot read {name}: {host} did not answer a moment ago")
        pause, has_answered = _PAUSE_S, is_known
        for tries_left in reversed(range(_TRIES)):
            try:
                answer = fetched(url, headers, _TIMEOUT_S if is_known else _FIRST_TIMEOUT_S)
            except NotAnswered:
                why = f"no answer from {host}"
                if not has_answered and tries_left == _TRIES - _FIRST_TRIES:
                    self._silent.add(host, self._clock())
                    break
            else:
                has_answered = True
                if answer.status == 206:
                    self._has_read = True
                    return _whole(memoryview(answer.body), part, name)
                if answer.status == 404:
                    raise PlanOutdatedError(name)
                if answer.status == 416:
                    raise LogMissingError(f"{name} ends before byte {part.start}, which was planned")
                if answer.status == 403 and (self._has_read or self._clock() >= self._expires):
                    # The store counts by a clock of its own, and what the URL was signed with may expire before it.
                    raise PlanOutdatedError(name)
                why = f"HTTP status {answer.status}"
                if answer.status < 500 and answer.status != 429:
                    break
            if tries_left:
                self._sleep(pause)
                pause *= 2
        raise FilesUnreachableError(f"cannot read {name} by the URL that its broker has signed: {why}")


def source_of(plan: TopicPlan, root: str | None = None) -> ObjectSource:
    """`root` is the URL of the store as seen from here, if it differs from the broker's."""
    if plan.urls and root is None:
        return SignedSource(plan)
    return StoreSource(plan, plan.root if root is None else root)


class ObjectParts:
    """The parts of one plan. Bytes are taken run by run, each from its beginning to its end."""

    def __init__(
        self, source: ObjectSource, parts: Iterable[ObjectPart], *, ahead_max: int = AHEAD_MAX
    ) -> None:
        self._source = source
        self._waiting = deque(parts)
        self._ahead_max = ahead_max
        self._ahead = 1
        self._coming: deque[tuple[ObjectPart, Future[memoryview]]] = deque()
        self._threads: ThreadPoolExecutor | None = None
        self._part = ObjectPart(-1, 0, 0)
        self._data = memoryview(b"")

    def __enter__(self) -> ObjectParts:
        return self

    def __exit__(self, *_: object) -> None:
        if self._threads is not None:
            # Requests that are under way end by themselves, and are not waited for.
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._coming.clear()

    def take(self, file: int, start: int, stop: int) -> memoryview:
        """Bytes of the object from `start` on, at most to `stop`, and at least one. The view is valid while held."""
        while not (self._part.file == file and self._part.start <= start < self._part.stop):
            self._advance()
        part = self._part
        return self._data[start - part.start : min(stop, part.stop) - part.start]

    def _advance(self) -> None:
        if not self._coming and len(self._waiting) == 1:
            # Small slices need no threads.
            self._part = self._waiting.popleft()
            self._data = self._source.read(self._part)
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._ahead_max, "anabranch-objects")
        while self._waiting and len(self._coming) <= self._ahead:
            part = self._waiting.popleft()
            self._coming.append((part, self._threads.submit(self._source.read, part)))
        if not self._coming:
            raise DirectReadError("bytes are taken that no run of the plan has")
        self._ahead = min(2 * self._ahead, self._ahead_max - 1)
        self._part, coming = self._coming.popleft()
        self._data = coming.result()


def _whole(data: memoryview, part: ObjectPart, name: str) -> memoryview:
    if len(data) != part.stop - part.start:
        raise LogMissingError(f"{name} ends at byte {part.start + len(data)}, before what was planned")
    return data


def _named(url: str, key: str) -> str:
    return f"{url.partition('?')[0].rstrip('/')}/{key}"


@lru_cache(maxsize=8)
def _store(url: str, process: int) -> ObjectStore:
    """One for each process: a client must not be used by the child of a fork."""
    return open_for_readers(url)
