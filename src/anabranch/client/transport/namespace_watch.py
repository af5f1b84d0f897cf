"""The watch on a namespace's scalable topics (commands 76 to 78), held on any broker that answers.

`start` returns the first set, before the listener is called. After a lost connection the watch is opened again with the
hash of the set: a broker that has the same set sends nothing, any other sends the whole set again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from anabranch.client.errors import Closed, ConnectionLost, RequestRefused, Unsupported
from anabranch.client.transport.attachment import AttachedPart, Backoff, keep_trying
from anabranch.client.transport.connection import ClientConnection, PartKind
from anabranch.client.transport.core.refusals import Meaning, RefusedPart, meaning
from anabranch.client.transport.core.topic_diff import TopicChange, TopicSet
from anabranch.client.transport.pool import REQUEST_MAX_S, Connections
from anabranch.errors import AnabranchError
from anabranch.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)

C = pb.BaseCommand

FIRST_PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 30.0


def watch_backoff(chance: random.Random) -> Backoff:
    return Backoff(chance, first_s=FIRST_PAUSE_S, limit_s=PAUSE_MAX_S)


class NamespaceWatch:
    """After `start`, `changed` is called for each difference, or `ended` once if the broker ends the watch; then
    `close`."""

    def __init__(
        self,
        connections: Connections,
        namespace: str,
        property_filters: Mapping[str, str],
        *,
        changed: Callable[[TopicChange], None],
        ended: Callable[[Exception], None],
        backoff: Backoff,
    ) -> None:
        self.namespace = namespace
        self._filters = dict(property_filters)
        self._connections = connections
        self._changed = changed
        self._ended = ended
        self._backoff = backoff
        self._topics = TopicSet()
        self._first: asyncio.Future[frozenset[str]] = asyncio.get_running_loop().create_future()
        self._following: asyncio.Task[None] | None = None

    @property
    def topics(self) -> frozenset[str]:
        """The set after the broker's last update."""
        return self._topics.names

    async def start(self) -> frozenset[str]:
        """Returns the first set. Raises an error, or the loss of the connection before it: there is no watch then,
        until the next `start`."""
        if self._first.done():
            self._first = asyncio.get_running_loop().create_future()
        self._following = asyncio.create_task(self._follow())  # Awaited by `close`.
        try:
            return await asyncio.shield(self._first)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        if not self._first.done():
            self._first.set_exception(Closed("the watch was closed before its first answer"))
            self._first.exception()  # No task may be waiting for it.

    # -- the session

    async def _follow(self) -> None:
        try:
            await keep_trying(self._watch_once, self._backoff, f"the watch on {self.namespace}", self._ends)
        except AnabranchError as error:
            self._end(error)

    async def _watch_once(self) -> None:
        await self._watch_on(await self._connections.service())

    def _ends(self, error: AnabranchError) -> bool:
        if isinstance(error, RequestRefused):
            return meaning(error, RefusedPart.NAMESPACE_WATCH) is Meaning.FINAL
        return isinstance(error, Unsupported) or not self._first.done()

    def _end(self, error: Exception) -> None:
        if self._first.done():
            self._ended(error)
        else:
            self._first.set_exception(error)

    async def _watch_on(self, connection: ClientConnection) -> None:
        """Never returns normally: raises when the connection is lost or the broker ends the watch."""
        if not connection.supports_scalable_topics:
            raise Unsupported(
                f"the broker {connection.peer_name or 'there'} has no scalable topics, so a namespace of them "
                "cannot be consumed: name the topics, or use Anabranch or Pulsar 5"
            )
        session = connection.attach(PartKind.NAMESPACE_WATCH, lambda number: _Session(self, number))
        is_first = not self._first.done()
        try:
            connection.send(
                C.WATCH_SCALABLE_TOPICS,
                "watchScalableTopics",
                watch_id=session.number,
                namespace=self.namespace,
                property_filters=[pb.KeyValue(key=k, value=v) for k, v in sorted(self._filters.items())],
                **({} if is_first else {"current_hash": self._topics.hash}),
            )
            # A broker with the same set sends nothing, so a sent frame counts as success.
            self._backoff.reset()
            if is_first:
                await self._first_word(connection, session)
            await session.over
        finally:
            connection.detach(PartKind.NAMESPACE_WATCH, session.number)
            if not connection.is_closed:
                connection.send(
                    C.WATCH_SCALABLE_TOPICS_CLOSE, "watchScalableTopicsClose", watch_id=session.number
                )

    async def _first_word(self, connection: ClientConnection, session: _Session) -> None:
        try:
            async with asyncio.timeout(REQUEST_MAX_S):
                waiting: list[asyncio.Future[Any]] = [self._first, session.over]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            connection.abort()
            raise ConnectionLost(f"no topics of {self.namespace} within {REQUEST_MAX_S:.0f} s") from None

    # -- updates of the broker

    def snapshot(self, names: list[str]) -> None:
        self._topics, change = self._topics.replaced(names)
        if not self._first.done():
            self._first.set_result(self._topics.names)
        elif change:
            self._changed(change)

    def diff(self, removed: list[str], added: list[str]) -> None:
        self._topics, change = self._topics.moved(removed, added)
        if change:
            self._changed(change)


class _Session(AttachedPart):
    """One watch on one connection."""

    def __init__(self, watch: NamespaceWatch, number: int) -> None:
        super().__init__(number)
        self._watch = watch

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None:
        match body.WhichOneof("event"):
            case _ if body.HasField("error"):
                self.lost(RequestRefused(body.error, body.message))
            case "snapshot":
                self._watch.snapshot(list(body.snapshot.topics))
            case "diff":
                self._watch.diff(list(body.diff.removed), list(body.diff.added))
            # An update with neither comes from a later release, and is ignored.
