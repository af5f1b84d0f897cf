"""The bundle state channel in the metadata store, as in PIP-378: each bundle has a node with its winning change.

    /loadbalance/bundle-states/{tenant}/{namespace}/{0x…_0x…}    the change, as JSON
    /loadbalance/bundle-states-term                              the newest term of a leader, in decimals

Changes of one bundle are in one order, that of its node's versions: a change is checked against the node, and replaces
it by compare-and-set. There is no order among bundles. So a leader that was replaced between the check of its term and
its write may still have stored one change. That change is a legal step from the state that it met, all brokers read it,
and the next leader goes on from it.

A watch merges changes: a follower may miss the steps between two states, and takes each node's state as it is. A
tombstone stays in its node for an hour before the node is deleted. So no broker compares a version of the deleted node
with one of the next node of that name, and `(created, version)` orders all states of a bundle.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from anabranch.balance.core.codec import BadChange, decode_change, encode_change
from anabranch.balance.core.fold import Fold
from anabranch.balance.core.states import BundleAction, BundleChange
from anabranch.broker.balance.channel.state_log import ChangeRejected, ChannelUnavailable, StatesListener
from anabranch.metadata.errors import AlreadyExists, MetadataError, StoreUnavailable, VersionConflict
from anabranch.metadata.followed import FollowedRecords
from anabranch.metadata.port import MetadataStore, SessionState, Versioned
from anabranch.model.bundles import BundleName

log = logging.getLogger(__name__)

BUNDLE_STATES: Final = "/loadbalance/bundle-states"
NEWEST_TERM: Final = "/loadbalance/bundle-states-term"
# How long `append` tries to learn what became of a write without an answer.
DOUBT_S: Final = 3.0
RETRY_S: Final = 0.1
TOMBSTONE_KEPT_MS: Final = 3_600_000


def state_path(bundle: BundleName) -> str:
    return f"{BUNDLE_STATES}/{bundle}"


@dataclass(frozen=True, slots=True)
class _Known:
    node: Versioned
    change: BundleChange

    @classmethod
    def read(cls, path: str, node: Versioned) -> _Known:
        """May raise BadChange."""
        return cls(node, decode_change(path.removeprefix(BUNDLE_STATES + "/"), node.value))

    @property
    def order(self) -> tuple[int, int]:
        return self.node.created_ms, self.node.version

    @property
    def is_tombstone(self) -> bool:
        return self.change.state is None


class MetadataStateLog:
    """Implements `StateLog`."""

    def __init__(self, metadata: MetadataStore, *, doubt_s: float = DOUBT_S) -> None:
        self._metadata = metadata
        self._doubt_s = doubt_s
        self._fold = Fold()
        self._followed = FollowedRecords(metadata, BUNDLE_STATES, self._nodes_read)
        # What was last read of each node; also of those with tombstones, which the fold has forgotten.
        self._nodes: dict[str, _Known] = {}
        self._listeners: list[StatesListener] = []
        self._stop: Callable[[], None] | None = None
        # Since when nothing was heard, by the loop's time; None while this broker follows. And how many reads of
        # everything there were when the session had come back: after one more, this broker follows again.
        self._silent_since: float | None = None
        self._reads_before = 0

    @property
    def fold(self) -> Fold:
        return self._fold

    # -- following

    async def start(self) -> None:
        self._silent_since = asyncio.get_running_loop().time()
        self._stop = self._metadata.session.on_change(self._session_changed)
        try:
            await self._followed.start()
        except MetadataError as error:
            raise ChannelUnavailable(f"the states of bundles cannot be read: {error}") from error

    async def close(self) -> None:
        if self._stop is not None:
            self._stop()
        await self._followed.close()

    @property
    def is_following(self) -> bool:
        return self._stop is not None and self._silent_since is None

    @property
    def lag_s(self) -> float:
        since = self._silent_since
        return 0.0 if since is None else asyncio.get_running_loop().time() - since

    def on_change(self, callback: StatesListener) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def _session_changed(self, state: SessionState) -> None:
        self._reads_before = self._followed.whole_reads
        if self._silent_since is None:
            self._silent_since = asyncio.get_running_loop().time()

    def _nodes_read(self, records: Mapping[str, Versioned | None]) -> None:
        is_connected = self._metadata.session.state is SessionState.CONNECTED
        if is_connected and self._followed.whole_reads > self._reads_before:
            self._silent_since = None
        self._take(records)

    def _take(self, records: Mapping[str, Versioned | None]) -> None:
        """Takes what is newer than what is known: a read may have begun before a write of this broker and end after
        it."""
        taken: list[BundleChange] = []
        for path, node in records.items():
            known = self._nodes.get(path)
            if node is None:
                # Only tombstones are deleted. For any other state this read began before the node was made.
                if known is not None and known.is_tombstone:
                    del self._nodes[path]
                continue
            try:
                found = _Known.read(path, node)
            except BadChange as error:
                log.warning("%s: the bundle's state stays as it was: %s", path, error)
                continue
            if known is not None and found.order <= known.order:
                continue
            self._nodes[path] = found
            if self._fold.restore(found.change):
                taken.append(found.change)
        if taken:
            for callback in list(self._listeners):
                callback(taken)

    # -- changes

    async def append(self, change: BundleChange) -> None:
        path = state_path(change.bundle)
        try:
            stored = await self._stored(path, change)
        except MetadataError as error:
            raise ChannelUnavailable(f"{change.bundle}: its state cannot be changed: {error}") from error
        self._take({path: stored})
        if change.action is BundleAction.TOMBSTONE:
            await self._sweep()

    async def _stored(self, path: str, change: BundleChange) -> Versioned:
        """Stores the change. A write without an answer is read back, and repeated if it is not there: the version that
        it was checked against guards the repetition.

        What was last read of the node is where it begins: where the change is valid after that, the write itself says
        whether that is still so. A refusal is believed after a fresh read alone."""
        loop = asyncio.get_running_loop()
        value = encode_change(change)
        deadline: float | None = None  # Of a doubt.
        known: _Known | None = self._nodes.get(path)
        while True:
            is_written = False
            try:
                is_fresh = known is None
                before = await self._metadata.get(path, fresh=True) if known is None else known.node
                known = None
                if deadline is not None and before is not None and before.value == value:
                    return before
                refused = await self._why_not(path, change, before)
                if refused is not None and not is_fresh:
                    continue
                if refused is not None:
                    self._take({path: before})
                    if deadline is not None and not _is_lost(path, change, before):
                        raise ChannelUnavailable(
                            f"{change.bundle}: whether the change was stored is not known: {refused}"
                        )
                    raise ChangeRejected(f"{change.bundle}: {refused}")
                is_written = True
                if before is None:
                    return await self._metadata.create(path, value)
                return await self._metadata.put(path, value, if_version=before.version)
            except (AlreadyExists, VersionConflict):
                continue  # Another change came first: whether this one is valid after it is seen by reading again.
            except StoreUnavailable:
                if is_written and deadline is None:
                    deadline = loop.time() + self._doubt_s
                if deadline is None or loop.time() >= deadline:
                    raise
                await asyncio.sleep(RETRY_S)

    async def _why_not(self, path: str, change: BundleChange, before: Versioned | None) -> str | None:
        """Why the change is not valid after what is stored now; None if it is."""
        try:
            stored = Fold()
            if before is not None:
                stored.restore(_Known.read(path, before).change)
            if change.parent is not None:
                at = state_path(change.parent)
                parent = await self._metadata.get(at, fresh=True)
                if parent is not None:
                    stored.restore(_Known.read(at, parent).change)
        except BadChange as error:
            raise ChannelUnavailable(f"a stored state cannot be read: {error}") from error
        if change.term:
            newest = await self._newest_term()
            self._fold.lead(newest[0])
            stored.lead(newest[0])
        return stored.why_not(change)

    # -- leaders

    async def lead(self, term: int) -> None:
        try:
            await self._raise_term(term)
            # The session has just read the term afresh, or written it: this has all that was stored before.
            found = await self._metadata.scan(BUNDLE_STATES)
        except MetadataError as error:
            raise ChannelUnavailable(f"term {term} cannot begin: {error}") from error
        self._fold.lead(term)
        self._take(dict(found))
        await self._sweep()

    async def resign(self) -> None:
        """Nothing is kept open for a leader here."""

    async def _newest_term(self) -> tuple[int, Versioned | None]:
        found = await self._metadata.get(NEWEST_TERM, fresh=True)
        return (0 if found is None else int(found.value)), found

    async def _raise_term(self, term: int) -> None:
        while True:
            newest, found = await self._newest_term()
            if newest > term:
                raise ChangeRejected(f"term {term} is over: a leader of term {newest} has begun")
            if newest == term:
                return
            try:
                if found is None:
                    await self._metadata.create(NEWEST_TERM, str(term).encode())
                else:
                    await self._metadata.put(NEWEST_TERM, str(term).encode(), if_version=found.version)
                return
            except (AlreadyExists, VersionConflict):
                continue

    async def _sweep(self) -> None:
        """Deletes the nodes of old tombstones. What fails is left to the next sweep."""
        try:
            oldest_ms = await self._metadata.now_ms() - TOMBSTONE_KEPT_MS
            for path, known in list(self._nodes.items()):
                if known.is_tombstone and known.node.modified_ms <= oldest_ms:
                    with contextlib.suppress(VersionConflict):  # The bundle is in use again.
                        await self._metadata.delete(path, if_version=known.node.version)
        except MetadataError as error:
            log.info("deleting old tombstones of bundles failed: %s", error)


def _is_lost(path: str, change: BundleChange, found: Versioned | None) -> bool:
    """Whether what was found shows that the change, whose write had no answer, was not stored. A state of a later
    version does not: it may have come after this change."""
    return found is not None and _Known.read(path, found).change.version <= change.version
