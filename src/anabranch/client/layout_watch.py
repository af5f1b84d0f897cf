"""Follows the layout of one topic: a watch on any broker, made again when its connection is lost.

What it shows never goes back to an older epoch. A topic that is deleted stays deleted here, even if another is made
under its name: whoever used it must decide what that means. The ids of topics tell it, also where the watch was away
meanwhile. Only a classic topic may be made again by use: its layout follows, with the new id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from anabranch.client.connection import ClientConnection, PartKind
from anabranch.client.connections import REQUEST_MAX_S, Backoff, Connections, troubled
from anabranch.client.errors import AccessFailed, ConnectionLost, RequestRefused, TopicDeleted, Unsupported
from anabranch.errors import AnabranchError, PeerError
from anabranch.model.gone import Gone
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import Domain, TopicName
from anabranch.model.segments import HASH_MAX, HashRange, Segment, SegmentId
from anabranch.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)

C = pb.BaseCommand

# Asking again will not help; the first watch fails with these, a later one goes on trying with all but the first.
FINAL_ERRORS = frozenset(
    {
        pb.TopicNotFound,
        pb.AuthenticationError,
        pb.AuthorizationError,
        pb.InvalidTopicName,
        pb.NotAllowedError,
        pb.UnsupportedVersionError,
    }
)


class LayoutWatch:
    """`open`, then look at it and `listen`; `close` in the end."""

    def __init__(self, connections: Connections, topic: str, backoff: Backoff) -> None:
        self.topic = TopicName.parse(topic)  # As the broker calls it, once there is a layout.
        self.layout = SegmentLayout(-1, SegmentId(0), {})  # Nothing is known yet.
        self.controller_url = ""
        self.is_deleted = False
        self._asked = str(self.topic)
        self._connections = connections
        self._backoff = backoff
        self._urls: dict[SegmentId, str] = {}
        self._listeners: list[Callable[[], None]] = []
        self._first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._following: asyncio.Task[None] | None = None

    async def open(self, *, create: bool = True) -> None:
        """Returns once there is a layout; raises if the topic cannot be watched at all."""
        self._following = asyncio.create_task(self._follow(create))  # Awaited by `close`.
        try:
            await asyncio.shield(self._first)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if not self._first.done():
            self._first.cancel()

    @property
    def shown_topic(self) -> str:
        """The topic as its users call it: a classic one is `persistent://`, whatever the broker calls its layout."""
        return str(replace(self.topic, domain=Domain.PERSISTENT) if _is_classic(self.layout) else self.topic)

    def url_of(self, segment: SegmentId) -> str:
        """The broker of an active segment, as far as the watch was told; empty if a lookup is needed."""
        return self._urls.get(segment, "")

    def topic_of(self, segment: SegmentId) -> str:
        """The topic that holds a segment's messages."""
        return str(self.layout.segment(segment).topic(self.topic))

    def is_over(self, segment: SegmentId) -> bool:
        """Whether a segment is sealed, or forgotten: it may be gone at any moment."""
        known = self.layout.segments.get(segment)
        return known is None or known.is_sealed

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after each change (layout, brokers, controller, deletion); the result ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    # -- the session

    async def _follow(self, create: bool) -> None:
        while not self.is_deleted:
            try:
                connection = await self._connections.service()
                await self._watch_on(connection, create and self.layout.epoch < 0)
            except RequestRefused as refused:
                if self._refused(refused):
                    return
                log.info("the watch on %s was refused and is tried again: %s", self._asked, refused)
                troubled(refused)
            except (ConnectionLost, PeerError) as error:
                if isinstance(error, AccessFailed) and not self._first.done():
                    self._first.set_exception(error)
                    return
                log.debug("the watch on %s is made again: %s", self._asked, error)
                troubled(error)
            except Unsupported as error:
                if not self._first.done():
                    self._first.set_exception(error)
                    return
                # Of several brokers one may be older for a while.
                log.warning("the watch on %s is made again: %s", self._asked, error)
            await self._backoff.wait()

    async def _watch_on(self, connection: ClientConnection, create: bool) -> None:
        """Returns by an exception: when the connection is lost or the broker ends the session."""
        if not connection.supports_scalable_topics:
            raise Unsupported(
                f"the broker, {connection.peer_name or 'nameless'}, does not tell the layout of topics: this client "
                "needs Anabranch, or Pulsar 5 with scalable topics enabled"
            )
        session = connection.attach(PartKind.WATCH, lambda number: _Session(self, number))
        try:
            connection.send(
                C.SCALABLE_TOPIC_LOOKUP,
                "scalableTopicLookup",
                session_id=session.number,
                topic=self._asked,
                create_if_missing=create,
            )
            async with asyncio.timeout(REQUEST_MAX_S):
                await asyncio.wait([session.first, session.ended], return_when=asyncio.FIRST_COMPLETED)
            await session.ended
        except TimeoutError:
            connection.abort()
            raise ConnectionLost(f"no layout of {self._asked} within {REQUEST_MAX_S:.0f} s") from None
        finally:
            connection.detach(PartKind.WATCH, session.number)
            if not connection.is_closed:
                connection.send(C.SCALABLE_TOPIC_CLOSE, "scalableTopicClose", session_id=session.number)

    def _refused(self, refused: RequestRefused) -> bool:
        """Whether that is the end."""
        if self.layout.epoch < 0:
            if refused.error not in FINAL_ERRORS:
                return False
            if not self._first.done():
                missing = refused.error == pb.TopicNotFound
                self._first.set_exception(TopicDeleted(str(refused)) if missing else refused)
            return True
        if refused.error != pb.TopicNotFound:
            return False
        self.is_deleted = True
        self._tell()
        return True

    def updated(self, body: pb.CommandScalableTopicUpdate) -> None:
        """A layout came. One of an older epoch is from a broker that is behind, and changes nothing.

        TopicDeleted if it is that of another topic of the same name.
        """
        layout = read_layout(body.dag)
        if self.layout.topic_id and not layout.topic_id:
            # Of a broker that does not tell ids.
            layout = replace(layout, topic_id=self.layout.topic_id)
        if self.layout.epoch >= 0 and self.layout.topic_id not in ("", layout.topic_id):
            if not _is_classic(layout):
                raise TopicDeleted(f"{self._asked} was deleted and made again")
        elif layout.epoch < self.layout.epoch:
            return
        self._backoff.reset()
        if body.resolved_topic_name:
            self.topic = TopicName.parse(body.resolved_topic_name)
        self.layout = layout
        self.controller_url = self._connections.choose(
            body.dag.controller_broker_url, body.dag.controller_broker_url_tls
        )
        choose = self._connections.choose
        self._urls = {
            SegmentId(b.segment_id): choose(b.broker_url, b.broker_url_tls) for b in body.dag.segment_brokers
        }
        if not self._first.done():
            self._first.set_result(None)
        self._tell()

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()


class _Session:
    """One watch on one connection."""

    def __init__(self, watch: LayoutWatch, number: int) -> None:
        loop = asyncio.get_running_loop()
        self.number = number
        self.first: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._watch = watch

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None:
        if body.HasField("error"):
            self.lost(RequestRefused(body.error, body.message))
        elif body.HasField("dag"):
            try:
                self._watch.updated(body)
            except TopicDeleted as deleted:
                self.lost(RequestRefused(pb.TopicNotFound, str(deleted)))
            except AnabranchError as error:
                self.lost(PeerError(f"a layout that cannot be read: {error}"))
            if not self.first.done():
                self.first.set_result(None)

    def lost(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # Nobody may be waiting any more.


def _is_classic(layout: SegmentLayout) -> bool:
    """Whether it stands for a classic topic, which has no layout of its own."""
    return bool(layout.segments) and bool(layout.active[0].legacy_topic)


def read_layout(dag: pb.ScalableTopicDAG) -> SegmentLayout:
    """The layout that a broker sent. PeerError unless every hash has exactly one active segment."""
    segments: dict[SegmentId, Segment] = {}
    for info in dag.segments:
        number = SegmentId(info.segment_id)
        # A sealed segment always has an epoch; one that a broker left out must not make it look active.
        sealed = max(1, info.sealed_at_epoch) if info.state == pb.SEALED else 0
        segments[number] = Segment(
            number,
            HashRange(info.hash_start, info.hash_end),
            tuple(SegmentId(p) for p in info.parent_ids),
            tuple(SegmentId(c) for c in info.child_ids),
            created_epoch=info.created_at_epoch,
            sealed_epoch=sealed,
            created_ms=info.created_at_ms,
            sealed_ms=info.sealed_at_ms,
            legacy_topic=info.legacy_topic_name,
            bucket_splits=tuple(info.entry_bucket_splits),
        )
    layout = SegmentLayout(dag.epoch, SegmentId(max(segments, default=-1) + 1), segments)
    at = 0
    for segment in layout.active:
        if segment.range.start != at:
            raise PeerError(f"the layout of epoch {dag.epoch} has a gap or an overlap at hash {at}")
        at = segment.range.end + 1
    if at != HASH_MAX + 1:
        raise PeerError(f"the layout of epoch {dag.epoch} has no active segment for hash {at}")
    known = segments.keys()
    return SegmentLayout(
        layout.epoch,
        layout.next_id,
        {number: _cut_links(segment, known) for number, segment in segments.items()},
        gone=tuple(map(_read_gone, dag.gone)) if dag.tells_gone else None,
        topic_id=dag.topic_id,
    )


def _read_gone(gone: pb.GoneSegment) -> Gone:
    has_end = gone.HasField("end_ledger") and gone.HasField("end_entry")
    return Gone(
        SegmentId(gone.segment_id),
        HashRange(gone.hash_start, gone.hash_end),
        (gone.end_ledger, gone.end_entry) if has_end else None,
        gone.classic,
    )


def _cut_links(segment: Segment, known: Collection[SegmentId]) -> Segment:
    """Without relatives that the broker no longer lists."""
    return replace(
        segment,
        parents=tuple(p for p in segment.parents if p in known),
        children=tuple(c for c in segment.children if c in known),
    )
