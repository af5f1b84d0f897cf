"""The parts that perform the commands of clients: sign-in, each kind of command, the revocation of rights."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import partial

from anabranch.broker.assembly.ground import Ground
from anabranch.broker.assembly.scalable_parts import ScalableParts
from anabranch.broker.catalog.owners import OwnersForClients
from anabranch.broker.catalog.producer_names import ProducerNames
from anabranch.broker.config.listeners import Addresses
from anabranch.broker.connection.commands import Greeting, Requests
from anabranch.broker.connection.consumer_commands import ConsumerCommands
from anabranch.broker.connection.lookup_commands import LookupCommands
from anabranch.broker.connection.ports import Attachable
from anabranch.broker.connection.producer_commands import ProducerCommands
from anabranch.broker.connection.revocation import Revocation
from anabranch.broker.connection.schema_commands import SchemaCommands
from anabranch.broker.connection.session import ClientSession
from anabranch.broker.connection.sign_in import SignIn
from anabranch.broker.connection.topic_lists import TopicLists
from anabranch.broker.non_persistent.topics import NonPersistentTopics
from anabranch.broker.policy.effective import EffectivePolicies
from anabranch.broker.scalable.naming import TopicNaming
from anabranch.broker.scalable.ports import Opened
from anabranch.broker.scalable.sessions.commands import ScalableCommands
from anabranch.broker.scalable.sessions.consumer_sessions import ConsumerSessions
from anabranch.broker.security.authentication import Authentication
from anabranch.broker.topics.creation import NewTopics
from anabranch.broker.topics.known_topics import KnownTopics
from anabranch.controller.records import last_record
from anabranch.metadata.last_reads import LastReads
from anabranch.metadata.port import SessionState
from anabranch.model.names import NamespaceName, TopicName


class ClientParts:
    def __init__(
        self,
        ground: Ground,
        scalable: ScalableParts,
        non_persistent: NonPersistentTopics,
        new_topics: NewTopics,
        known: KnownTopics,
        sessions: Collection[ClientSession],
        *,
        attachable: Attachable,
        opened: Opened,
        policies: Callable[[TopicName], Awaitable[EffectivePolicies]],
        unstored_elsewhere: Callable[[NamespaceName], Awaitable[list[str]]],
        authentication: Authentication | None,
        one_port: Addresses | None,
    ) -> None:
        """`sessions` are the connections that are open at the time of each iteration. `attachable` is the topic that
        producers and consumers of a name attach to, `opened` the topic of a name if it is open here, `policies` what is
        in force for a topic. `one_port` has the only addresses that clients can reach, if they are those of all
        brokers."""
        config, rights = ground.current_config(), ground.rights
        self.sign_in = SignIn(
            authentication,
            ground.now_ms,
            server_version=ground.server_version,
            answer_max_s=config.authentication_refresh_check_seconds,
            has_rights=config.authorization_enabled,
            proxy_roles=config.proxy_roles,
        )
        session = ground.metadata.session
        self.owners = OwnersForClients(
            ground.owners,
            lambda: session.state is SessionState.IN_DOUBT,
            lambda name: opened(name) is not None,
        )
        naming = TopicNaming(
            scalable.topics,
            non_persistent,
            new_topics,
            ground.owners,
            self.owners.find,
            known.check_lookup,
            partial(last_record, LastReads(ground.metadata)),
        )
        schemas = SchemaCommands(
            naming, rights, ground.schemas, policies, known.check_scalable, attachable, ground.now_ms
        )
        registered = ConsumerSessions(
            scalable.topics,
            ground.metadata,
            rights,
            scalable.subscription_limits,
            opened,
            ground.loop,
            service_url=ground.service_url,
            elsewhere=scalable.remote_sessions,
        )
        if scalable.remote_sessions is not None:
            scalable.remote_sessions.serve(registered.departures)
        names = ProducerNames(ground.metadata, config.cluster_name)
        self.requests = Requests(
            Greeting(
                ground.server_version,
                config.scalable_topic_enabled,
                one_port.http_url if one_port is not None else ground.me.http_url,
                ground.me.http_url_tls,
                one_port is not None,
            ),
            self.sign_in,
            LookupCommands(naming, rights, ground.me.at, has_one_port=one_port is not None),
            ProducerCommands(naming, rights, schemas, ground.log, attachable, names.new, ground.now_ms),
            ConsumerCommands(
                naming,
                rights,
                schemas,
                registered,
                attachable,
                metadata_bytes_max=config.max_consumer_metadata_size,
            ),
            schemas,
            TopicLists(
                ground.loop, ground.metadata, ground.resources, rights, non_persistent, unstored_elsewhere
            ),
            ScalableCommands(
                scalable.topics,
                registered,
                sessions,
                rights,
                ground.resources,
                new_topics,
                ground.owners,
                ground.registry,
                default_segments=config.scalable_topic_default_segments,
                frame_bytes_max=config.max_message_size,
            ),
            ground.peers.acceptor,
        )
        self.revocation = Revocation(
            ground.metadata, rights, ground.background, sessions, registered, self.requests.topic_lists
        )
