"""Which part of the broker performs each command of a client: one method per command, chosen from a table.

Quick commands run at once on the reading path; those that wait (for metadata, a topic, the disk) become tasks of their
session. A command that this broker does not support is answered with an error that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anabranch.broker.connection.consumer_commands import ConsumerCommands
from anabranch.broker.connection.lookup_commands import LookupCommands
from anabranch.broker.connection.producer_commands import ProducerCommands
from anabranch.broker.connection.schema_commands import SchemaCommands
from anabranch.broker.connection.session import ClientSession
from anabranch.broker.connection.sign_in import SignIn
from anabranch.broker.connection.topic_lists import TopicLists
from anabranch.broker.connection.unsupported import refuse_unsupported
from anabranch.broker.peers.acceptor import PeerAcceptor
from anabranch.broker.peers.handshake import METHOD as PEER_METHOD
from anabranch.broker.scalable.sessions.commands import ScalableCommands
from anabranch.wire import pulsar_pb2 as pb

C = pb.BaseCommand
Handler = Callable[[ClientSession, Any], None]


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a client is sent when its connection is accepted."""

    server_version: str
    has_scalable_topics: bool
    http_url: str
    http_url_tls: str
    # Clients reach every broker through one port, and name it in CONNECT.
    has_one_port: bool = False


class Requests:
    """Implements the sessions' `Commands`."""

    def __init__(
        self,
        greeting: Greeting,
        sign_in: SignIn,
        lookups: LookupCommands,
        producers: ProducerCommands,
        consumers: ConsumerCommands,
        schemas: SchemaCommands,
        topic_lists: TopicLists,
        scalable: ScalableCommands,
        peers: PeerAcceptor,
    ) -> None:
        self._greeting = greeting
        self._sign_in = sign_in
        self._peers = peers
        self.topic_lists = topic_lists
        self.scalable = scalable
        self._handlers: dict[int, tuple[str, Handler]] = {
            C.CONNECT: ("connect", self._connect),
            C.AUTH_RESPONSE: ("authResponse", self._answer),
            C.PARTITIONED_METADATA: ("partitionMetadata", _waits(lookups.partitions)),
            C.LOOKUP: ("lookupTopic", _waits(lookups.lookup)),
            C.PRODUCER: ("producer", producers.create),
            C.CLOSE_PRODUCER: ("close_producer", producers.close),
            C.SUBSCRIBE: ("subscribe", consumers.subscribe),
            C.CLOSE_CONSUMER: ("close_consumer", consumers.close),
            C.UNSUBSCRIBE: ("unsubscribe", _waits(consumers.unsubscribe)),
            C.FLOW: ("flow", consumers.flow),
            C.ACK: ("ack", consumers.ack),
            C.REDELIVER_UNACKNOWLEDGED_MESSAGES: ("redeliverUnacknowledgedMessages", consumers.redeliver),
            C.SEEK: ("seek", _waits(consumers.seek)),
            C.CONSUMER_STATS: ("consumerStats", consumers.stats),
            C.GET_LAST_MESSAGE_ID: ("getLastMessageId", _waits(consumers.last_message_id)),
            C.GET_TOPICS_OF_NAMESPACE: ("getTopicsOfNamespace", _waits(topic_lists.list)),
            C.WATCH_TOPIC_LIST: ("watchTopicList", _waits(topic_lists.watch)),
            C.WATCH_TOPIC_LIST_CLOSE: ("watchTopicListClose", topic_lists.close),
            C.GET_SCHEMA: ("getSchema", _waits(schemas.get)),
            C.GET_OR_CREATE_SCHEMA: ("getOrCreateSchema", _waits(schemas.get_or_create)),
            # Sent by brokers only: on other connections `wire.connection` refuses it.
            C.ANABRANCH_PEER: ("anabranchPeer", peers.request),
            **scalable.handlers,
        }

    def perform(self, session: ClientSession, kind: int, command: pb.BaseCommand) -> None:
        """Performs the command. Raises PeerError if it breaks the protocol."""
        found = self._handlers.get(kind)
        if found is None:
            refuse_unsupported(session, kind, command)
            return
        field, handler = found
        handler(session, getattr(command, field))

    def connection_lost(self, session: ClientSession) -> None:
        self.scalable.connection_lost(session)
        self.topic_lists.connection_lost(session)

    def link_writable(self, session: ClientSession) -> None:
        """The client reads again: sends what its watches held back."""
        self.scalable.link_writable(session)
        self.topic_lists.link_writable(session)

    def _connect(self, session: ClientSession, connect: pb.CommandConnect) -> None:
        if connect.auth_method_name == PEER_METHOD:
            self._peers.connect(session, connect)
        elif session.excess is not None:
            session.refuse(session.excess)
        else:
            self._sign_in.connect(session, connect, lambda: self._accept(session))

    def _answer(self, session: ClientSession, answer: pb.CommandAuthResponse) -> None:
        if session.peering is not None:
            self._peers.answer(session, answer)
        else:
            self._sign_in.answer(session, answer)

    def _accept(self, session: ClientSession) -> None:
        greeting = self._greeting
        features = pb.FeatureFlags(
            supports_partial_producer=True,
            supports_topic_watchers=True,
            supports_topic_watcher_reconcile=True,
            supports_get_partitioned_metadata_without_auto_creation=True,
            supports_scalable_topics=greeting.has_scalable_topics or None,
            # With this flag V5 clients ask for transactions, and are refused at once; without it they retry again and
            # again.
            supports_tc_metadata_discovery=True,
        )
        http_url = (session.has_tls and greeting.http_url_tls) or greeting.http_url
        accepted = session.connection.accept(
            greeting.server_version, features, http_url=http_url, has_one_port=greeting.has_one_port
        )
        session.write((accepted,))


def _waits(work: Callable[[ClientSession, Any], Any]) -> Handler:
    def start(session: ClientSession, request: Any) -> None:
        session.spawn(request.request_id, work(session, request))

    return start
