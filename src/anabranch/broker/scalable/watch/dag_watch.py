"""A client's view of a scalable topic's layout, kept up to date: the DAG watch (PIP-468, commands 70 to 72).

Any broker serves it from the stored record. A watch listens before it first reads, so no change falls between the two;
every change of the record, of the controller, of a segment's owner or of a classic topic's partitions makes it read
again, once for all changes that came meanwhile. Only differences are pushed, and never an older epoch. A watch costs no
task while nothing happens.

- A topic that is deleted while it is watched ends the watch with TopicNotFound, and so does one that was deleted and
  created again under the same name. Only the first read may create a missing topic, never a later one.
- A classic topic is shown as a layout of its partitions, until it is migrated and the real layout follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from anabranch.broker.scalable.watch.layout_views import LayoutView, LayoutViews
from anabranch.controller.core.errors import TopicMissing
from anabranch.controller.feed import StalePart
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName
from anabranch.model.scalable import scalable_name
from anabranch.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)

# The first update waits this long for a controller: a client that is sent none connects to any broker instead.
CONTROLLER_WAIT_S: Final = 2.0
RETRY_S: Final = 1.0


@dataclass(eq=False)
class DagWatch:
    """One watch. Call `start` once; calls `ended` when it ends by itself, and nothing after `close`."""

    id: int
    topic: TopicName  # As the client named it, in any domain.
    views: LayoutViews
    send: Callable[[pb.BaseCommand], None]
    ended: Callable[[DagWatch], None]
    # Awaited once, before anything is read: raises if this client may not watch the topic.
    admit: Callable[[], Awaitable[None]]
    # Creates the topic if that is allowed; None if this client does not want that.
    make: Callable[[], Awaitable[None]] | None = None
    retry_s: float = RETRY_S
    is_closed: bool = False
    _sent: bytes | None = None
    _epoch: int = -1
    _generation: int | None = None  # None until a record was read: a classic topic has none.
    _is_stale: bool = False
    _work: asyncio.Task[None] | None = None
    _retry: asyncio.TimerHandle | None = None
    _controller_told: asyncio.Event = field(default_factory=asyncio.Event)
    _stop_listening: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._stop_listening = self.views.layouts.feed.listen(self.topic, self._changed)
        self.refresh()

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._stop_listening()
        if self._retry is not None:
            self._retry.cancel()
        if self._work is not None:
            self._work.cancel()

    def refresh(self) -> None:
        """Reads again, since an owner may have changed."""
        self._is_stale = True
        if self._work is None and not self.is_closed:
            # Cancelled by `close`; handles its own failures.
            self._work = asyncio.get_running_loop().create_task(self._catch_up())

    def _changed(self, part: StalePart) -> None:
        if StalePart.CONTROLLER in part:
            self._controller_told.set()
        if part & (StalePart.RECORD | StalePart.CONTROLLER | StalePart.PARTITIONS):
            self.refresh()

    async def _catch_up(self) -> None:
        try:
            while self._is_stale and not self.is_closed:
                self._is_stale = False
                self._tell(await (self._first_look() if self._sent is None else self._look()))
        except AnabranchError as error:
            self._failed(error, is_passing=error.retryable)
        except Exception as error:
            log.exception("%s: a DAG watch failed", self.topic)
            self._failed(error, is_passing=True)
        finally:
            self._work = None

    def _failed(self, error: Exception, *, is_passing: bool) -> None:
        if self.is_closed:
            return
        if is_passing and self._sent is not None:
            # The client keeps the layout that it has, and is sent the next one when the store answers again.
            log.warning("%s: reading the layout failed, trying again: %s", self.topic, error)
            self._later()
            return
        log.info("%s: a DAG watch ends: %s", self.topic, error)
        self.send(error_update(self.id, error, str(scalable_name(self.topic))))
        self.close()
        self.ended(self)

    def _later(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        self._retry = asyncio.get_running_loop().call_later(self.retry_s, self.refresh)

    # -- one read

    async def _first_look(self) -> LayoutView:
        await self.admit()
        try:
            view = await self._look()
        except TopicMissing:
            if self.make is None:
                raise
            await self.make()
            view = await self._look()
        if not view.has_controller:
            # The client may be about to register with the controller, so waiting a moment is worth it.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CONTROLLER_WAIT_S):
                    await self._controller_told.wait()
            view = await self._look()
        return view

    async def _look(self) -> LayoutView:
        self._controller_told.clear()
        view = await self.views.look(self.topic)
        name, record = scalable_name(self.topic), view.record
        if record is None:
            if self._generation is not None:
                raise TopicMissing(f"{name} has been deleted")
        else:
            if record.is_deleting:
                raise TopicMissing(f"{name} has been deleted")
            if self._generation not in (None, record.generation):
                raise TopicMissing(f"{name} was deleted and created again; look it up again")
            self._generation = record.generation
        if not view.has_controller:
            # A watched topic needs a controller.
            self.views.layouts.touch(self.topic)
        return view

    def _tell(self, view: LayoutView) -> None:
        if self.is_closed:
            return
        if not view.is_complete:
            self._later()
        if view.news == self._sent or view.dag.epoch < self._epoch:
            return
        self._sent, self._epoch = view.news, view.dag.epoch
        command = pb.BaseCommand(type=pb.BaseCommand.SCALABLE_TOPIC_UPDATE)
        command.scalableTopicUpdate.session_id = self.id
        command.scalableTopicUpdate.resolved_topic_name = str(scalable_name(self.topic))
        command.scalableTopicUpdate.dag.CopyFrom(view.dag)
        self.send(command)


def error_update(session_id: int, error: Exception, resolved: str = "") -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.SCALABLE_TOPIC_UPDATE)
    update = command.scalableTopicUpdate
    update.session_id = session_id
    update.error = getattr(error, "code", None) or pb.UnknownError
    update.message = str(error) or type(error).__name__
    if resolved:
        update.resolved_topic_name = resolved
    return command
