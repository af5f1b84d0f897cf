"""Follows the layout of one topic: a watch on any broker, made again when its connection is lost.

Its layout never goes back to an older epoch. A deleted topic stays deleted here, even if another topic is created under
its name: its user must decide what that means. The ids of topics show it, even if the watch was disconnected meanwhile.
Only a classic topic may be auto-created again: the watch follows its layout, with the new id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from anabranch.client.errors import AccessFailed, ConnectionLost, RequestRefused, TopicDeleted, Unsupported
from anabranch.client.transport.attachment import AttachedPart, Backoff, keep_trying
from anabranch.client.transport.connection import ClientConnection, PartKind
from anabranch.client.transport.core.refusals import Meaning, RefusedPart, meaning
from anabranch.client.transport.pool import REQUEST_MAX_S, Connections
from anabranch.errors import AnabranchError, PeerError
from anabranch.model import buckets
from anabranch.model.gone import Gone
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import Domain, TopicName
from anabranch.model.segments import HASH_MAX, HashRange, Segment, SegmentId
from anabranch.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)

C = pb.BaseCommand


class LayoutWatch:
    """`open` it, then read its attributes and `listen`; `close` it at the end."""

    def __init__(self, connections: Connections, topic: str, backoff: Backoff) -> None:
        self.topic = TopicName.parse(topic)  # The broker's name for it, once there is a layout.
        self.layout = SegmentLayout(-1, SegmentId(0), {})  # No layout is known yet.
        self.controller_url = ""
        self.is_deleted = False
        self._asked = str(self.topic)
        self._given = topic
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
        """The name that users know: a classic topic is `persistent://`, whatever the broker calls its layout."""
        return str(replace(self.topic, domain=Domain.PERSISTENT) if _is_classic(self.layout) else self.topic)

    def warn_of_other_kind(self) -> None:
        """Logs a warning where a scalable topic was asked for and a classic one is there. Call it once there is a
        layout."""
        if self._asked.startswith(f"{Domain.TOPIC}://") and _is_classic(self.layout):
            log.warning(
                "%s: there is a classic topic of that name, %s, which is used; it does not split by itself. "
                "Migrating it makes it scalable",
                self._asked,
                self.shown_topic,
            )

    def url_of(self, segment: SegmentId) -> str:
        """The broker of an active segment, if the watch knows it; empty if a lookup is needed."""
        return self._urls.get(segment, "")

    def topic_of(self, segment: SegmentId) -> str:
        """The topic that holds a segment's messages."""
        return str(self.layout.segment(segment).topic(self.topic))

    def is_over(self, segment: SegmentId) -> bool:
        """Whether a segment is sealed, or forgotten: it may be deleted at any moment."""
        known = self.layout.segments.get(segment)
        return known is None or known.is_sealed

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls `listener` after each change (layout, brokers, controller, deletion); the returned function ends
        that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    # -- the session

    async def _follow(self, create: bool) -> None:
        try:
            await keep_trying(
                lambda: self._watch_once(create),
                self._backoff,
                f"the watch on {self._asked}",
                self._ends,
                level=logging.INFO,
            )
        except AnabranchError as error:
            if not self._first.done():
                self._first.set_exception(TopicDeleted(str(error)) if _is_gone(error) else error)
            elif _is_gone(error):
                self.is_deleted = True
                self._tell()

    async def _watch_once(self, create: bool) -> None:
        connection = await self._connections.service()
        await self._watch_on(connection, create and self.layout.epoch < 0)

    def _ends(self, error: AnabranchError) -> bool:
        """The first watch fails with an error that a repetition does not change; a later watch ends only with its
        topic."""
        if self.layout.epoch >= 0:
            return _is_gone(error)
        if isinstance(error, RequestRefused):
            return meaning(error, RefusedPart.LAYOUT_WATCH) in (Meaning.FINAL, Meaning.GONE)
        return isinstance(error, AccessFailed | Unsupported)

    async def _watch_on(self, connection: ClientConnection, create: bool) -> None:
        """Never returns normally: raises when the connection is lost or the broker ends the session."""
        if not connection.supports_scalable_topics:
            raise Unsupported(
                f"the broker, {connection.peer_name or 'nameless'}, does not send layouts of topics: this client "
                "needs Anabranch, or Pulsar 5 with scalable topics enabled"
            )
        session = connection.attach(PartKind.WATCH, lambda number: _Session(self, number))
        try:
            connection.send(
                C.SCALABLE_TOPIC_LOOKUP,
                "scalableTopicLookup",
                session_id=session.number,
                # Our brokers decide which kind of topic is made for a name without a domain.
                topic=self._given if connection.is_ours and "://" not in self._given else self._asked,
                create_if_missing=create,
            )
            async with asyncio.timeout(REQUEST_MAX_S):
                await asyncio.wait([session.first, session.over], return_when=asyncio.FIRST_COMPLETED)
            await session.over
        except TimeoutError:
            connection.abort()
            raise ConnectionLost(f"no layout of {self._asked} within {REQUEST_MAX_S:.0f} s") from None
        finally:
            connection.detach(PartKind.WATCH, session.number)
            if not connection.is_closed:
                connection.send(C.SCALABLE_TOPIC_CLOSE, "scalableTopicClose", session_id=session.number)

    def updated(self, body: pb.CommandScalableTopicUpdate) -> None:
        """Applies a layout. A layout of an older epoch is from a broker that is behind, and changes nothing.

        Raises TopicDeleted if the layout is that of another topic of the same name.
        """
        layout = read_layout(body.dag)
        if self.layout.topic_id and not layout.topic_id:
            # The broker does not send ids.
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


class _Session(AttachedPart):
    """One watch on one connection."""

    def __init__(self, watch: LayoutWatch, number: int) -> None:
        super().__init__(number)
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
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


def _is_gone(error: AnabranchError) -> bool:
    return isinstance(error, RequestRefused) and meaning(error, RefusedPart.LAYOUT_WATCH) is Meaning.GONE


def _is_classic(layout: SegmentLayout) -> bool:
    """Whether the layout stands for a classic topic, which has no layout of its own."""
    return bool(layout.segments) and bool(layout.active[0].classic_topic)


def read_layout(dag: pb.ScalableTopicDAG) -> SegmentLayout:
    """The layout that a broker sent. Raises PeerError unless every hash has exactly one active segment."""
    segments: dict[SegmentId, Segment] = {}
    for info in dag.segments:
        number = SegmentId(info.segment_id)
        # A sealed segment always has an epoch; one without it must not look active.
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
            classic_topic=info.legacy_topic_name,
            bucket_splits=_splits(dag.epoch, info),
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


def _splits(epoch: int, info: pb.SegmentInfoProto) -> buckets.Splits:
    try:
        return buckets.checked(info.entry_bucket_splits)
    except ValueError as error:
        raise PeerError(f"the layout of epoch {epoch}, segment {info.segment_id}: {error}") from error


def _read_gone(gone: pb.GoneSegment) -> Gone:
    has_end = gone.HasField("end_ledger") and gone.HasField("end_entry")
    return Gone(
        SegmentId(gone.segment_id),
        HashRange(gone.hash_start, gone.hash_end),
        (gone.end_ledger, gone.end_entry) if has_end else None,
        gone.classic,
    )


def _cut_links(segment: Segment, known: Collection[SegmentId]) -> Segment:
    """Removes relatives that the broker no longer lists."""
    return replace(
        segment,
        parents=tuple(p for p in segment.parents if p in known),
        children=tuple(c for c in segment.children if c in known),
    )
