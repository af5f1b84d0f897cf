"""A leader's recent decisions about one topic, stored with the topic for the next leader and for explanations.

A change is stored after a delay, so that many changes are one write. The first decision about a topic that stays as it
is is not stored: the next leader would decide the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from anabranch.autoscale.decide import Stay, Verdict
from anabranch.autoscale.decisions import Decision, DecisionHistory, DecisionKind
from anabranch.errors import AnabranchError
from anabranch.metadata.port import MetadataStore
from anabranch.model.names import TopicName
from anabranch.model.scalable import BadRecord, decisions_path
from anabranch.model.segments import SegmentId

log = logging.getLogger(__name__)

# The delay after an action, and after a change of the reason for no action.
SAVE_SOON_S: Final = 1.0
SAVE_LATER_S: Final = 30.0


class DecisionLog:
    """The stored and the latest decisions. Call `read` or `load` before adding any: stored decisions come first."""

    def __init__(
        self,
        metadata: MetadataStore,
        topic: TopicName,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        may_write: Callable[[], bool],
        told: Callable[[Decision, Verdict | None], None] | None = None,
    ) -> None:
        """`told` is called for every answer that differs from the one before, except a first answer to stay."""
        self._told = told
        self.is_unsaved = False
        self._metadata = metadata
        self._topic = topic
        self._spawn = spawn
        self._may_write = may_write
        self._history: DecisionHistory | None = None  # None until it is read.
        self._saved = DecisionHistory()
        # The latest answer, if it is to stay; how often it was given again, and when last. These are added to the
        # history only when a caller reads it: idle topics are evaluated for ever.
        self._latest: Stay | None = None
        self._again = 0
        self._again_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def read(self) -> DecisionHistory:
        await self.load()
        return self._up_to_date()

    async def load(self) -> None:
        """Loads the stored history without returning it."""
        if self._history is None:
            found = await self._metadata.get(decisions_path(self._topic))
            if self._history is None:
                self._history = self._saved = self._decoded(b"" if found is None else found.value)

    def _decoded(self, value: bytes) -> DecisionHistory:
        try:
            return DecisionHistory.decode(value) if value else DecisionHistory()
        except BadRecord as error:
            log.error(
                "%s: the stored decisions are unreadable, starting without them: %s", self._topic, error
            )
            return DecisionHistory()

    def add(self, verdict: Verdict, now_ms: int) -> None:
        if verdict is self._latest and not self.is_unsaved:
            self._again, self._again_ms = self._again + 1, now_ms
            return
        self._became(self._up_to_date().add(verdict, now_ms), verdict)
        self._latest = verdict if isinstance(verdict, Stay) else None

    def note(
        self, kind: DecisionKind, because: str, now_ms: int, segments: Iterable[SegmentId], rule: str
    ) -> None:
        self._became(self._up_to_date().note(kind, because, now_ms, segments, rule))
        self._latest = None

    def _up_to_date(self) -> DecisionHistory:
        assert self._history is not None
        if self._again:
            self._history = self._history.given_again(self._again, self._again_ms)
            self._again = 0
        return self._history

    def _became(self, history: DecisionHistory, verdict: Verdict | None = None) -> None:
        before, self._history = self._history, history
        latest = history.latest
        assert latest is not None
        assert before is not None
        # Every idle topic has a first answer to stay, and its loss does no harm.
        is_first_word = len(history.decisions) == 1 and latest.kind is DecisionKind.STAY
        if self._told is not None and history.is_news_after(before) and not is_first_word:
            self._told(latest, verdict)
        if latest.kind in (DecisionKind.SPLIT, DecisionKind.MERGE):
            self._save_after(SAVE_SOON_S)
        elif history.is_news_after(self._saved) and len(history.decisions) > 1:
            self._save_after(SAVE_LATER_S)

    def close(self) -> None:
        """Stops all writing: another leader may be writing."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- writing

    def _save_after(self, seconds: float) -> None:
        if self._is_closed:
            return
        self.is_unsaved = True
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + seconds:
                return
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._save_now)

    def _save_now(self) -> None:
        self._timer = None
        self._spawn(self._save_safely())

    async def _save_safely(self) -> None:
        try:
            await self.save()
        except AnabranchError as error:
            log.info("%s: storing decisions failed: %s", self._topic, error)
            if self._may_write():
                self._save_after(SAVE_LATER_S)

    async def save(self) -> None:
        history = self._history
        if history is not None and not self._is_closed and self._may_write():
            await self._metadata.put(decisions_path(self._topic), history.encode())
            self._saved = history
            self.is_unsaved = self._history is not history
