"""A client's connection as scalable topics see it: what they send through it, and the tables that they keep on it."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from anabranch.broker.scalable.sessions.consumer_session import ConsumerSession
from anabranch.broker.scalable.watch.dag_watch import DagWatch
from anabranch.broker.scalable.watch.namespace_watch import ServedNamespaceWatch
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.connection import Connection


class ScalableLink(Protocol):
    # Watched layouts and namespaces, and consumers registered with controllers, by the ids that the client chose. The
    # latter share the id space of `consumers`.
    watches: dict[int, DagWatch]
    namespace_watches: dict[int, ServedNamespaceWatch]
    sessions: dict[int, ConsumerSession]

    @property
    def consumers(self) -> Mapping[int, object | None]:
        """Ordinary consumers by their ids; None for one that is being created."""

    @property
    def connection(self) -> Connection: ...

    @property
    def role(self) -> str: ...

    @property
    def is_writable(self) -> bool: ...

    def send(self, command: pb.BaseCommand) -> None: ...

    def send_success(self, request_id: int) -> None: ...

    def spawn(self, request_id: int, work: Coroutine[Any, Any, None]) -> bool:
        """Runs a request that has to wait; False if too many wait already."""

    def close(self) -> None: ...
